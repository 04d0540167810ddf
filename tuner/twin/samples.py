"""What draws predict of every cap at both loads: one array, of which every interval is a quantile.

A draw is a run that the measurements make as likely as any other: its own step-time law and copy of
the headroom load, and, where a fresh engine is asked about, its own engine start, the machine's
speed as it was measured in another order, stalls included, and a factor for what the model does not
know of TTFT and of TPOT. Speed is drawn for iterations, never for requests: a queue multiplies it.
A draw is the same for every cap and load, so differences between them are paired. Pure, seeded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.numbers import kv_cache_usage, spread
from tuner.traffic.constants import (
    BELIEVED_WINDOWS,
    ENDS,
    GRID_S,
    JITTER_S,
    JITTERS,
    LEAST_BELIEVED,
    SHARED_SPEED_SD,
    SLOWDOWN_BLOCK_S,
    START_SD,
    TPOT_SD,
    TTFT_SD,
)
from tuner.traffic.requirements import TIMES
from tuner.traffic.slo import Slo
from tuner.twin.front_end import FrontEnd
from tuner.twin.simulation import Clock, EngineShape, Traffic, TwinReplay, attainment, simulate

SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
NUMBERS = (
    "attainment", "preemptions", "running_peak",
    "kv_cache_usage_mean", "kv_cache_usage_p99", "kv_cache_usage_peak",
    *(f"{name}_{statistic}_s" for name in TIMES for statistic in ("mean", *SHARES)),
)  # fmt: skip
"""Numbers of a sample; NaN where nothing came to that. ``itl`` and the p99 of the KV cache are
known only of replays with a log."""

ON_CURVE = (
    "attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s", "queue_p95_s", "kv_cache_usage_peak",
    "preemptions",
)  # fmt: skip
"""Numbers of every cap of a curve."""

AS_SHARES = ("goodput_rps", "tpot_p95_s", "e2el_p99_s")
"""Numbers whose changes are shares."""

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

    def of(self, draw: int) -> list[Traffic]:
        """Return the traffic of a draw at each load."""
        return [self.today, *([self.raised[draw % len(self.raised)]] if self.raised else [])]


def loads_of(today: Traffic, headroom: float, *, seed: int, rate_rps: float = 0.0) -> Loads:
    """Return the recorded traffic and the same with headroom; without any above 1."""
    if headroom <= 1 or not len(today):
        return Loads(today, rate_rps=rate_rps)
    rngs = [np.random.default_rng((seed, number)) for number in range(JITTERS)]
    return Loads(today, tuple(scaled(today, headroom, rng) for rng in rngs), headroom, rate_rps)


def scaled(traffic: Traffic, factor: float, rng: np.random.Generator) -> Traffic:
    """Return ``factor`` times the requests: below 1 a random share of them, above 1 with copies
    within JITTER_S of their original and within the time of the traffic."""
    size = len(traffic)
    times, share = divmod(factor, 1.0)
    place = rng.random(size)
    if factor < 1:
        return traffic.rows(np.flatnonzero(place < factor))
    more = np.sort(np.argsort(place)[: round(size * share)])
    copies = np.concatenate((np.repeat(np.arange(size), int(times) - 1), more))
    rows = np.concatenate((np.arange(size), copies))
    arrival_s = traffic.arrival_s[rows]
    first_s, last_s = float(arrival_s[0]), float(arrival_s[size - 1])
    arrival_s[size:] += rng.uniform(-JITTER_S, JITTER_S, len(copies))
    # mirrored at the ends of the traffic: clipping would pile copies up there
    arrival_s = np.where(arrival_s < first_s, 2 * first_s - arrival_s, arrival_s)
    arrival_s = np.where(arrival_s > last_s, 2 * last_s - arrival_s, arrival_s)
    arrival_s = np.maximum(arrival_s, first_s)
    order = np.argsort(arrival_s, kind="stable")
    return replace(traffic.rows(rows[order]), arrival_s=arrival_s[order])


# Draws


@dataclass(frozen=True, slots=True)
class Machine:
    """Knowledge of a machine from its runs, besides the law."""

    slowdown: Floats = field(default_factory=lambda: np.ones(0))
    """Measured / lawful time of all that was replayed, stalls included, a value each GRID_S; none
    where nothing is known."""

    speed_sd: float = SHARED_SPEED_SD
    """Standard deviation of its log speed over minutes."""

    ttft_errors: tuple[float, ...] = ()
    tpot_errors: tuple[float, ...] = ()
    """Log of measured / predicted mean, of each window that the model had not seen."""

    front_end: FrontEnd | None = None

    @property
    def believed(self) -> float:
        """The share of the believed deviations that holds for this machine."""
        return min(1.0, max(LEAST_BELIEVED, self.speed_sd / SHARED_SPEED_SD))


def slowdowns(log: IterationLog, law: StepLaw) -> Floats:
    """Return how much slower than the law the machine was, stalls included: measured ÷ lawful time
    of the iterations that began in each GRID_S; none without iterations."""
    if not len(log):
        return np.zeros(0)
    place = (log["start_s"] // GRID_S).astype(np.int64)
    measured_s = np.bincount(place - place[0], log["duration_s"])
    lawful_s = np.bincount(place - place[0], law.durations_s(log))
    known = np.flatnonzero(lawful_s > 0)
    return np.asarray(
        np.interp(np.arange(len(lawful_s)), known, measured_s[known] / lawful_s[known])
    )


class Draw(NamedTuple):
    """One run that may come."""

    law: StepLaw
    front_end: FrontEnd | None = None
    clock: Clock | None = None
    """Of a machine that is not always as fast as its law, its start included."""

    ttft_factor: float = 1.0
    tpot_factor: float = 1.0

    def replay(
        self, traffic: Traffic, shape: EngineShape, *, max_num_seqs: int, log: bool = False
    ) -> TwinReplay:
        """Return what this run would see of the traffic."""
        result = simulate(
            traffic, self.law, shape, max_num_seqs=max_num_seqs, clock=self.clock,
            front_end=self.front_end, log=log,
        )  # fmt: skip
        return lengthened(result, traffic, self.ttft_factor, self.tpot_factor)


def lengthened(
    replay: TwinReplay, traffic: Traffic, ttft_factor: float, tpot_factor: float
) -> TwinReplay:
    """Return the replay with every request's first token and every later one so much later."""
    if ttft_factor == tpot_factor == 1.0:
        return replay
    ttft_s, tpot_s = ttft_factor * replay.ttft_s, tpot_factor * replay.tpot_s
    decoding_s = np.nan_to_num(tpot_s) * (traffic.output_length - 1)
    e2el_s = np.where(np.isnan(replay.e2el_s), np.nan, ttft_s + decoding_s)
    return replace(replay, ttft_s=ttft_s, tpot_s=tpot_s, e2el_s=e2el_s)


