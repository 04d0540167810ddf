"""Counts the requests in flight, and those running, over time. Pure.

A request is in flight from its arrival to its end, waiting included, and counts n times. The
distribution is over time and not over arrivals: quantile q is the least level that holds for a
share q of the time.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns, Floats
from tuner.traffic.levels import Held, Levels, count_held, count_levels

BAND_S_PER_TOKEN = (0.010, 0.020, 0.040, 0.080)
"""Times per output token of a fast and of a slow server, for traces whose ends are unknown."""

MOST_PREVIEWED = 2**20
"""Requests that are counted for a preview."""

KNOWN_ENDS = 0.95
"""Share of the served requests whose end must be recorded, for the recorded concurrency."""


def levels(columns: Columns, durations_s: Floats, *, start_s: float, end_s: float) -> Levels | None:
    """Return what was in flight in [start_s, end_s); None for an empty time.

    Requests without a duration (NaN) are left out.
    """
    intervals = _intervals(columns, columns.arrival_s, columns.arrival_s + durations_s)
    return count_levels(*intervals, start_s=start_s, end_s=end_s)


def recorded_levels(columns: Columns) -> Levels | None:
    """Return the levels by recorded ends, from when the trace has filled up to the last arrival.

    Before the first arrival + the p99 duration the system fills from empty; after the last arrival
    it drains. None where too few ends are recorded.
    """
    if not _mostly_known(columns, columns.e2e_s):
        return None
    start_s, end_s = _filled(columns, columns.e2e_s)
    return levels(columns, columns.e2e_s, start_s=start_s, end_s=end_s)


def running(columns: Columns, *, start_s: float, end_s: float) -> Held | None:
    """Return how many were being served: from first scheduled to the end, without the wait before.

    This is what max_num_seqs bounds. Preempted requests, which wait again, count as served.
    """
    begins_s = columns.arrival_s + columns.queue_s
    ends_s = columns.arrival_s + columns.e2e_s
    np.maximum(ends_s, begins_s, out=ends_s)
    return count_held(*_intervals(columns, begins_s, ends_s), start_s=start_s, end_s=end_s)


def recorded_running(columns: Columns) -> Held | None:
    """Return what was running over the same time as ``recorded_levels``.

    None where too few ends or waits are recorded.
    """
    if not _mostly_known(columns, columns.e2e_s, columns.queue_s):
        return None
    start_s, end_s = _filled(columns, columns.e2e_s)
    return running(columns, start_s=start_s, end_s=end_s)


def modelled_band(columns: Columns) -> dict[float, Held]:
    """Return what would be in flight at each speed of the band.

    No server keeps one speed at any load: this is for a preview, never a target. So of a long trace
    every few requests stand for those between.
    """
    served = columns.served
    if not served.any():
        return {}
    every = -(-len(columns) // MOST_PREVIEWED)
    begins_s = columns.arrival_s[served][::every]
    lengths = columns.output_length[served][::every]
    weight = columns.n[served][::every] * every
    first_s, last_s = float(columns.arrival_s[0]), float(columns.arrival_s[-1])
    p99 = float(np.quantile(lengths, 0.99))
    band = {}
    for speed in BAND_S_PER_TOKEN:
        start_s = _filled_s(first_s, last_s, p99 * speed)
        ends_s = begins_s + lengths * speed
        held = count_held(begins_s, ends_s, weight, start_s=start_s, end_s=last_s)
        if held is not None:
            band[speed] = held
    return band


def _intervals(
    columns: Columns, begins_s: Floats, ends_s: Floats
) -> tuple[Floats, Floats, NDArray[np.int32] | None]:
    """Return the intervals of what was served and ended, and their weights if any is not 1."""
    weight = columns.n if (columns.n != 1).any() else None
    known = columns.served & ~np.isnan(ends_s)
    if not known.all():
        begins_s, ends_s = begins_s[known], ends_s[known]
        weight = None if weight is None else weight[known]
    return begins_s, ends_s, weight


def _mostly_known(columns: Columns, *recorded: NDArray[Any]) -> bool:
    known = columns.served.copy()
    for times_s in recorded:
        known &= ~np.isnan(times_s)
    served = np.count_nonzero(columns.served)
    return bool(served > 0 and np.count_nonzero(known) >= KNOWN_ENDS * served)


def _filled(columns: Columns, durations_s: Floats) -> tuple[float, float]:
    """Return the time in which the trace neither fills up nor drains."""
    known = columns.served & ~np.isnan(durations_s)
    first_s, last_s = float(columns.arrival_s[0]), float(columns.arrival_s[-1])
    lasted_s = durations_s if known.all() else durations_s[known]
    return _filled_s(first_s, last_s, float(np.quantile(lasted_s, 0.99))), last_s


def _filled_s(first_s: float, last_s: float, p99_s: float) -> float:
    if p99_s >= (last_s - first_s) / 2:
        return first_s  # the trace is shorter than its requests: there is no better part
    return first_s + p99_s
