"""When a gain over the knee is proven: by pairs of replays in turns, and the twin. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.refine.objective import (
    GOODPUT,
    LEAST_ATTAINMENT,
    OBJECTIVES,
    TAIL,
    Numbers,
    Objective,
    gain,
)
from tuner.scheduler.state import Floats
from tuner.uncertainty import EQUAL_ATTAINMENT, GOOD_TAIL, PRIOR_WEIGHT, student_t_975

PAIR_SHARE = 0.5
"""How far the two replays of a pair differ, which follow each other, of how far any two do."""

MEMORY = "memory"
"""Of a proof: serves alike with less of it."""

DRAWS = 4000

MOST_LUCK = 0.30
"""Log ratio. Windows may well gain so much less than all of the traffic does, and the twin is right
about it; about more it was wrong where next to nothing was served in time (docs/experiments)."""

TWIN_OFF = 0.2
"""How far off the twin is when it says what one configuration gains over another, as a share of
that: a standard deviation (docs/experiments)."""

_Says = tuple[float, float, Floats]
"""A 95 % interval, and draws of what it is of."""

NOT_LOST = 1 - EQUAL_ATTAINMENT
"""Goodput, as a share of the knee's, that no gain may cost."""


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
    lucks: Sequence[tuple[float, float]] = (),
) -> Ratio | None:
    """Return refined / knee over (knee, refined) pairs of replays made one after the other.

    Student's t over the pairs' log ratios, of shares over what each adds to the ratio of all; how
    far two replays differ is pooled with what is usual (``uncertainty.PRIOR_SD``; of shares, of all
    requests), so that two pairs that happen to agree prove nothing. ``foreseen`` holds the twin's
    log gains for the whole of the traffic: the interval covers these too, because the windows that
    were replayed are only a part of it. ``lucks`` (per pair the knee's and the refined one's, as
    ``refine.luck`` has them) are taken out. Where that changes more than MOST_LUCK the ratio rests
    on the twin alone, and the interval covers what the replays say without it as well. Of both the
    twin may be off by TWIN_OFF, the same in every pair. None where a pair has no such number.
    """
    no_luck = [(0.0, 0.0)] * len(pairs)
    lucks = lucks or no_luck
    raw, logs = _logs(objective, pairs, no_luck), _logs(objective, pairs, lucks)
    if raw is None or logs is None:
        return None
    middle, replayed = float(logs.mean()), float(raw.mean())
    off = _off(objective, pairs, lucks, logs, sds=student_t_975(_freedom(logs)))
    says = [_mean_of(logs, _prior_sd(objective, pairs, lucks), off)]
    taken = middle - replayed
    if objective.is_share:
        taken = min(taken, _share_taken(pairs, lucks), key=abs)
    if abs(taken) > MOST_LUCK:
        says.append(_mean_of(raw, _prior_sd(objective, pairs, no_luck)))
    if len(foreseen):
        says.append(_by_twin(foreseen))
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


def _logs(
    objective: Objective,
    pairs: Sequence[tuple[Numbers, Numbers]],
    lucks: Sequence[tuple[float, float]],
) -> Floats | None:
    """Return the log ratio of each pair without its luck, so that their mean is that of all; None
    where there is no pair, or one has no such number.

    Of shares it is the ratio of the means and what each pair adds to it (a ratio estimator:
    Cochran, Sampling Techniques, chapter 6): a replay in which a neighbour left nothing to be
    served is one of several, and no logarithm of 0.
    """
    if not pairs:
        return None
    if objective.is_share:
        shares = _evened(pairs, lucks)
        means = np.clip(shares.mean(axis=0), LEAST_ATTAINMENT, 1.0)
        parts = (shares - shares.mean(axis=0)) / means
        whole: Floats = np.log(means[1] / means[0]) + parts[:, 1] - parts[:, 0]
        return whole
    found = [
        gain(objective, refined, knee, luck)
        for (knee, refined), luck in zip(pairs, lucks, strict=True)
    ]
    known = [one for one in found if one is not None]
    return np.array(known) if len(known) == len(found) else None


