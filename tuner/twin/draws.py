"""Draws: runs of a fresh engine that the measurements make as likely as any other. Pure, seeded.

A draw has its own step-time law, its own engine start, the machine's speed as it was measured in
another order, stalls included, and two factors for what the twin does not know of TTFT and of TPOT.
The factors are applied to every request before the SLO is scored, so that all numbers of one draw
agree.

The machine's speed is followed on two grids of time, because it varies in two ways. For minutes
others use the machine; and for a moment an iteration stands still. A stall of 150 ms is 6 % of 2.5
s, which nobody notices there; of a request of 300 ms it is half.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.measure import Spread
from tuner.traffic.slo import Slo
from tuner.twin.believed import BELIEVED, Beliefs
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

PRINTED = 200
"""Draws of what is printed."""

GRID_S = 2.5
"""Grid on which the machine's speed is followed."""

FINE_S = 0.1
"""Finer grid for what flickers within that."""

FINER = round(GRID_S / FINE_S)

BLOCK_S = 30.0
"""Of what was measured, that stay together in a draw."""

MOST_FLICKER = 1200
"""Values that are kept: two minutes."""

ENDS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class MachineHistory:
    """Knowledge of a machine from its runs, besides the law."""

    slowdown: Floats
    """Measured / lawful time of all that was replayed, stalls included, a value each GRID_S; none
    where nothing is known."""

    ttft_errors: tuple[float, ...] = ()
    tpot_errors: tuple[float, ...] = ()
    """Log of measured / predicted mean, of each window that the twin had not seen."""

    front_end: FrontEnd | None = None
    """What stands before the engine; None: nothing that was measured."""

    delays_s: Floats = field(default_factory=lambda: np.zeros(0))
    """How much later than the usual request single ones came that did not have to wait."""

    flicker: Floats = field(default_factory=lambda: np.zeros(0))
    """Measured / lawful time each FINE_S against that of its GRID_S, of the engine that is most
    like the one to come; none where nothing is known."""


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


def flicker_of(logs: Sequence[IterationLog], law: StepLaw) -> Floats:
    """Return measured ÷ lawful time each FINE_S against that of its GRID_S, at most the last
    MOST_FLICKER values; 1 where the engine was idle."""
    found = [np.zeros(0), *(_flicker(one, law) for one in logs if len(one))]
    return np.asarray(np.concatenate(found)[-MOST_FLICKER:])


def _flicker(log: IterationLog, law: StepLaw) -> Floats:
    begin_s, duration_s, lawful_s = log["start_s"], log["duration_s"], law.durations_s(log)
    times_s = np.column_stack((begin_s, begin_s + duration_s)).ravel()
    first, last = np.floor(times_s[0] / GRID_S), np.ceil(times_s[-1] / GRID_S)
    edges_s = FINE_S * np.arange(FINER * int(first), FINER * int(last) + 1)

    def in_each(spent_s: Floats) -> Floats:
        """Return how much of what was spent evenly in each iteration is of each FINE_S."""
        so_far_s = np.cumsum(np.column_stack((np.zeros(len(log)), spent_s)).ravel())
        return np.diff(np.interp(edges_s, times_s, so_far_s)).reshape(-1, FINER)

    measured_s, should_s = in_each(duration_s), in_each(lawful_s)
    scale = measured_s.sum(axis=1, keepdims=True) * should_s
    ratio = np.divide(
        measured_s * should_s.sum(axis=1, keepdims=True),
        scale,
        out=np.ones_like(measured_s),
        where=scale > 0,
    )
    return np.asarray(ratio.ravel())


@dataclass(frozen=True, slots=True)
class Draw:
    """One run that may come."""

    law: StepLaw
    slowdown_factors: Floats
    """How much slower than the law it is, start included, a value each GRID_S."""

    begin_s: float
    ttft_factor: float
    tpot_factor: float
    machine: MachineHistory
    seed: tuple[int, int]
    """Of which request has which delay, and when what flickers."""

    @property
    def slowdown(self) -> Slowdown:
        """Return how much slower than its law the machine will be."""
        if not len(self.machine.flicker):
            return Slowdown(self.slowdown_factors, self.begin_s, GRID_S)
        rng = np.random.default_rng((*self.seed, 1))
        flicker = _resampled(self.machine.flicker, FINER * len(self.slowdown_factors), FINE_S, rng)
        return Slowdown(np.repeat(self.slowdown_factors, FINER) * flicker, self.begin_s, FINE_S)

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
            self.machine.front_end,
            traffic,
            self.law,
            shape,
            max_num_seqs=max_num_seqs,
            slowdown=clock or self.slowdown.clock(),
            log=log,
        )
        found = delayed(found, self.machine.delays_s, np.random.default_rng(self.seed))
        return scaled(found, traffic, self.ttft_factor, self.tpot_factor)


def delayed(replay: TwinReplay, delays_s: Floats, rng: np.random.Generator) -> TwinReplay:
    """Return the replay with these delays, but for the usual one, on requests at random.

    They come from neither iterations nor scheduler, and one of them may be all of a p99.
    """
    if not len(delays_s):
        return replay
    ttft_s = replay.ttft_s + rng.choice(delays_s - np.median(delays_s), len(replay.ttft_s))
    decode_s = replay.e2el_s - replay.ttft_s
    ttft_s = np.maximum(0.0, ttft_s)
    return replace(replay, ttft_s=ttft_s, e2el_s=ttft_s + decode_s)