def draws_of(laws: Sequence[StepLaw], machine: Machine, traffics: Sequence[Traffic]) -> list[Draw]:
    """Return a run of a fresh engine for each law, for as long as any of this traffic arrives."""
    begin_s = min((float(each.arrival_s[0]) for each in traffics), default=0.0)
    end_s = max((float(each.arrival_s[-1]) for each in traffics), default=0.0)
    rng = np.random.default_rng(0)
    # how a front end slows an engine was seen in one start, and the one to come is another
    start_sd = machine.believed * START_SD * math.sqrt(1 if machine.front_end is None else 2)
    count = math.ceil((end_s - begin_s) / GRID_S) + 1
    result = []
    for law in laws:
        start = math.exp(start_sd * float(rng.standard_normal()))
        factors = start * _in_another_order(machine.slowdown, count, rng)
        clock = Clock.of_slowdown(factors, begin_s=begin_s, grid_s=GRID_S)
        ttft = _factor(machine.ttft_errors, machine.believed * TTFT_SD, rng)
        tpot = _factor(machine.tpot_errors, machine.believed * TPOT_SD, rng)
        result.append(Draw(law, machine.front_end, clock, ttft, tpot))
    return result


def _factor(errors: Sequence[float], believed_sd: float, rng: np.random.Generator) -> float:
    """Return the factor on a time: Student's t, its scale the belief pooled with the errors that
    were seen."""
    freedom = BELIEVED_WINDOWS + len(errors)
    squares = BELIEVED_WINDOWS * believed_sd**2 + sum(error**2 for error in errors)
    return math.exp(math.sqrt(squares / freedom) * float(rng.standard_t(freedom)))


