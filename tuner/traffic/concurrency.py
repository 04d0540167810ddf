"""How many requests at a time. Pure.

A request is in flight from its arrival to its end, waiting included, and counts n times. The
distribution is over time and not over arrivals: quantile q is the least level that holds for a
share q of the time.
"""

from dataclasses import dataclass

import numpy as np

from tuner.traffic.columns import Columns, Floats, Ints

BAND_S_PER_TOKEN = (0.010, 0.020, 0.040, 0.080)
"""Where ends are unknown: time per output token of a fast and of a slow server."""

KNOWN_ENDS = 0.95
"""Share of the served requests whose end must be recorded, for the recorded concurrency."""


@dataclass(frozen=True, slots=True)
class Levels:
    """How many requests were in flight, one entry for each stretch of time, in order."""

    level: Ints
    duration_s: Floats
    start_s: float
    """When the first of them begins."""

    def mean(self) -> float:
        return float(self.level @ self.duration_s / self.duration_s.sum())

    def quantiles(self, *shares: float) -> tuple[int, ...]:
        order = np.argsort(self.level)
        time_s = np.cumsum(self.duration_s[order])
        at = np.searchsorted(time_s, np.array(shares) * time_s[-1] * (1 - 1e-12))
        return tuple(self.level[order[at]].tolist())

    def max(self) -> int:
        return int(self.level.max())

    def highest_in(self, edges_s: Floats) -> list[int | None]:
        """Return the most in flight between each two edges; None where nothing is known."""
        ends_s = self.start_s + np.cumsum(self.duration_s)
        starts_s = ends_s - self.duration_s
        first = np.searchsorted(ends_s, edges_s[:-1], side="right")
        last = np.searchsorted(starts_s, edges_s[1:], side="left")
        return [
            int(self.level[begin:end].max()) if begin < end else None
            for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ]

    def share_above(self, level: int) -> float:
        return float(self.duration_s[self.level > level].sum() / self.duration_s.sum())

    def longest_above_s(self, level: int) -> float:
        """Return the longest time without a break with more than ``level`` in flight."""
        above = self.level > level
        stretch = np.cumsum(np.diff(above, prepend=False))  # a number for each run of equals
        return float(np.bincount(stretch, weights=self.duration_s * above).max())


def levels(
    columns: Columns,
    durations_s: Floats,
    *,
    start_s: float,
    end_s: float,
    begins_s: Floats | None = None,
) -> Levels | None:
    """Return what was in flight in [start_s, end_s); None for an empty time.

    Each request counts from ``begins_s``, by default its arrival; those without a duration (NaN)
    are left out.
    """
    known = columns.served & ~np.isnan(durations_s)
    starts_s = (columns.arrival_s if begins_s is None else begins_s)[known]
    sequences = columns.n[known].astype(np.int64)
    times_s = np.concatenate([[start_s], starts_s, starts_s + durations_s[known], [end_s]])
    changes = np.concatenate([[0], sequences, -sequences, [0]])
    order = np.argsort(times_s, kind="stable")
    level = np.cumsum(changes[order])[:-1]
    duration_s = np.diff(np.clip(times_s[order], start_s, end_s))
    lasting = duration_s > 0  # nothing is in flight for no time: ends come before starts
    return Levels(level[lasting], duration_s[lasting], start_s) if lasting.any() else None


def recorded_levels(columns: Columns, *, grain_s: float = 0.0) -> Levels | None:
    """Return the levels by recorded ends, from when the trace has filled up to the last arrival.

    Before the first arrival + the p99 duration the system fills from empty; after the last arrival
    it drains. Durations of 0 become half of the clock's grain. None where too few ends are
    recorded.
    """
    if not _mostly_known(columns, columns.e2e_s):
        return None
    durations_s = np.where(columns.e2e_s == 0, grain_s / 2, columns.e2e_s)
    start_s, end_s = _filled(columns, durations_s)
    return levels(columns, durations_s, start_s=start_s, end_s=end_s)


def running_levels(columns: Columns) -> Levels | None:
    """Return how many were being served: from first scheduled to the end, without the wait before.

    This is what max_num_seqs bounds. Preempted requests, which wait again, count as served. Over
    the same time as ``recorded_levels``; None where too few ends or waits are recorded.
    """
    served_s = columns.e2e_s - columns.queue_s
    if not _mostly_known(columns, served_s):
        return None
    start_s, end_s = _filled(columns, columns.e2e_s)
    return levels(
        columns,
        np.maximum(served_s, 0),
        start_s=start_s,
        end_s=end_s,
        begins_s=columns.arrival_s + columns.queue_s,
    )


def modelled_levels(columns: Columns, *, s_per_token: float) -> Levels | None:
    """Return the levels if each output token took ``s_per_token`` whatever the load.

    No server behaves so: this is for a preview, as a band over several speeds, never a target.
    """
    if not columns.served.any():
        return None
    durations_s = columns.output_length * np.float64(s_per_token)
    start_s, end_s = _filled(columns, durations_s)
    return levels(columns, durations_s, start_s=start_s, end_s=end_s)


def _mostly_known(columns: Columns, durations_s: Floats) -> bool:
    served = int(columns.served.sum())
    known = int((columns.served & ~np.isnan(durations_s)).sum())
    return served > 0 and known >= KNOWN_ENDS * served


def _filled(columns: Columns, durations_s: Floats) -> tuple[float, float]:
    """Return the time in which the trace neither fills up nor drains."""
    known = columns.served & ~np.isnan(durations_s)
    first_s, last_s = float(columns.arrival_s[0]), float(columns.arrival_s[-1])
    filled_s = first_s + float(np.quantile(durations_s[known], 0.99))
    if filled_s >= first_s + (last_s - first_s) / 2:
        filled_s = first_s  # the trace is shorter than its requests: there is no better part
    return filled_s, last_s