def scaled(
    replay: TwinReplay, traffic: Traffic, ttft_factor: float, tpot_factor: float
) -> TwinReplay:
    """Return the replay with every request's first token and every later one so much later."""
    ttft_s, tpot_s = ttft_factor * replay.ttft_s, tpot_factor * replay.tpot_s
    decoding_s = np.nan_to_num(tpot_s) * (traffic.output_length - 1)
    e2el_s = np.where(np.isnan(replay.e2el_s), np.nan, ttft_s + decoding_s)
    return replace(replay, ttft_s=ttft_s, tpot_s=tpot_s, e2el_s=e2el_s)


def draws_of(
    laws: Sequence[StepLaw],
    machine: MachineHistory,
    traffics: Sequence[Traffic],
    *,
    believed: Beliefs = BELIEVED,
) -> list[Draw]:
    """Return a draw for each law, for as long as any of this traffic arrives."""
    begin_s = min((float(one.arrival_s[0]) for one in traffics), default=0.0)
    end_s = max((float(one.arrival_s[-1]) for one in traffics), default=0.0)
    rng = np.random.default_rng(0)
    # how a front end slows an engine was seen in one start, and the one to come is another
    start_sd = believed.start_sd * math.sqrt(1 if machine.front_end is None else 2)
    count = math.ceil((end_s - begin_s) / GRID_S) + 1
    found = []
    for number, law in enumerate(laws):
        start = math.exp(start_sd * float(rng.standard_normal()))
        slowdown = _resampled(machine.slowdown, count, GRID_S, rng)
        ttft, tpot = (
            _factor(errors, sd, bias, believed.windows, rng)
            for errors, sd, bias in (
                (machine.ttft_errors, believed.ttft_sd, believed.ttft_bias),
                (machine.tpot_errors, believed.tpot_sd, believed.tpot_bias),
            )
        )
        found.append(Draw(law, start * slowdown, begin_s, ttft, tpot, machine, (0, number)))
    return found


def _factor(
    errors: Sequence[float],
    believed_sd: float,
    bias: float,
    windows: int,
    rng: np.random.Generator,
) -> float:
    """Return the factor on a time: Student's t around the bias, its scale the belief pooled with
    the errors that were seen."""
    freedom = windows + len(errors)
    squares = windows * believed_sd**2 + sum((one - bias) ** 2 for one in errors)
    return math.exp(bias + math.sqrt(squares / freedom) * float(rng.standard_t(freedom)))


def _resampled(values: Floats, length: int, grid_s: float, rng: np.random.Generator) -> Floats:
    """Return what was measured in another order, in blocks of BLOCK_S."""
    if not len(values):
        return np.ones(length)
    block = round(BLOCK_S / grid_s)
    starts = rng.integers(0, len(values), -(-length // block))
    rows = (starts[:, None] + np.arange(block)) % len(values)
    return np.asarray(values[rows.ravel()[:length]])


@dataclass(frozen=True, slots=True)
class PredictedRanges:
    """The numbers of a cap, should it be run again: of each the draws' middle and 95 % range."""

    middle: Mapping[str, float]
    """Seconds are seconds, and the SLO's share is a share."""

    ranges: Mapping[str, tuple[float, float]]


TIMES = ("ttft", "tpot", "e2el")
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def promised(
    traffics: Sequence[Traffic],
    draws: Sequence[Draw],
    shape: EngineShape,
    slo: Slo,
    *,
    max_num_seqs: int,
) -> PredictedRanges:
    """Return what the draws say of a cap; of several traffics each draw has one, in turn."""
    rows = [
        _numbers(traffic, one.replay(traffic, shape, max_num_seqs=max_num_seqs), slo)
        for number, one in enumerate(draws)
        for traffic in (traffics[number % len(traffics)],)
    ]
    names = dict.fromkeys(name for row in rows for name in row)  # a day may have no TPOT
    columns = {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
    known = {name: column[np.isfinite(column)] for name, column in columns.items()}
    return PredictedRanges(
        {name: float(np.median(column)) for name, column in known.items() if len(column)},
        {name: ends_of(column) for name, column in known.items() if len(column)},
    )


def ends_of(values: Floats) -> tuple[float, float]:
    """Return the ends of 95 %, by order statistics at p (n + 1): the usual quantiles cover less
    than they say where draws are few."""
    low, high = np.quantile(values, ENDS, method="weibull").tolist()
    return low, high


def _numbers(traffic: Traffic, replay: TwinReplay, slo: Slo) -> dict[str, float]:
    found = {
        "attainment": attainment(traffic, replay, slo),
        "kv_cache_usage_peak": replay.kv_usage_peak,
        "preemptions": float(replay.preemptions.sum()),
    }
    for name in (*TIMES, "queue"):
        values = getattr(replay, f"{name}_s")
        known = values[~np.isnan(values)]
        if len(known):
            ordered = np.sort(known)
            found |= {f"{name}_{one}_s": quantile_of(ordered, at) for one, at in SHARES.items()}
            found[f"{name}_mean_s"] = float(known.mean())
    return found


def spread_of(middle: Mapping[str, float], name: str) -> Spread | None:
    """Return the middle values of a time; None where no request has one."""
    if f"{name}_mean_s" not in middle:
        return None
    return Spread(*(middle[f"{name}_{one}_s"] for one in ("mean", *SHARES)))