def _in_another_order(values: Floats, length: int, rng: np.random.Generator) -> Floats:
    """Return what was measured in another order, in blocks of SLOWDOWN_BLOCK_S."""
    if not len(values):
        return np.ones(length)
    block = round(SLOWDOWN_BLOCK_S / GRID_S)
    starts = rng.integers(0, len(values), -(-length // block))
    rows = (starts[:, None] + np.arange(block)) % len(values)
    return np.asarray(values[rows.ravel()[:length]])


# Samples


@dataclass(frozen=True, slots=True)
class Samples:
    """What every draw predicts of every cap."""

    caps: tuple[int, ...]
    values: Floats
    """[draw, load, cap, number of NUMBERS]; a second load where there is headroom."""

    rates_rps: tuple[float, ...] = (0.0, 0.0)
    """Arrival rate at each load."""

    @property
    def has_headroom(self) -> bool:
        return bool(self.values.shape[1] > 1)

    def column(self, name: str, cap: int, *, raised: bool = False) -> Floats:
        """Return a number of a cap, draw by draw; ``goodput_rps`` too."""
        if name == "goodput_rps":
            shares = self.column("attainment", cap, raised=raised)
            return self.rates_rps[int(raised)] * shares
        place, number = self.caps.index(cap), NUMBERS.index(name)
        return np.asarray(self.values[:, int(raised), place, number])

    def middle(self, name: str, cap: int, *, raised: bool = False) -> float:
        """Return the median of a number over the draws; NaN where no draw came to that."""
        column = self.column(name, cap, raised=raised)
        known = column[np.isfinite(column)]
        return float(np.median(known)) if len(known) else math.nan

    def ends(self, name: str, cap: int, *, raised: bool = False) -> Range | None:
        """Return the ends of 95 % of a number; None where no draw came to that."""
        return ends_of(self.column(name, cap, raised=raised))

    def intervals(
        self, cap: int, *, raised: bool = False, names: Sequence[str] = ON_CURVE
    ) -> dict[str, Range]:
        """Return the 95 % interval of each number at a cap, times in milliseconds."""
        result = {}
        for name in names:
            if (ends := self.ends(name, cap, raised=raised)) is not None:
                scale = 1e3 if _is_time(name) else 1.0
                result[in_ms(name)] = scale * ends[0], scale * ends[1]
        return result

    def changes(self, below: int, cap: int) -> dict[str, Interval]:
        """Return what ``cap`` gives more than ``below``, draw by draw: shares of goodput, p95 TPOT
        and p99 E2EL, differences of the rest."""
        result = {}
        for name in ON_CURVE[1:]:
            here, there = self.column(name, cap), self.column(name, below)
            with np.errstate(divide="ignore", invalid="ignore"):
                more = here / there - 1 if name in AS_SHARES else here - there
            more = more * (1e3 if _is_time(name) and name not in AS_SHARES else 1.0)
            if (ends := ends_of(more)) is not None:
                middle = float(np.median(more[np.isfinite(more)]))
                result[in_ms(name)] = Interval(middle, *ends)
        return result


def _is_time(name: str) -> bool:
    return name.endswith("_s")


def in_ms(name: str) -> str:
    """Return the name of a number where times are in milliseconds."""
    return f"{name.removesuffix('_s')}_ms" if _is_time(name) else name


def ends_of(values: Floats) -> Range | None:
    """Return the ends of 95 %, by order statistics at p (n + 1): the usual quantiles cover less
    than they claim where draws are few. None without finite values."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, ENDS, method="weibull").tolist()
    return low, high


def ask(  # noqa: PLR0913 - the question
    draws: Sequence[Draw],
    loads: Loads,
    caps: Sequence[int],
    shape: EngineShape,
    slo: Slo,
    *,
    log: bool = False,
) -> Samples:
    """Return what these draws predict of every cap at both loads. ``log`` for the numbers that
    only a log tells, in ten times the time."""
    caps = tuple(sorted(caps))
    rows = []
    for number, draw in enumerate(draws):
        row = []
        for traffic in loads.of(number):
            replay, values, of_load = None, np.zeros(0), list[Floats]()
            for cap in caps:
                # above a cap that never binds it is the same
                if replay is None or replay.running_peak >= replay.max_num_seqs:
                    replay = draw.replay(traffic, shape, max_num_seqs=cap, log=log)
                    values = numbers_of(traffic, replay, slo, shape)
                of_load.append(values)
            row.append(of_load)
        rows.append(row)
    rates_rps = (loads.rate_rps, loads.headroom * loads.rate_rps)
    return Samples(caps, np.array(rows), rates_rps)


def numbers_of(traffic: Traffic, replay: TwinReplay, slo: Slo, shape: EngineShape) -> Floats:
    """Return NUMBERS of one replay."""
    usage, gaps = None, None
    if len(work := replay.iterations):
        usage = kv_cache_usage(work, shape.kv_blocks)
        gaps = spread(work["duration_s"], work["decode_seqs"])
    result = [
        attainment(traffic, replay, slo),
        float(replay.preemptions.sum()),
        float(replay.running_peak),
        replay.kv_usage_mean,
        math.nan if usage is None else usage.p99,
        replay.kv_usage_peak,
    ]
    for name in TIMES[:-1]:
        result += _statistics(getattr(replay, f"{name}_s"))
    result += [math.nan if gaps is None else getattr(gaps, each) for each in ("mean", *SHARES)]
    return np.array(result)


def _statistics(values: Floats) -> list[float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return [math.nan] * (1 + len(SHARES))
    return [float(known.mean()), *np.quantile(known, tuple(SHARES.values())).tolist()]
