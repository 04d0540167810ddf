"""Counts the requests in flight over time. Pure.

A request is in flight from its arrival to its end, waiting included, and counts n times. The
distribution is over time and not over arrivals: quantile q is the least level that holds for a
share q of the time.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns, Floats

BAND_S_PER_TOKEN = (0.010, 0.020, 0.040, 0.080)
"""Times per output token of a fast and of a slow server, for traces whose ends are unknown."""

MOST_PREVIEWED = 2**20
"""Requests that are counted for a preview."""

MOST_COUNTED = 2**25
"""Levels that are counted one by one, in a quarter of a gigabyte."""

BLOCK = 2**20
"""Stretches that are counted at once."""

KNOWN_ENDS = 0.95
"""Share of the served requests whose end must be recorded, for the recorded concurrency."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Tokens a request, over the requests that were served; or requests in flight, over time."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True)
class Levels:
    """The requests in flight, one entry for each stretch of time, in order."""

    level: NDArray[Any]
    begin_s: Floats
    end_s: float
    """Of the last stretch; each of the others ends where the next begins."""

    @property
    def duration_s(self) -> Floats:
        return np.diff(self.begin_s, append=self.end_s)

    def distribution(self) -> Distribution:
        levels, place = np.arange(int(self.level.max()) + 1), self.level
        if len(levels) > MOST_COUNTED:
            levels, place = np.unique(self.level, return_inverse=True)
        held_s = np.bincount(place, weights=self.duration_s)
        reached = np.cumsum(held_s) / held_s.sum()
        at = np.searchsorted(reached, np.array((0.50, 0.90, 0.95, 0.99)) * (1 - 1e-12))
        p50, p90, p95, p99 = levels[at].tolist()
        mean = float(levels @ held_s / held_s.sum())
        return Distribution(mean, p50, p90, p95, p99, int(levels[-1]))

    def above(self, level: int) -> tuple[float, float]:
        """Return the share of the time with more than ``level`` in flight, and the longest such
        time without a break."""
        above, duration_s = self.level > level, self.duration_s
        begins = np.flatnonzero(np.diff(above, prepend=not above[0]))
        runs_s = np.add.reduceat(duration_s, begins)
        longest_s = float(np.max(runs_s, where=above[begins], initial=0.0))
        return float(duration_s[above].sum() / duration_s.sum()), longest_s

    def at(self, times_s: NDArray[Any]) -> NDArray[Any]:
        """Return the levels at these times; the first one before all of them."""
        place = np.searchsorted(self.begin_s, times_s, side="right") - 1
        return np.asarray(self.level[np.maximum(0, place)])


def count_levels(
    begins_s: Floats, ends_s: Floats, weight: NDArray[Any] | None, *, start_s: float, end_s: float
) -> Levels | None:
    """Return how many of the intervals hold at each time in [start_s, end_s); None for no time.

    Each counts as often as ``weight`` says, None for once. At one time ends come before begins, so
    that nothing is in flight for no time.
    """
    begin_s = np.concatenate(([start_s], begins_s, ends_s))
    np.clip(begin_s, start_s, end_s, out=begin_s)
    begin_s.sort()
    begin_s = begin_s[np.append(begin_s[1:] > begin_s[:-1], begin_s[-1] < end_s)]
    begun, over = _counter(begins_s, weight), _counter(ends_s, weight)
    if not len(begin_s):
        return None
    level = np.empty(len(begin_s), np.int32 if weight is None else np.int64)
    for at in range(0, len(level), BLOCK):  # all at once they take more memory
        block = begin_s[at : at + BLOCK]
        level[at : at + BLOCK] = begun(block) - over(block)
    return Levels(level, begin_s, end_s)


def _counter(
    moments_s: Floats, weight: NDArray[Any] | None
) -> Callable[[Floats], NDArray[np.int64]]:
    """Return what counts the moments up to each of some times."""
    if weight is None:
        in_order_s = np.sort(moments_s)
        return lambda times_s: np.searchsorted(in_order_s, times_s, side="right")
    order = np.argsort(moments_s)
    in_order_s = moments_s[order]
    upto = np.concatenate(([0], np.cumsum(weight[order], dtype=np.int64)))
    return lambda times_s: upto[np.searchsorted(in_order_s, times_s, side="right")]


def recorded_levels(columns: Columns, *, running: bool = False) -> Levels | None:
    """Return the levels by recorded ends, from when the trace has filled up to the last arrival;
    of those ``running``: from first scheduled on, which is what max_num_seqs bounds.

    None where too few times are recorded. Preempted requests count as served.
    """
    known = columns.served & ~np.isnan(columns.e2e_s)
    start_s, end_s = _filled_s(columns, columns.e2e_s[known])
    if running:
        known &= ~np.isnan(columns.queue_s)
    served = np.count_nonzero(columns.served)
    if not served or np.count_nonzero(known) < KNOWN_ENDS * served:
        return None
    begins_s, ends_s = columns.arrival_s[known], (columns.arrival_s + columns.e2e_s)[known]
    if running:
        begins_s = np.minimum(begins_s + columns.queue_s[known], ends_s)
    weight = columns.n[known] if (columns.n != 1).any() else None
    return count_levels(begins_s, ends_s, weight, start_s=start_s, end_s=end_s)


def modeled_band(columns: Columns) -> dict[float, Distribution]:
    """Return what would be in flight at each speed of the band.

    No server keeps one speed at any load: this is for a preview, never a target. So of a long trace
    every few requests stand for those between.
    """
    served, every = columns.served, -(-len(columns) // MOST_PREVIEWED)
    begins_s = columns.arrival_s[served][::every]
    lengths = columns.output_length[served][::every].astype(np.float64)
    n = columns.n[served][::every]
    weight = n if (n != 1).any() else None
    band = {}
    for speed in BAND_S_PER_TOKEN if len(begins_s) else ():
        start_s, end_s = _filled_s(columns, lengths * speed)
        ends_s = begins_s + lengths * speed
        levels = count_levels(begins_s, ends_s, weight, start_s=start_s, end_s=end_s)
        if levels is not None:
            seen = astuple(levels.distribution())
            band[speed] = Distribution(*(each * every for each in seen))
    return band


def _filled_s(columns: Columns, lasted_s: Floats) -> tuple[float, float]:
    """Return the time in which the trace neither fills up nor drains, from the first arrival + the
    p99 duration to the last arrival; all of a trace that is shorter than its requests."""
    first_s, last_s = float(columns.arrival_s[0]), float(columns.arrival_s[-1])
    p99_s = float(np.quantile(lasted_s, 0.99)) if len(lasted_s) else 0.0
    return first_s + p99_s * (p99_s < (last_s - first_s) / 2), last_s
