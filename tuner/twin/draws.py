"""Draws: runs of a fresh engine that the measurements make as likely as any other. Pure, seeded.

A draw has its own step-time law, its own engine start, the machine's speed as it was measured in
another order, and two factors for what the twin does not know of TTFT and of TPOT. The factors are
applied to every request before the SLO is scored, so that all numbers of one draw agree.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.replay.measure import Spread
from tuner.traffic.slo import Slo
from tuner.twin.front_end import FrontEnd, simulate_behind
from tuner.twin.simulation import (
    EngineShape,
    Slowdown,
    Traffic,
    TwinReplay,
    attainment,
    simulate,
)

START_SD = 0.035
TTFT_SD = 0.064
TPOT_SD = 0.035
"""Provisional, until the study of real servers (`scripts/study_real.py`) has enough cases. A start
of the engine moves the log of its speed by START_SD; before a run has seen a window that its twin
did not, the log of the mean TTFT is believed to be off by TTFT_SD, that of TPOT by TPOT_SD.

From one real server of the tiny model that was asked twice, and another start of it asked twice
(120 s each, cap 8): TTFT p95 420 to 479 ms, TPOT p95 13.1 to 14.5 ms. A range of four normal values
is 2.06 standard deviations: 0.064 and 0.049; of the latter half of the variance is taken for the
start's, half for the twin's."""

TTFT_BIAS = TPOT_BIAS = 0.0
"""Mean of the log of measured / predicted means over the study: none is known."""

BELIEF = 4
"""How many windows the belief before any window is worth."""

PRINTED = 200
"""Draws of what is printed."""

GRID_S = 2.5
"""How finely the machine's speed is followed."""

BLOCK_S = 30.0
"""Of the speed as it was measured, that stay together."""

ENDS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class MachineHistory:
    """What is known of runs besides the law."""

    pace: Floats
    """Measured / lawful time of all that was replayed, stalls included, a value each GRID_S; none
    where nothing is known."""

    ttft_errors: tuple[float, ...] = ()
    tpot_errors: tuple[float, ...] = ()
    """Log of measured / predicted mean, of each window that the twin had not seen."""

    front_end: FrontEnd | None = None
    """What stands before the engine; None: nothing that was measured."""

    delays_s: Floats = field(default_factory=lambda: np.zeros(0))
    """How much later than the usual request single ones came that did not have to wait."""


UNKNOWN = MachineHistory(np.ones(0))


@dataclass(frozen=True, slots=True)
class Draw:
    """One run that may come."""

    law: StepLaw
    slowdown: Slowdown
    ttft_factor: float
    tpot_factor: float
    front_end: FrontEnd | None = None
    delays_s: Floats = field(default_factory=lambda: np.zeros(0))
    seed: tuple[int, int] = (0, 0)
    """Of which request has which delay."""

    def replay(
        self, traffic: Traffic, shape: EngineShape, *, max_num_seqs: int, log: bool = False
    ) -> TwinReplay:
        """Return what this run would see of the traffic, which begins at 0 s or later."""
        replayed = simulate
        if self.front_end is not None:
            replayed = partial(simulate_behind, self.front_end)
        found = replayed(
            traffic, self.law, shape, max_num_seqs=max_num_seqs, slowdown=self.slowdown, log=log
        )
        found = delayed(found, self.delays_s, np.random.default_rng(self.seed))
        return scaled(found, traffic, self.ttft_factor, self.tpot_factor)


def delayed(replay: TwinReplay, delays_s: Floats, rng: np.random.Generator) -> TwinReplay:
    """Return the replay with these delays, but for the usual one, on requests at random: they are
    of neither iterations nor scheduler, and one of them may be all of a p99."""
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
    laws: Sequence[StepLaw], machine: MachineHistory, *, begin_s: float, end_s: float, seed: int
) -> list[Draw]:
    """Return a draw for each law, for traffic that arrives between these times."""
    rng = np.random.default_rng(seed)
    found = []
    for number, law in enumerate(laws):
        start = math.exp(START_SD * float(rng.standard_normal()))
        pace = _resampled(machine.pace, math.ceil((end_s - begin_s) / GRID_S) + 1, rng)
        ttft = _factor(machine.ttft_errors, TTFT_SD, TTFT_BIAS, rng)
        tpot = _factor(machine.tpot_errors, TPOT_SD, TPOT_BIAS, rng)
        slowdown = Slowdown(start * pace, begin_s, GRID_S)
        delays = (machine.delays_s, (seed, number))
        found.append(Draw(law, slowdown, ttft, tpot, machine.front_end, *delays))
    return found


def _factor(
    errors: Sequence[float], believed_sd: float, bias: float, rng: np.random.Generator
) -> float:
    """Return what a time is multiplied with: Student's t around the bias, its scale the belief
    pooled with the errors that were seen."""
    freedom = BELIEF + len(errors)
    squares = BELIEF * believed_sd**2 + sum((one - bias) ** 2 for one in errors)
    return math.exp(bias + math.sqrt(squares / freedom) * float(rng.standard_t(freedom)))


def _resampled(pace: Floats, length: int, rng: np.random.Generator) -> Floats:
    """Return the pace in another order, in blocks of BLOCK_S."""
    if not len(pace):
        return np.ones(length)
    block = round(BLOCK_S / GRID_S)
    starts = rng.integers(0, len(pace), math.ceil(length / block))
    rows = (starts[:, None] + np.arange(block)) % len(pace)
    return np.asarray(pace[rows.ravel()[:length]])


@dataclass(frozen=True, slots=True)
class PredictedRanges:
    """What a cap gives again, over the draws: of each number its middle and the ends of 95 %."""

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
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    known = {name: column[np.isfinite(column)] for name, column in columns.items()}
    return PredictedRanges(
        {name: float(np.median(column)) for name, column in known.items() if len(column)},
        {name: ends_of(column) for name, column in known.items() if len(column)},
    )


def ends_of(values: Floats) -> tuple[float, float]:
    """Return the ends of 95 %, by order statistics at p (n + 1): the usual quantiles of few draws
    cover less than they say."""
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
            places = np.quantile(known, tuple(SHARES.values())).tolist()
            found |= {f"{name}_{share}_s": at for share, at in zip(SHARES, places, strict=True)}
            found[f"{name}_mean_s"] = float(known.mean())
    return found


def spread_of(middle: Mapping[str, float], name: str) -> Spread | None:
    """Return the middle values of a time; None where no request has one."""
    if f"{name}_mean_s" not in middle:
        return None
    return Spread(*(middle[f"{name}_{one}_s"] for one in ("mean", *SHARES)))
