"""One measure of a watch: the mean over batches of windows, held against its limits. Pure.

Neighbouring windows resemble each other, batches of a minute hardly do, so that the plain standard
error of their mean is a fair one. It is looked at after every batch; an alarm takes ``ALARM_Z``
standard errors, far beyond what looking often brings about. "Within" is what a t interval says of
the newest half hour: the verdict is the one at the end of the watch.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

BATCH_WINDOWS = 6
"""Windows of a batch: a minute of windows of 10 s."""

KEPT, NEWEST = 30, 4
"""Batches that a mean is taken over, and the newest ones, which find a change sooner."""

LEAST_ALARM, LEAST_WITHIN = 3, 2
"""Batches below which nothing is said."""

ALARM_Z = 4.0
"""Standard errors beyond a limit at which a measure alarms."""

PRIOR_WEIGHT = 4.0
"""Batches that the belief about how far batches spread is worth, before they are seen."""

MOST = 1e100
"""Its square is still a number: a broken server may report anything."""

State = Literal["unknown", "within", "above", "below"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Between which a mean is as it should be. ``low`` is -inf where less is only better."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(slots=True)
class Monitor:
    """The mean of one measure over the newest batches."""

    limits: Limits
    prior_sd: float
    """How far single batches spread, before that is seen."""

    batches: int = 0
    _values: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, value: float) -> None:
        """Take the value of a batch in."""
        self.batches += 1
        self._values.append(min(MOST, max(-MOST, value)))

    @property
    def state(self) -> State:
        """Surely beyond a limit, within both by the 95 % interval, or unknown."""
        if self.is_above(self.limits.high):
            return "above"
        if self._is_below(NEWEST) or self._is_below(KEPT):
            return "below"
        interval = self.interval()
        if interval is None or len(self._values) < LEAST_WITHIN:
            return "unknown"
        inside = self.limits.low <= interval.low and interval.high <= self.limits.high
        return "within" if inside else "unknown"

    def is_above(self, limit: float) -> bool:
        """Whether the mean is surely above a limit."""
        return self._is_above(limit, NEWEST) or self._is_above(limit, KEPT)

    @property
    def is_beyond(self) -> bool:
        return self.state in {"above", "below"}

    def interval(self) -> Interval | None:
        """Return the mean with its t interval, None without any batch: of the newest ones where
        they are beyond a limit, for that may be new."""
        from scipy.special import stdtrit  # noqa: PLC0415 - slow to load

        if not self._values:
            return None
        is_new = self._is_above(self.limits.high, NEWEST) or self._is_below(NEWEST)
        size = min(len(self._values), NEWEST if is_new else KEPT)
        mean, error = self._mean(size)
        reach = float(stdtrit(size - 1 + PRIOR_WEIGHT, 0.975)) * error
        return Interval(mean, mean - reach, mean + reach)

    def _is_above(self, limit: float, newest: int) -> bool:
        mean, error = self._mean(newest)
        return len(self._values) >= LEAST_ALARM and mean - ALARM_Z * error > limit

    def _is_below(self, newest: int) -> bool:
        mean, error = self._mean(newest)
        return len(self._values) >= LEAST_ALARM and mean + ALARM_Z * error < self.limits.low

    def _mean(self, newest: int) -> tuple[float, float]:
        """Return the mean of the newest batches and its standard error."""
        values = np.array(self._values)[-newest:]
        if not len(values):
            return 0.0, math.inf
        known = len(values) - 1
        variance = float(values.var(ddof=1)) if known else 0.0
        variance = (known * variance + PRIOR_WEIGHT * self.prior_sd**2) / (known + PRIOR_WEIGHT)
        return float(values.mean()), math.sqrt(variance / len(values))
