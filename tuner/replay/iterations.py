"""Measures of an engine's log of iterations: decode time, KV usage, what binds. Pure."""

from dataclasses import dataclass

import numpy as np

from tuner.engines.seam import IterationLog
from tuner.replay.records import Bools


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


def batch_times(work: IterationLog) -> tuple[BatchTime, ...]:
    """Return the median duration of the iterations that only decoded, by their batch size."""
    pure = work[(work["prefill_tokens"] == 0) & (work["decode_seqs"] > 0)]
    sizes, took_s = pure["decode_seqs"], pure["duration_s"]
    times_s = {size: took_s[sizes == size] for size in np.unique(sizes)}
    return tuple(BatchTime(int(n), len(s), float(np.median(s))) for n, s in times_s.items())


def kv_cache_usage(work: IterationLog, kv_blocks: int) -> KvCacheUsage | None:
    """Return the usage over time; None where the engine does not report it."""
    durations = work["duration_s"].astype(float)
    if not kv_blocks or not durations.sum() > 0:
        return None
    usage = work["kv_blocks_used"] / kv_blocks
    order = np.argsort(usage, kind="stable")
    until_s = np.cumsum(durations[order])
    place = int(np.searchsorted(until_s, 0.99 * until_s[-1] * (1 - 1e-12)))
    return KvCacheUsage(
        mean=float(np.average(usage, weights=durations)),
        p99=float(usage[order][place]),
        peak=float(usage.max()),
    )


def time_mean(work: IterationLog, name: str) -> float:
    """Return the mean of a column over busy time."""
    total = float(work["duration_s"].sum())
    return float(work[name] @ work["duration_s"]) / total if total else 0.0


def waiting_share(work: IterationLog, cap: int, *, full: bool) -> float:
    """Return the share of busy time in which a request waited with the cap full, or not full."""
    return _share(work, (work["waiting"] > 0) & ((work["running"] >= cap) == full))


def token_bound_share(work: IterationLog, cap: int, budget: int) -> float:
    """Return the share of busy time in which a request waited with the cap not full and all of the
    token budget spent; 0 where the budget is not known."""
    spent = (work["decode_seqs"] + work["prefill_tokens"] >= budget) & (budget > 0)
    return _share(work, (work["waiting"] > 0) & (work["running"] < cap) & spent)


def _share(work: IterationLog, chosen: Bools) -> float:
    total = float(work["duration_s"].sum())  # of all in another order it may be a bit less
    return min(1.0, float(work["duration_s"][chosen].sum()) / total) if total else 0.0
