"""What draws predict of every cap at both loads: one array, of which every interval is a quantile.

A draw is a run that the measurements make as likely as any other: its own step-time law and copy of
the headroom load, and, where a fresh engine is asked about, its own engine start and the machine's
speed as it was measured, in another order, stalls included. Speed is drawn for iterations, never
for requests: a queue multiplies it. A draw is the same for every cap and load, so differences
between them are paired. Pure, seeded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.records import e2el_s, met, queue_s, ttft_s
from tuner.traffic.constants import (
    BELIEVED_SHARES,
    ENDS,
    GRID_S,
    JITTERS,
    SHARED_SPEED_SD,
    SLOWDOWN_BLOCK_S,
    START_SD,
)
from tuner.traffic.load import scaled_rows
from tuner.traffic.requirements import KV, TIMES
from tuner.traffic.slo import Slo
from tuner.twin.simulation import Clock, EngineShape, FrontEnd, Traffic, clock_of, simulate

SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
NUMBERS = (
    "attainment", "goodput_rps", "preemptions", "running_peak", f"{KV}_mean", f"{KV}_peak",
    *(f"{name}_{statistic}_s" for name in TIMES for statistic in ("mean", *SHARES)),
)  # fmt: skip
"""Numbers of a sample; NaN where nothing came to that."""

ON_CURVE = (
    "attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s", "queue_p95_s", "kv_cache_usage_peak",
    "preemptions",
)  # fmt: skip
"""Numbers of every cap of a curve."""

Range = tuple[float, float]


class Interval(NamedTuple):
    """A number with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Loads:
    """The recorded traffic, and the same with headroom."""

    today: Traffic
    raised: tuple[Traffic, ...] = ()
    """The same load several times, draw by draw in turn; none without headroom."""

    headroom: float = 1.0
    rate_rps: float = 0.0
    """At which requests arrive at the recorded load."""


def loads_of(today: Traffic, headroom: float, *, seed: int, rate_rps: float = 0.0) -> Loads:
    """Return the recorded traffic and the same with headroom; without any above 1."""
    copies = range(JITTERS if headroom > 1 and len(today) else 0)
    rngs = (np.random.default_rng((seed, copy)) for copy in copies)
    return Loads(today, tuple(scaled(today, headroom, rng) for rng in rngs), headroom, rate_rps)


def scaled(traffic: Traffic, factor: float, rng: np.random.Generator) -> Traffic:
    """Return ``factor`` times the requests (``traffic.load``)."""
    rows, arrival_s = scaled_rows(traffic.arrival_s, factor, rng)
    order = np.argsort(arrival_s, kind="stable")
    return replace(traffic.rows(rows[order]), arrival_s=arrival_s[order])


@dataclass(frozen=True, slots=True)
class Machine:
    """Knowledge of a machine from its runs, besides the law."""

    slowdown: Floats = field(default_factory=lambda: np.ones(1))
    """Measured / lawful time of all that was replayed, stalls included, a value each GRID_S."""

    speed_sd: float = SHARED_SPEED_SD
    """Standard deviation of its log speed over minutes."""

    front_end: FrontEnd | None = None

    def after(self, replays: Sequence[Floats]) -> "Machine":
        """Return what is known after replays on another engine that were so much slower than the
        law, a value each GRID_S: how far their speeds are from it counts by the time they took."""
        seen, size = np.concatenate(replays), len(self.slowdown)
        squares = sum(len(each) * math.log(each.mean()) ** 2 for each in replays if len(each))
        variance = (size * self.speed_sd**2 + squares) / (size + len(seen))
        both = np.concatenate((self.slowdown, seen))
        return replace(self, slowdown=both, speed_sd=math.sqrt(variance))