def _share_taken(
    pairs: Sequence[tuple[Numbers, Numbers]], lucks: Sequence[tuple[float, float]]
) -> float:
    """Return how much of the knee's share was taken out as luck of the refined one's, net. Beside
    the ratio's own change: of little that was served ratios run away, and of shares that are far
    apart such differences do; neither is a large correction where the other is not."""
    knee, refined = np.mean(lucks, axis=0)
    served = max(LEAST_ATTAINMENT, float(_evened(pairs, lucks)[:, 0].mean()))
    return float(knee - refined) / served


def _evened(
    pairs: Sequence[tuple[Numbers, Numbers]], lucks: Sequence[tuple[float, float]]
) -> Floats:
    """Return attainment without luck, (pairs, 2): the knee's and the refined one's."""
    attained = np.array([[one.attainment for one in pair] for pair in pairs])
    evened: Floats = attained - np.array(lucks)
    return evened


def _off(
    objective: Objective,
    pairs: Sequence[tuple[Numbers, Numbers]],
    lucks: Sequence[tuple[float, float]],
    logs: Floats,
    *,
    sds: float,
) -> tuple[float, float]:
    """Return how far below and above the mean comes to lie where all luck is less or more by so
    many standard deviations: both sides' together, because one law is what is wrong of them. Of
    little that is left to a knee a little more or less of it does not weigh alike."""
    ends = [0.0]
    for more in (1 - sds * TWIN_OFF, 1 + sds * TWIN_OFF):
        scaled = _logs(objective, pairs, [(knee * more, other * more) for knee, other in lucks])
        if scaled is not None:
            ends.append(float(scaled.mean() - logs.mean()))
    return -min(ends), max(ends)


def _prior_sd(
    objective: Objective,
    pairs: Sequence[tuple[Numbers, Numbers]],
    lucks: Sequence[tuple[float, float]],
) -> float:
    """Return how far the two replays of a pair usually differ, as a logarithm: of shares it is so
    much of all requests, so the more of themselves the less the knee serves."""
    usual = PAIR_SHARE * objective.prior_sd
    if not objective.is_share:
        return usual
    return usual / float(np.clip(_evened(pairs, lucks)[:, 0].mean(), LEAST_ATTAINMENT, 1.0))


def _mean_of(logs: Floats, prior_sd: float, off: tuple[float, float] = (0.0, 0.0)) -> _Says:
    """Return what the mean may be by Student's t; ``off`` is how far below and above an error that
    all of them share may move it, with the same certainty."""
    freedom = _freedom(logs)
    prior = PRIOR_WEIGHT * prior_sd**2
    own = (prior + float(((logs - logs.mean()) ** 2).sum())) / freedom / len(logs)
    t = student_t_975(freedom)
    middle = float(logs.mean())
    below, above = (math.hypot(t * math.sqrt(own), reach) for reach in off)
    drawn = np.random.default_rng(0).standard_t(freedom, DRAWS) / t
    draws: Floats = middle + np.where(drawn < 0, below, above) * drawn
    return middle - below, middle + above, draws


def _freedom(logs: Floats) -> float:
    return PRIOR_WEIGHT + len(logs) - 1


def _by_twin(foreseen: Sequence[float]) -> _Says:
    """Return what the twin says, by its draws, each of which may be off by a share of itself."""
    drawn = np.resize(np.asarray(foreseen), DRAWS)
    off: Floats = 1 + TWIN_OFF * np.random.default_rng(0).standard_normal(DRAWS)
    draws: Floats = drawn * off
    low, high = np.quantile(draws, (0.025, 0.975)).tolist()
    return low, high, draws


def proving(objective: Objective) -> tuple[Objective, ...]:
    """Return the aims of which any that is better proves a gain."""
    return (GOODPUT, TAIL) if objective is GOODPUT else (objective,)


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
    for aim in proving(objective):
        found = ratios.get(aim.name)
        if found is not None and found.is_better:
            return Proof(found.name, found.sureness)
    if frees_memory and tail is not None and tail.high <= GOOD_TAIL:
        return Proof(MEMORY, min(goodput.kept, tail.kept))
    return None
