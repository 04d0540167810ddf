"""The twin held against what was really measured, before it is believed. Pure.

Each replayed window is given to the twin with the speed that the machine had in that window; what
is left is the law's and the scheduler model's own error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.records import Replay, RequestRecord
from tuner.twin.simulation import (
    EngineShape,
    Slowdown,
    Traffic,
    TwinReplay,
    simulate,
)

STRETCH_S = 2.5
"""How finely the machine's speed in a window is followed."""

MAX_ERROR = 0.15
"""Median error above which the twin is not believed."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One replayed window as its clients saw it. Seconds from the start of the replay; arrays have
    one entry per request, NaN where it did not come to that."""

    max_num_seqs: int
    traffic: Traffic
    scored: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    ttft_s: Floats
    tpot_s: Floats
    e2el_s: Floats
    output_tokens: int
    end_s: float
    """When the last token came, or when the replay was cut."""

    iterations: IterationLog
    """What the engine did, from which the machine's speed in this window is taken."""

    cut: bool
    max_num_batched_tokens: int | None = None
    """Where it was another than the engine's own."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Predicted ÷ measured - 1 for one window; NaN where nothing was measured."""

    max_num_seqs: int
    throughput: float
    """Output tokens per second."""

    tpot: float
    """Median time per output token."""

    e2el_p95: float


def observed(replay_: Replay, *, max_num_batched_tokens: int | None = None) -> Observed:
    """Return a replay as arrays. Requests that were cancelled or failed count as cut off there."""
    records = sorted(replay_.records, key=lambda one: one.planned_s)
    missing = math.nan

    def column(values: Sequence[float | None]) -> Floats:
        return np.array([missing if value is None else value for value in values], dtype=float)

    done = [one.outcome == "ok" for one in records]
    return Observed(
        max_num_seqs=replay_.max_num_seqs,
        traffic=Traffic(
            column([one.planned_s for one in records]),
            np.array([one.input_length for one in records], np.int64),
            np.array([max(1, _length(one)) for one in records], np.int64),
            np.array([one.cached_tokens or 0 for one in records], np.int64),
        ),
        scored=np.array([one.scored for one in records], bool),
        ttft_s=column([one.ttft_s for one in records]),
        tpot_s=column([one.tpot_s for one in records]),
        e2el_s=np.where(done, column([one.e2el_s for one in records]), missing),
        output_tokens=sum(one.output_tokens for one in records),
        end_s=max((one.end_s for one in records), default=0.0),
        iterations=replay_.iterations,
        cut=replay_.cut is not None,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def _length(record: RequestRecord) -> int:
    """Return how many tokens a request was to get; of one that its client gave up, how many."""
    return record.output_tokens if record.outcome == "aborted" else record.output_length


def driven(window: Observed, law: StepLaw, shape: EngineShape) -> TwinReplay:
    """Return the twin's replay of a window at the speed that the machine had then."""
    tokens = window.max_num_batched_tokens or shape.max_num_batched_tokens
    return simulate(
        window.traffic,
        law,
        replace(shape, max_num_batched_tokens=tokens),
        max_num_seqs=window.max_num_seqs,
        slowdown=slowdown_of(window.iterations, law),
        until_s=window.end_s,
    )


def slowdown_of(log: IterationLog, law: StepLaw) -> Slowdown | None:
    """Return how much slower than the law the machine was, stalls included: measured ÷ lawful time
    of the iterations that began in each stretch of time; None without iterations."""
    if not len(log):
        return None
    stretch = (log["start_s"] // STRETCH_S).astype(np.int64)
    first = int(stretch[0])
    measured_s = np.bincount(stretch - first, log["duration_s"])
    lawful_s = np.bincount(stretch - first, law.durations_s(log))
    known = np.flatnonzero(lawful_s > 0)
    factors = np.interp(np.arange(len(lawful_s)), known, measured_s[known] / lawful_s[known])
    return Slowdown(factors, begin_s=first * STRETCH_S, grid_s=STRETCH_S)


def lag_s(windows: Sequence[Observed], law: StepLaw, shape: EngineShape) -> float:
    """Return how long a request is under way before the scheduler knows it: the median of measured
    minus predicted TTFT over the requests that did not have to wait."""
    differences = []
    for window in windows:
        twin = driven(window, law, replace(shape, lag_s=0.0))
        at_once = twin.queue_s <= 2 * law.decode_s[-1]
        differences.append((window.ttft_s - twin.ttft_s)[at_once])
    found = np.concatenate([np.zeros(0), *differences])
    found = found[~np.isnan(found)]
    return max(0.0, float(np.median(found))) if len(found) else 0.0


def check(windows: Sequence[Observed], law: StepLaw, shape: EngineShape) -> tuple[Errors, ...]:
    """Return the twin's errors, window by window."""
    found = []
    for window in windows:
        twin = driven(window, law, shape)
        both = ~np.isnan(window.e2el_s) & ~np.isnan(twin.e2el_s) & window.scored
        found.append(
            Errors(
                max_num_seqs=window.max_num_seqs,
                throughput=_off(twin.output_tokens, window.output_tokens),
                tpot=_off(_quantile(twin.tpot_s[both], 0.5), _quantile(window.tpot_s[both], 0.5)),
                e2el_p95=_off(
                    _quantile(twin.e2el_s[both], 0.95), _quantile(window.e2el_s[both], 0.95)
                ),
            )
        )
    return tuple(found)


def median_error(errors: Sequence[Errors]) -> float:
    """Return the median size of all errors, or infinity without any."""
    sizes = [abs(size) for one in errors for size in (one.throughput, one.tpot, one.e2el_p95)]
    known = [size for size in sizes if not math.isnan(size)]
    return float(np.median(known)) if known else math.inf


def _off(predicted: float, measured: float) -> float:
    return predicted / measured - 1 if measured > 0 else math.nan


def _quantile(values: Floats, share: float) -> float:
    known = values[~np.isnan(values)]
    return float(np.quantile(known, share)) if len(known) else math.nan
