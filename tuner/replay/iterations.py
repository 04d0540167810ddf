"""Measures of an engine's log of iterations: decode time, KV usage, what binds. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import IterationLog

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KvCacheUsage:
    """Share of the KV cache in use, 0 to 1, weighted by the time it was so."""

    mean: float
    p99: float
    peak: float


@dataclass(frozen=True, slots=True)
class BatchTime:
    """Decode time per token at one actual batch size: iterations that only decoded."""

    decode_seqs: int
    iterations: int
    median_s: float


def joined(logs: Iterable[IterationLog]) -> IterationLog:
    log: IterationLog = np.concatenate(list(logs))
    return log


def batch_times(work: IterationLog) -> tuple[BatchTime, ...]:
    """Return the median duration of the iterations that only decoded, by their batch size."""
    pure = work[(work["prefill_tokens"] == 0) & (work["decode_seqs"] > 0)]
    return tuple(
        BatchTime(int(size), len(durations), float(np.median(durations)))
        for size in np.unique(pure["decode_seqs"])
        if len(durations := pure["duration_s"][pure["decode_seqs"] == size])
    )


def kv_cache_usage(work: IterationLog, kv_blocks: int) -> KvCacheUsage | None:
    if not len(work) or not kv_blocks:
        return None
    usage = work["kv_blocks_used"] / kv_blocks
    durations = work["duration_s"].astype(float)
    if not durations.sum() > 0:
        return None
    return KvCacheUsage(
        mean=float(np.average(usage, weights=durations)),
        p99=weighted_quantile(usage, durations, 0.99),
        peak=float(usage.max()),
    )


def time_mean(work: IterationLog, name: str) -> float:
    total = float(work["duration_s"].sum())
    return float(work[name] @ work["duration_s"]) / total if total else 0.0


def waiting_share(work: IterationLog, cap: int, *, full: bool) -> float:
    """Return the share of busy time in which somebody waited with the cap full, or not full."""
    total = float(work["duration_s"].sum())
    if not total:
        return 0.0
    at_cap = work["running"] >= cap
    chosen = (work["waiting"] > 0) & (at_cap if full else ~at_cap)
    return float(work["duration_s"][chosen].sum()) / total


def token_bound_share(work: IterationLog, cap: int, budget: int) -> float:
    """Return the share of busy time in which somebody waited with the cap not full and all of the
    token budget spent; 0 where the budget is not known."""
    total = float(work["duration_s"].sum())
    if not total or not budget:
        return 0.0
    spent = work["decode_seqs"] + work["prefill_tokens"] >= budget
    chosen = (work["waiting"] > 0) & (work["running"] < cap) & spent
    return float(work["duration_s"][chosen].sum()) / total


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the least value v with weight share(<= v) >= ``share``."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    place = int(np.searchsorted(cumulative, share * cumulative[-1] * (1 - 1e-12)))
    return float(values[order][min(place, len(order) - 1)])
