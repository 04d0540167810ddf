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
from tuner.twin.front_end import FrontEnd
from tuner.twin.simulation import Clock, EngineShape, Traffic, TwinReplay, met, simulate

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


# Loads


@dataclass(frozen=True, slots=True)
class Loads:
    """The recorded traffic, and the same with headroom."""

    today: Traffic
    raised: tuple[Traffic, ...] = ()
    """The same load several times, draw by draw in turn; none without headroom."""

    headroom: float = 1.0
    rate_rps: float = 0.0
    """At which requests arrive at the recorded load."""

    def of(self, draw: int) -> list[tuple[Traffic, float]]:
        """Return the traffic of a draw at each load, and its rate."""
        loads = [(self.today, self.rate_rps)]
        if self.raised:
            raised = self.raised[draw % len(self.raised)]
            loads.append((raised, self.headroom * self.rate_rps))
        return loads


def loads_of(today: Traffic, headroom: float, *, seed: int, rate_rps: float = 0.0) -> Loads:
    """Return the recorded traffic and the same with headroom; without any above 1."""
    if headroom <= 1 or not len(today):
        return Loads(today, rate_rps=rate_rps)
    rngs = [np.random.default_rng((seed, number)) for number in range(JITTERS)]
    return Loads(today, tuple(scaled(today, headroom, rng) for rng in rngs), headroom, rate_rps)


def scaled(traffic: Traffic, factor: float, rng: np.random.Generator) -> Traffic:
    """Return ``factor`` times the requests (``traffic.load``)."""
    rows, arrival_s = scaled_rows(traffic.arrival_s, factor, rng)
    order = np.argsort(arrival_s, kind="stable")
    return replace(traffic.rows(rows[order]), arrival_s=arrival_s[order])


# Draws


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
        seen = np.concatenate(replays)
        squares = sum(len(each) * math.log(each.mean()) ** 2 for each in replays if len(each))
        size = len(self.slowdown)
        variance = (size * self.speed_sd**2 + squares) / (size + len(seen))
        both = np.concatenate((self.slowdown, seen))
        return replace(self, slowdown=both, speed_sd=math.sqrt(variance))


def slowdowns(log: IterationLog, law: StepLaw) -> Floats:
    """Return how much slower than the law the machine was, stalls included: measured ÷ lawful time
    of the iterations that began in each GRID_S in which any did."""
    _, first = np.unique(log["start_s"] // GRID_S, return_index=True)
    if not len(log):
        return np.zeros(0)
    took_s, lawful_s = (
        np.add.reduceat(each, first) for each in (log["duration_s"], law.durations_s(log))
    )
    return np.asarray(took_s / np.maximum(lawful_s, 1e-9))


class Draw(NamedTuple):
    """One run that may come."""

    law: StepLaw
    front_end: FrontEnd | None = None
    clock: Clock | None = None
    """Of a machine that is not always as fast as its law, its start included."""


def draws_of(laws: Sequence[StepLaw], machine: Machine, traffics: Sequence[Traffic]) -> list[Draw]:
    """Return a run of a fresh engine for each law, for as long as any of this traffic arrives.

    A machine whose speed varies less while it is measured than the one that START_SD is of is taken
    to differ less between starts, in proportion, and one that varies more to differ more.
    """
    begin_s = min(float(each.arrival_s[0]) for each in traffics)
    end_s = max(float(each.arrival_s[-1]) for each in traffics)
    rng, slowdown = np.random.default_rng(0), machine.slowdown
    start_sd = START_SD * float(np.clip(machine.speed_sd / SHARED_SPEED_SD, *BELIEVED_SHARES))
    if machine.front_end is not None:  # how it slows an engine was seen in another start
        start_sd *= math.sqrt(2)
    block = round(SLOWDOWN_BLOCK_S / GRID_S)
    blocks = math.ceil((end_s - begin_s) / SLOWDOWN_BLOCK_S) + 1
    result = []
    for law in laws:
        start = math.exp(start_sd * rng.standard_normal())
        rows = rng.integers(0, len(slowdown), blocks)[:, None] + np.arange(block)
        factors = start * slowdown[rows.ravel() % len(slowdown)]
        clock = Clock.of_slowdown(factors, begin_s=begin_s, grid_s=GRID_S)
        result.append(Draw(law, machine.front_end, clock))
    return result


# Samples


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
        values = self.column(name, cap, raised=raised)
        known = values[np.isfinite(values)]
        if not len(known):
            return None
        low, high = np.quantile(known, ENDS, method="weibull").tolist()
        return low, high

    def intervals(
        self, cap: int, *, raised: bool = False, names: Sequence[str] = ON_CURVE
    ) -> dict[str, Range]:
        """Return the 95 % interval of each number at a cap, times in milliseconds."""
        result = {}
        for name in names:
            if (ends := self.ends(name, cap, raised=raised)) is not None:
                result[in_ms(name)] = scale_of(name) * ends[0], scale_of(name) * ends[1]
        return result


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
    rows = []
    for number, draw in enumerate(draws):
        row = []
        for traffic, rate_rps in loads.of(number):
            replay, values, of_load = None, np.zeros(0), list[Floats]()
            counted = traffic.arrival_s >= counted_from_s
            for cap in caps:
                # above a cap that never binds it is the same
                if replay is None or replay.running_peak >= replay.max_num_seqs:
                    replay = simulate(
                        traffic, draw.law, shape, max_num_seqs=cap, clock=draw.clock,
                        front_end=draw.front_end,
                    )  # fmt: skip
                    good = met(traffic, replay, slo)[counted]
                    share = float(good.mean()) if len(good) else 1.0
                    values = np.array([share, rate_rps * share, *_engines_own(replay)])
                    for name in TIMES:
                        times_s = getattr(replay, f"{name}_s")[counted]
                        values = np.append(values, _statistics(times_s[~np.isnan(times_s)]))
                of_load.append(values)
            row.append(of_load)
        rows.append(row)
    return Samples(caps, np.array(rows))


def _engines_own(replay: TwinReplay) -> list[float]:
    usage = [replay.kv_usage_mean, replay.kv_usage_peak]
    return [float(replay.preemptions.sum()), float(replay.running_peak), *usage]


def _statistics(values: Floats) -> list[float]:
    if not len(values):
        return [math.nan] * (1 + len(SHARES))
    return [float(values.mean()), *np.quantile(values, tuple(SHARES.values())).tolist()]
