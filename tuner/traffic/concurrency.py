"""Counts the requests in flight, and those running, over time. Pure.

A request is in flight from its arrival to its end, waiting included, and counts n times. The
distribution is over time and not over arrivals: quantile q is the least level that holds for a
share q of the time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns, Floats, Ints

BAND_S_PER_TOKEN = (0.010, 0.020, 0.040, 0.080)
"""Times per output token of a fast and of a slow server, for traces whose ends are unknown."""

MOST_PREVIEWED = 2**20
"""Requests that are counted for a preview."""

KNOWN_ENDS = 0.95
"""Share of the served requests whose end must be recorded, for the recorded concurrency."""


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

    level: NDArray[Any]
    duration_s: Floats
    start_s: float
    """When the first of them begins."""

    def held(self) -> Held:
        level, place = np.unique(self.level, return_inverse=True)
        return Held(
            level.astype(np.int64), np.bincount(place, weights=self.duration_s).astype(np.float64)
        )

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
    begins_s: Floats, ends_s: Floats, weight: Ints | None, *, start_s: float, end_s: float
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


def recorded_levels(columns: Columns, *, running: bool = False) -> Levels | None:
    """Return the levels by recorded ends, from when the trace has filled up to the last arrival;
    of those ``running``: from first scheduled on, which is what max_num_seqs bounds.

    Before the first arrival + the p99 duration the system fills from empty; after the last arrival
    it drains. None where too few times are recorded. Preempted requests count as served.
    """
    known = columns.served & ~np.isnan(columns.e2e_s)
    span_s = _filled_s(columns, columns.e2e_s[known])
    if running:
        known &= ~np.isnan(columns.queue_s)
    served = np.count_nonzero(columns.served)
    if not served or np.count_nonzero(known) < KNOWN_ENDS * served:
        return None
    begins_s, ends_s = columns.arrival_s[known], (columns.arrival_s + columns.e2e_s)[known]
    if running:
        begins_s = begins_s + columns.queue_s[known]
        ends_s = np.maximum(ends_s, begins_s)
    weight = columns.n[known] if (columns.n != 1).any() else None
    return count_levels(begins_s, ends_s, weight, start_s=span_s[0], end_s=span_s[1])


def modelled_band(columns: Columns) -> dict[float, Held]:
    """Return what would be in flight at each speed of the band.

    No server keeps one speed at any load: this is for a preview, never a target. So of a long trace
    every few requests stand for those between.
    """
    served, every = columns.served, -(-len(columns) // MOST_PREVIEWED)
    begins_s = columns.arrival_s[served][::every]
    lengths = columns.output_length[served][::every].astype(np.float64)
    weight = columns.n[served][::every].astype(np.int64) * every
    band = {}
    for speed in BAND_S_PER_TOKEN if len(begins_s) else ():
        start_s, end_s = _filled_s(columns, lengths * speed)
        levels = count_levels(
            begins_s, begins_s + lengths * speed, weight, start_s=start_s, end_s=end_s
        )
        if levels is not None:
            band[speed] = levels.held()
    return band


def _filled_s(columns: Columns, lasted_s: Floats) -> tuple[float, float]:
    """Return the time in which the trace neither fills up nor drains; all of a trace that is
    shorter than its requests."""
    first_s, last_s = float(columns.arrival_s[0]), float(columns.arrival_s[-1])
    p99_s = float(np.quantile(lasted_s, 0.99)) if len(lasted_s) else 0.0
    return first_s + p99_s * (p99_s < (last_s - first_s) / 2), last_s
