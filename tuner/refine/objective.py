"""What `tuner refine` makes better, and when a gain over the knee is proven. Pure.

Gains are logarithms of ratios to the knee, larger is better: 0.01 is 1 %. The first aim is the
knee's own: the most requests within the SLO, then the shortest tail.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tuner.errors import UsageError
from tuner.measure import Spread
from tuner.scheduler.state import Floats
from tuner.uncertainty import EQUAL_ATTAINMENT, GOOD_TAIL, PRIOR_SD, PRIOR_WEIGHT, student_t_975

TAIL_WORTH = 0.01
"""Most that p99 E2EL counts beside goodput, reached where it halves or doubles: it decides between
configurations that serve as much, as it does for the knee."""

PAIR_SHARE = 0.5
"""How far the two replays of a pair differ, which follow each other, of how far any two do."""

MEMORY = "memory"
"""Of a proof: serves alike with less of it."""

DRAWS = 4000
LEAST_S = 1e-6
MOST_LUCK = 0.10
"""Log ratio, about as far as two replays of one window differ: more is no small correction."""

NOT_LOST = 1 - EQUAL_ATTAINMENT
"""Goodput, as a share of the knee's, that no gain may cost."""


class Numbers(Protocol):
    """What aims look at: a measurement, or a step of a profile's curve in seconds."""

    @property
    def attainment(self) -> float: ...
    @property
    def goodput_rps(self) -> float: ...
    @property
    def output_tokens_per_s(self) -> float: ...
    @property
    def ttft_s(self) -> Spread | None: ...
    @property
    def tpot_s(self) -> Spread | None: ...
    @property
    def e2el_s(self) -> Spread | None: ...


@dataclass(frozen=True, slots=True)
class Objective:
    """One number to make better."""

    name: str
    text: str
    larger_is_better: bool
    of: Callable[[Numbers], float | None]
    prior_sd: float
    """How far two replays of the same differ, before any was seen (log scale)."""

    def log(self, one: Numbers) -> float | None:
        """Return the logarithm, so that larger is better; None where nothing was measured."""
        value = self.of(one)
        if value is None or value <= 0:
            return None
        return math.log(value) if self.larger_is_better else -math.log(value)


def _p(name: str, share: str) -> Callable[[Numbers], float | None]:
    def of(one: Numbers) -> float | None:
        found: Spread | None = getattr(one, name)
        return None if found is None else max(LEAST_S, float(getattr(found, share)))

    return of


_TIME_SD = PRIOR_SD["e2el_p99_ms"]
OBJECTIVES: Mapping[str, Objective] = {
    one.name: one
    for one in (
        Objective(
            "goodput",
            "goodput",
            larger_is_better=True,
            of=lambda one: one.goodput_rps,
            prior_sd=PRIOR_SD["goodput_rps"],
        ),
        Objective(
            "throughput",
            "output tokens per second",
            larger_is_better=True,
            of=lambda one: one.output_tokens_per_s,
            prior_sd=PRIOR_SD["goodput_rps"],
        ),
        Objective("e2el", "p99 E2EL", False, _p("e2el_s", "p99"), _TIME_SD),
        Objective("tpot", "p95 TPOT", False, _p("tpot_s", "p95"), PRIOR_SD["tpot_p95_ms"]),
        Objective("ttft", "p95 TTFT", False, _p("ttft_s", "p95"), _TIME_SD),
    )
}
GOODPUT, TAIL = OBJECTIVES["goodput"], OBJECTIVES["e2el"]


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Read ``goodput`` or ``goodput,tpot``: one aim, or two for a Pareto front."""
    names = [name.strip() for name in text.split(",")]
    known = ", ".join(OBJECTIVES)
    for name in names:
        if name not in OBJECTIVES:
            raise UsageError(f"--objective {name!r} is not known", hint=f"Choose of {known}.")
    if len(set(names)) != len(names) or len(names) > 2:
        raise UsageError(f"--objective {text}: one or two aims", hint=f"Choose of {known}.")
    return tuple(OBJECTIVES[name] for name in names)


def gains(objectives: Sequence[Objective], one: Numbers, knee: Numbers) -> tuple[float, ...] | None:
    """Return how much better than the knee a measurement is, per aim; None where that is unknown.

    Beside goodput the tail counts a little, so that one number orders configurations as the knee's
    objective does.
    """
    found = []
    for objective in objectives:
        gain = _gain(objective, one, knee)
        if gain is None:
            return None
        if objective is GOODPUT:
            tail = _gain(TAIL, one, knee) or 0.0
            gain += TAIL_WORTH * max(-1.0, min(1.0, tail / math.log(2)))
        found.append(gain)
    return tuple(found)


def deficit(one: float, knee: float) -> float:
    """Return how much of the knee's attainment is missing; at most 0 keeps the constraint."""
    return knee - EQUAL_ATTAINMENT - one


def _gain(objective: Objective, one: Numbers, knee: Numbers) -> float | None:
    here, there = objective.log(one), objective.log(knee)
    return None if here is None or there is None else here - there


