"""Draws: runs of a fresh engine that the measurements make as likely as any other. Pure, seeded.

A draw has its own step-time law, its own engine start, the machine's speed as it was measured in
another order, stalls included, and a factor for what the twin does not know of TTFT and of TPOT.
Speed is drawn for iterations, never for requests: a queue multiplies it. The factors are applied
before the SLO is scored, so that all numbers of one draw agree.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.measure import Spread
from tuner.traffic.slo import Slo
from tuner.twin.front_end import FrontEnd, simulate_behind
from tuner.twin.simulation import (
    EngineShape,
    MachineClock,
    Slowdown,
    Traffic,
    TwinReplay,
    attainment,
    quantile_of,
)

PRINTED = 100
"""Draws of what is printed."""

START_SD, TTFT_SD, TPOT_SD = 0.096, 0.127, 0.042
"""By which a start of the engine, and the hour, move its speed, and by which mean TTFT and TPOT are
off besides; standard deviations of logarithms. From `scripts/study_real.py`: eight cases on real
servers of tiny models, on a machine that others use too (docs/deciding.md)."""

SHARED_SPEED_SD = 0.04
"""Standard deviation of that machine's own speed. A machine whose speed varies less than this while
it is measured is taken to differ less between starts, in proportion."""

LEAST_SHARE = 0.1
"""Of these deviations that is believed of the quietest machine."""

BELIEVED_WINDOWS = 4
"""How many windows that the twin had not seen this belief is worth."""

GRID_S = 2.5
"""Grid on which the machine's speed is followed."""

BLOCK_S = 30.0
"""Of what was measured, that stay together in a draw."""

ENDS = (0.025, 0.975)
TIMES = ("ttft", "tpot", "e2el", "queue")
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class MachineHistory:
    """Knowledge of a machine from its runs, besides the law."""

    slowdown: Floats
    """Measured / lawful time of all that was replayed, stalls included, a value each GRID_S; none
    where nothing is known."""

    speed_sd: float = SHARED_SPEED_SD
    """Standard deviation of its log speed over minutes."""

    ttft_errors: tuple[float, ...] = ()
    tpot_errors: tuple[float, ...] = ()
    """Log of measured / predicted mean, of each window that the twin had not seen."""

    front_end: FrontEnd | None = None

    @property
    def believed(self) -> float:
        """The share of the believed deviations that holds for this machine."""
        return min(1.0, max(LEAST_SHARE, self.speed_sd / SHARED_SPEED_SD))


UNKNOWN = MachineHistory(np.ones(0))