def slowdowns(log: IterationLog, law: StepLaw) -> Floats:
    """Return how much slower than the law the machine was, stalls included: measured ÷ lawful time
    of the iterations that began in each GRID_S in which any did."""
    _, first = np.unique(log["start_s"] // GRID_S, return_index=True)
    if not len(log):
        return np.zeros(0)
    times_s = np.array([log["duration_s"], law.durations_s(log)])
    took_s, lawful_s = np.add.reduceat(times_s, first, axis=1)
    return np.asarray(took_s / np.maximum(lawful_s, 1e-9))


class Draw(NamedTuple):
    """One run that may come."""

    law: StepLaw
    front_end: FrontEnd | None = None
    clock: Clock | None = None
    """Of a machine that is not always as fast as its law, its start included."""


def draws_of(laws: Sequence[StepLaw], machine: Machine, traffic: Traffic) -> list[Draw]:
    """Return a run of a fresh engine for each law, for as long as this traffic arrives.

    A machine whose speed varies less while it is measured than the one that START_SD is of is taken
    to differ less between starts, in proportion, and one that varies more to differ more.
    """
    rng, slowdown = np.random.default_rng(0), machine.slowdown
    start_sd = START_SD * float(np.clip(machine.speed_sd / SHARED_SPEED_SD, *BELIEVED_SHARES))
    if machine.front_end is not None:  # how it slows an engine was seen in another start
        start_sd *= math.sqrt(2)
    block = round(SLOWDOWN_BLOCK_S / GRID_S)
    blocks = math.ceil(np.ptp(traffic.arrival_s) / SLOWDOWN_BLOCK_S) + 1
    known_s = traffic.arrival_s[0] + GRID_S * np.arange(blocks * block + 1)
    result = []
    for law in laws:
        start = math.exp(start_sd * rng.standard_normal())
        rows = rng.integers(0, len(slowdown), blocks)[:, None] + np.arange(block)
        factors = start * slowdown[rows.ravel() % len(slowdown)]
        result.append(Draw(law, machine.front_end, clock_of(known_s, GRID_S / factors)))
    return result


@dataclass(frozen=True, slots=True)
class Samples:
    """What every draw predicts of every cap."""

    caps: tuple[int, ...]
    values: Floats
    """[draw, load, cap, number of NUMBERS]; a second load where there is headroom."""

    @property
    def has_headroom(self) -> bool:
        return bool(self.values.shape[1] > 1)

    def column(self, name: str, cap: int, *, raised: bool = False) -> Floats:
        """Return a number of a cap, draw by draw."""
        place, number = self.caps.index(cap), NUMBERS.index(name)
        return np.asarray(self.values[:, int(raised), place, number])

    def middle(self, name: str, cap: int, *, raised: bool = False) -> float:
        """Return the median of a number over the draws; NaN where no draw came to that."""
        column = self.column(name, cap, raised=raised)
        known = column[np.isfinite(column)]
        return float(np.median(known)) if len(known) else math.nan

    def ends(self, name: str, cap: int, *, raised: bool = False) -> Range | None:
        """Return the ends of 95 %, by order statistics at p (n + 1): the usual quantiles cover less
        than they claim where draws are few. None where no draw came to that."""
        column = self.column(name, cap, raised=raised)
        known = column[np.isfinite(column)]
        if not len(known):
            return None
        low, high = np.quantile(known, ENDS, method="weibull").tolist()
        return low, high

    def intervals(
        self, cap: int, *, raised: bool = False, names: Sequence[str] = ON_CURVE
    ) -> dict[str, Range]:
        """Return the 95 % interval of each number at a cap, times in milliseconds."""
        every = {name: self.ends(name, cap, raised=raised) for name in names}
        return {
            in_ms(name): (scale_of(name) * ends[0], scale_of(name) * ends[1])
            for name, ends in every.items()
            if ends is not None
        }


def scale_of(name: str) -> float:
    """Return by what a number is multiplied where times are in milliseconds."""
    return 1e3 if name.endswith("_s") else 1.0


def in_ms(name: str) -> str:
    """Return the name of a number where times are in milliseconds."""
    return f"{name.removesuffix('_s')}_ms" if name.endswith("_s") else name


def ask(  # noqa: PLR0913 - the question
    draws: Sequence[Draw],
    loads: Loads,
    caps: Sequence[int],
    shape: EngineShape,
    slo: Slo,
    *,
    counted_from_s: float = -math.inf,
) -> Samples:
    """Return what these draws predict of every cap at both loads, of the requests that arrive from
    a time on."""
    caps = tuple(sorted(caps))
    values = np.empty((len(draws), 2 if loads.raised else 1, len(caps), len(NUMBERS)))
    for number, (law, front_end, clock) in enumerate(draws):
        raised = loads.raised[number % len(loads.raised) :][:1] if loads.raised else ()
        for row, traffic in zip(values[number], (loads.today, *raised), strict=True):
            counted, unbound = traffic.arrival_s >= counted_from_s, False
            for place, cap in enumerate(caps):
                if unbound:  # above a cap that never binds it is the same
                    row[place] = row[place - 1]
                    continue
                replay = simulate(
                    traffic, law, shape, max_num_seqs=cap, clock=clock, front_end=front_end
                )
                unbound = replay.running_peak < cap
                rows = replay.requests[counted]
                times_s = ttft_s(rows), rows["tpot_s"], e2el_s(rows), queue_s(rows)
                row[place] = [
                    met(rows, slo).mean() if len(rows) else 1.0, math.nan, replay.preemptions,
                    replay.running_peak, replay.kv_usage_mean, replay.kv_usage_peak,
                    *(value for each_s in times_s for value in _statistics(each_s)),
                ]  # fmt: skip
    rates_rps = loads.rate_rps * np.array([1.0, loads.headroom])[: values.shape[1]]
    values[..., 1] = rates_rps[:, None] * values[..., 0]
    return Samples(caps, values)


def _statistics(values: Floats) -> list[float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return [math.nan] * (1 + len(SHARES))
    return [float(known.mean()), *np.quantile(known, tuple(SHARES.values())).tolist()]


def t_quantile(freedom: float) -> float:
    """Return the end of a two-sided 95 % interval of Student's t.

    >>> round(t_quantile(3), 3)
    3.182
    """
    from scipy import special  # noqa: PLC0415 - 0.6 s, and only what states an interval needs it

    return float(special.stdtrit(freedom, 0.975))


def t_share(freedom: float, value: float) -> float:
    """Return how probable it is that Student's t is smaller."""
    from scipy import special  # noqa: PLC0415 - see t_quantile

    return float(special.stdtr(freedom, value))
