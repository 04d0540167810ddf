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

    def mean(self) -> float:
        return float(self.level @ self.duration_s / self.duration_s.sum())

    def quantiles(self, *shares: float) -> tuple[int, ...]:
        order = np.argsort(self.level)
        time_s = np.cumsum(self.duration_s[order])
        at = np.searchsorted(time_s, np.array(shares) * time_s[-1] * (1 - 1e-12))
        return tuple(self.level[order[at]].tolist())

    def max(self) -> int:
        return int(self.level.max())

    def share_above(self, level: int) -> float:
        return float(self.duration_s[self.level > level].sum() / self.duration_s.sum())

    def longest_above_s(self, level: int) -> float:
        """Return the longest time without a break with more than ``level`` in flight."""
        above = self.level > level
        stretch = np.cumsum(np.diff(above, prepend=False))  # a number for each run of equals
        return float(np.bincount(stretch, weights=self.duration_s * above).max())


def levels(columns: Columns, durations_s: Floats, *, start_s: float, end_s: float) -> Levels | None:
    """Return what was in flight in [start_s, end_s); None for an empty time.

    Requests without a duration (NaN) are left out.
    """
    known = columns.served & ~np.isnan(durations_s)
    starts_s = columns.arrival_s[known]
    sequences = columns.n[known].astype(np.int64)
    times_s = np.concatenate([[start_s], starts_s, starts_s + durations_s[known], [end_s]])
    changes = np.concatenate([[0], sequences, -sequences, [0]])
    order = np.argsort(times_s, kind="stable")
    level = np.cumsum(changes[order])[:-1]
    duration_s = np.diff(np.clip(times_s[order], start_s, end_s))
    lasting = duration_s > 0  # nothing is in flight for no time: ends come before starts
    return Levels(level[lasting], duration_s[lasting]) if lasting.any() else None


def recorded_levels(columns: Columns, *, grain_s: float = 0.0) -> Levels | None:
    """Return the levels by recorded ends, from when the trace has filled up to the last arrival.

    Before the first arrival + the p99 duration the system fills from empty; after the last arrival
    it drains. Durations of 0 become half of the clock's grain. None where too few ends are
    recorded.
    """
    served = columns.served
    ends = ~np.isnan(columns.e2e_s) & served
    if not served.any() or ends.sum() < KNOWN_ENDS * served.sum():
        return None
    durations_s = np.where(columns.e2e_s == 0, grain_s / 2, columns.e2e_s)
    return _filled(columns, durations_s)


def modelled_levels(columns: Columns, *, s_per_token: float) -> Levels | None:
    """Return the levels if each output token took ``s_per_token`` whatever the load.

    No server behaves so: this is for a preview, as a band over several speeds, never a target.
    """
    return _filled(columns, columns.output_length * np.float64(s_per_token))


def _filled(columns: Columns, durations_s: Floats) -> Levels | None:
    known = columns.served & ~np.isnan(durations_s)
    if not known.any():
        return None
    first_s, last_s = float(columns.arrival_s[0]), float(columns.arrival_s[-1])
    filled_s = first_s + float(np.quantile(durations_s[known], 0.99))
    if filled_s >= first_s + (last_s - first_s) / 2:
        filled_s = first_s  # the trace is shorter than its requests: there is no better part
    return levels(columns, durations_s, start_s=filled_s, end_s=last_s)
