"""Count how many intervals hold at each time. Pure."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Floats, Ints

Counts = NDArray[Any]
"""Whole numbers."""


@dataclass(frozen=True, slots=True)
class Held:
    """The time that each level held, in order of the levels; those that never did are left out."""

    level: Ints
    seconds: Floats

    def mean(self) -> float:
        return float(self.level @ self.seconds / self.seconds.sum())

    def quantiles(self, *shares: float) -> tuple[int, ...]:
        """Return for each share of the time the least level that held for so much of it."""
        time_s = np.cumsum(self.seconds)
        at = np.searchsorted(time_s, np.array(shares) * time_s[-1] * (1 - 1e-12))
        return tuple(self.level[at].tolist())

    def max(self) -> int:
        return int(self.level[-1])

    def share_above(self, level: int) -> float:
        return float(self.seconds[self.level > level].sum() / self.seconds.sum())


@dataclass(frozen=True, slots=True)
class Levels:
    """The requests in flight, one entry for each stretch of time, in order."""

    level: Counts
    duration_s: Floats
    start_s: float
    """When the first of them begins."""

    def held(self) -> Held:
        if self.level.max() < len(self.level):
            seconds = np.bincount(self.level, weights=self.duration_s)
            level = np.flatnonzero(seconds)
            return Held(level, seconds[level].astype(np.float64))
        level, of = np.unique(self.level, return_inverse=True)
        return Held(level, np.bincount(of, weights=self.duration_s).astype(np.float64))

    def longest_above_s(self, level: int) -> float:
        """Return the longest time without a break with more than ``level`` in flight."""
        above = self.level > level
        begins = np.flatnonzero(np.diff(above, prepend=not above[0]))
        runs_s = np.add.reduceat(self.duration_s, begins)
        return float(np.max(runs_s, where=above[begins], initial=0.0))

    def highest_in(self, edges_s: Floats) -> list[int | None]:
        """Return the most in flight between each two edges; None where nothing is known."""
        ends_s = self.start_s + np.cumsum(self.duration_s)
        ended = np.searchsorted(ends_s, edges_s, side="right")
        begun = np.searchsorted(ends_s, edges_s, side="left") + (edges_s > self.start_s)
        begun = np.minimum(begun, len(self.level))
        return [
            int(self.level[first:last].max()) if first < last else None
            for first, last in zip(ended[:-1].tolist(), begun[1:].tolist(), strict=True)
        ]


def count_levels(
    begins_s: Floats, ends_s: Floats, weight: Counts | None, *, start_s: float, end_s: float
) -> Levels | None:
    """Return how many of the intervals hold at each time in [start_s, end_s); None for no time.

    Each counts as often as ``weight`` says, None for once. At one time ends come before begins, so
    that nothing is in flight for no time.
    """
    edges_s = np.concatenate((ends_s, begins_s))
    order = np.argsort(edges_s, kind="stable")
    if weight is None:
        changes = np.where(order < len(ends_s), np.int8(-1), np.int8(1))
    else:
        changes = np.concatenate((-weight.astype(np.int64), weight))[order]
    edges_s = edges_s[order]
    del order  # ten million intervals fit into half a gigabyte
    level = np.cumsum(changes, dtype=np.int32 if weight is None else np.int64)
    np.clip(edges_s, start_s, end_s, out=edges_s)
    duration_s = np.diff(edges_s, append=end_s)
    lasting = duration_s > 0
    level, duration_s = level[lasting], duration_s[lasting]
    if edges_s[0] > start_s:
        level = np.concatenate((np.zeros(1, level.dtype), level))
        duration_s = np.concatenate(([edges_s[0] - start_s], duration_s))
    return Levels(level, duration_s, start_s) if len(level) else None


def count_held(
    begins_s: Floats, ends_s: Floats, weight: Counts | None, *, start_s: float, end_s: float
) -> Held | None:
    """Return how long each level held; None for no time."""
    levels = count_levels(begins_s, ends_s, weight, start_s=start_s, end_s=end_s)
    return None if levels is None else levels.held()