@dataclass(frozen=True, slots=True)
class Ratio:
    """Refined / knee of one aim, with its 95 % interval; above 1 is more, not better."""

    name: str
    value: float
    low: float
    high: float
    larger_is_better: bool
    replayed: float
    """As the replays alone showed it, luck included."""

    sureness: float
    """How probable it is that the refined one is better."""

    kept: float
    """How probable it is that at least nothing is lost: NOT_LOST of it, or GOOD_TAIL of a time."""

    @property
    def is_better(self) -> bool:
        return self.low > 1 if self.larger_is_better else self.high < 1

    def __str__(self) -> str:
        shown = (f"{100 * (one - 1):+.1f}" for one in (self.value, self.low, self.high))
        value, low, high = shown
        return f"{OBJECTIVES[self.name].text} {value} % ({low} to {high} %)"


@dataclass(frozen=True, slots=True)
class Proof:
    """What is gained for certain, and how probable that is."""

    of: str
    """Name of the aim, or MEMORY."""

    sureness: float


@dataclass(frozen=True, slots=True)
class Paired:
    """What the pairs say: refined / knee of every aim."""

    ratios: dict[str, Ratio]
    proven: Proof | None
    """None keeps the knee."""

    pairs: int


def ratio(
    objective: Objective,
    pairs: Sequence[tuple[Numbers, Numbers]],
    foreseen: Sequence[float] = (),
    lucks: Sequence[float] = (),
) -> Ratio | None:
    """Return refined / knee over (knee, refined) pairs of replays made one after the other.

    Student's t over the pairs' log ratios; how far two replays differ is pooled with what is usual
    (``uncertainty.PRIOR_SD``), so that two pairs that happen to agree prove nothing. ``foreseen``
    holds the twin's log gains for the whole of the traffic: the interval covers these too, because
    the windows that were replayed are only a part of it. ``lucks`` (per pair, log) is what the
    machine's speed and the windows did for the refined one more than for the knee: taken out. Where
    that is more than MOST_LUCK it rests on the twin alone, and the interval covers what the replays
    say without it as well. None where a pair has no such number.
    """
    found = [_gain(objective, refined, knee) for knee, refined in pairs]
    raw = np.array([one for one in found if one is not None])
    if len(raw) < len(found) or not len(raw):
        return None
    logs = raw - np.asarray(lucks) if len(lucks) else raw
    middle, replayed = float(logs.mean()), float(raw.mean())
    says = [_mean_of(logs, objective)]
    if abs(middle - replayed) > MOST_LUCK:
        says.append(_mean_of(raw, objective))
    if len(foreseen):
        ends = np.quantile(foreseen, (0.025, 0.975)).tolist()
        says.append((ends[0], ends[1], np.asarray(foreseen)))
    low, high = min(one[0] for one in says), max(one[1] for one in says)
    lost = math.log(NOT_LOST) if objective.larger_is_better else -math.log(GOOD_TAIL)
    sureness, kept = (
        min(float((draws > limit).mean()) for _, _, draws in says) for limit in (0.0, lost)
    )
    sign = 1 if objective.larger_is_better else -1
    return Ratio(
        objective.name,
        math.exp(sign * middle),
        math.exp(low if sign > 0 else -high),
        math.exp(high if sign > 0 else -low),
        objective.larger_is_better,
        math.exp(sign * replayed),
        sureness,
        kept,
    )


def _mean_of(logs: Floats, objective: Objective) -> tuple[float, float, Floats]:
    """Return the 95 % interval of the mean by Student's t, and draws of it."""
    freedom = PRIOR_WEIGHT + len(logs) - 1
    prior = PRIOR_WEIGHT * (PAIR_SHARE * objective.prior_sd) ** 2
    sd = math.sqrt((prior + float(((logs - logs.mean()) ** 2).sum())) / freedom / len(logs))
    middle, reach = float(logs.mean()), student_t_975(freedom) * sd
    draws: Floats = middle + sd * np.random.default_rng(0).standard_t(freedom, DRAWS)
    return middle - reach, middle + reach, draws


def proof(
    objective: Objective, ratios: Mapping[str, Ratio], *, frees_memory: bool = False
) -> Proof | None:
    """Return what proves a gain, None where nothing does.

    The aim itself must be better for certain, and goodput not lost. Where the aim is goodput, a
    shorter tail at no less goodput is a gain too; and so is less memory, where neither is lost.
    """
    goodput, tail = ratios.get(GOODPUT.name), ratios.get(TAIL.name)
    if goodput is None or goodput.low < NOT_LOST:
        return None
    aims = (GOODPUT, TAIL) if objective is GOODPUT else (objective,)
    for aim in aims:
        found = ratios.get(aim.name)
        if found is not None and found.is_better:
            return Proof(found.name, found.sureness)
    if frees_memory and tail is not None and tail.high <= GOOD_TAIL:
        return Proof(MEMORY, min(goodput.kept, tail.kept))
    return None


@dataclass(frozen=True, slots=True)
class Told:
    """A trial that has ended with numbers."""

    configuration: dict[str, Any]
    gains: tuple[float, ...]
    deficit: float
    source: str
    """``engine``; ``profile`` where it came from the profile's curve."""


def front(values: Sequence[Sequence[float]]) -> list[int]:
    """Return which points no other is better than in every aim.

    >>> front([(1.0, 0.0), (0.0, 1.0), (0.0, 0.5)])
    [0, 1]
    """
    return [
        i
        for i, one in enumerate(values)
        if not any(
            all(b >= a for a, b in zip(one, other, strict=True)) and tuple(other) != tuple(one)
            for other in values
        )
    ]