def slowdown_of(log: IterationLog, law: StepLaw) -> Slowdown | None:
    """Return how much slower than the law the machine was, stalls included: measured ÷ lawful time
    of the iterations that began in each stretch of time; None without iterations."""
    if not len(log):
        return None
    stretch = (log["start_s"] // GRID_S).astype(np.int64)
    first = int(stretch[0])
    measured_s = np.bincount(stretch - first, log["duration_s"])
    lawful_s = np.bincount(stretch - first, law.durations_s(log))
    known = np.flatnonzero(lawful_s > 0)
    factors = np.interp(np.arange(len(lawful_s)), known, measured_s[known] / lawful_s[known])
    return Slowdown(factors, begin_s=first * GRID_S, grid_s=GRID_S)


@dataclass(frozen=True, slots=True)
class Draw:
    """One run that may come."""

    law: StepLaw
    slowdown: Slowdown
    """How much slower than its law the machine will be, start included."""

    ttft_factor: float
    tpot_factor: float
    front_end: FrontEnd | None

    def replay(
        self,
        traffic: Traffic,
        shape: EngineShape,
        *,
        max_num_seqs: int,
        clock: MachineClock | None = None,
        log: bool = False,
    ) -> TwinReplay:
        """Return what this run would see of the traffic, which begins at 0 s or later. ``clock`` is
        that of its slowdown, where several replays share it."""
        found = simulate_behind(
            self.front_end, traffic, self.law, shape, max_num_seqs=max_num_seqs,
            slowdown=clock or self.slowdown.clock(), log=log,
        )  # fmt: skip
        return scaled(found, traffic, self.ttft_factor, self.tpot_factor)


def scaled(
    replay: TwinReplay, traffic: Traffic, ttft_factor: float, tpot_factor: float
) -> TwinReplay:
    """Return the replay with every request's first token and every later one so much later."""
    ttft_s, tpot_s = ttft_factor * replay.ttft_s, tpot_factor * replay.tpot_s
    decoding_s = np.nan_to_num(tpot_s) * (traffic.output_length - 1)
    e2el_s = np.where(np.isnan(replay.e2el_s), np.nan, ttft_s + decoding_s)
    return replace(replay, ttft_s=ttft_s, tpot_s=tpot_s, e2el_s=e2el_s)


def draws_of(
    laws: Sequence[StepLaw], machine: MachineHistory, traffics: Sequence[Traffic]
) -> list[Draw]:
    """Return a draw for each law, for as long as any of this traffic arrives."""
    begin_s = min((float(each.arrival_s[0]) for each in traffics), default=0.0)
    end_s = max((float(each.arrival_s[-1]) for each in traffics), default=0.0)
    rng = np.random.default_rng(0)
    # how a front end slows an engine was seen in one start, and the one to come is another
    start_sd = machine.believed * START_SD * math.sqrt(1 if machine.front_end is None else 2)
    count = math.ceil((end_s - begin_s) / GRID_S) + 1
    found = []
    for law in laws:
        start = math.exp(start_sd * float(rng.standard_normal()))
        slowdown = Slowdown(start * _resampled(machine.slowdown, count, rng), begin_s, GRID_S)
        ttft = _factor(machine.ttft_errors, machine.believed * TTFT_SD, rng)
        tpot = _factor(machine.tpot_errors, machine.believed * TPOT_SD, rng)
        found.append(Draw(law, slowdown, ttft, tpot, machine.front_end))
    return found


def _factor(errors: Sequence[float], believed_sd: float, rng: np.random.Generator) -> float:
    """Return the factor on a time: Student's t, its scale the belief pooled with the errors that
    were seen."""
    freedom = BELIEVED_WINDOWS + len(errors)
    squares = BELIEVED_WINDOWS * believed_sd**2 + sum(error**2 for error in errors)
    return math.exp(math.sqrt(squares / freedom) * float(rng.standard_t(freedom)))


def _resampled(values: Floats, length: int, rng: np.random.Generator) -> Floats:
    """Return what was measured in another order, in blocks of BLOCK_S."""
    if not len(values):
        return np.ones(length)
    block = round(BLOCK_S / GRID_S)
    starts = rng.integers(0, len(values), -(-length // block))
    rows = (starts[:, None] + np.arange(block)) % len(values)
    return np.asarray(values[rows.ravel()[:length]])


@dataclass(frozen=True, slots=True)
class PredictedRanges:
    """The numbers of a cap, should it be run again: of each the draws' middle and 95 % range."""

    middle: Mapping[str, float]
    """Seconds are seconds, and the SLO's share is a share."""

    ranges: Mapping[str, tuple[float, float]]


def promised(
    traffics: Sequence[Traffic],
    draws: Sequence[Draw],
    shape: EngineShape,
    slo: Slo,
    *,
    max_num_seqs: int,
) -> PredictedRanges:
    """Return what the draws predict of a cap; of several traffics each draw has one, in turn."""
    rows = []
    for number, draw in enumerate(draws):
        traffic = traffics[number % len(traffics)]
        rows.append(_numbers(traffic, draw.replay(traffic, shape, max_num_seqs=max_num_seqs), slo))
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    known = {name: column[np.isfinite(column)] for name, column in columns.items()}
    return PredictedRanges(
        {name: float(np.median(column)) for name, column in known.items() if len(column)},
        {name: ends_of(column) for name, column in known.items() if len(column)},
    )


def ends_of(values: Floats) -> tuple[float, float]:
    """Return the ends of 95 %, by order statistics at p (n + 1): the usual quantiles cover less
    than they claim where draws are few."""
    low, high = np.quantile(values, ENDS, method="weibull").tolist()
    return low, high


def _numbers(traffic: Traffic, replay: TwinReplay, slo: Slo) -> dict[str, float]:
    found = {
        "attainment": attainment(traffic, replay, slo),
        "kv_cache_usage_peak": replay.kv_usage_peak,
        "preemptions": float(replay.preemptions.sum()),
    }
    for name in TIMES:
        values = getattr(replay, f"{name}_s")
        ordered = np.sort(values[~np.isnan(values)])
        found[f"{name}_mean_s"] = float(ordered.mean()) if len(ordered) else math.nan
        for share, at in SHARES.items():
            found[f"{name}_{share}_s"] = quantile_of(ordered, at) if len(ordered) else math.nan
    return found


def spread_of(middle: Mapping[str, float], name: str) -> Spread | None:
    """Return the middle values of a time; None where no request has one."""
    if f"{name}_mean_s" not in middle:
        return None
    return Spread(*(middle[f"{name}_{share}_s"] for share in ("mean", *SHARES)))
