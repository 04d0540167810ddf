"""Tests that may be looked at after every window, however often, and intervals likewise. Pure.

Alarms. For an increment y_t >= -B of which the null hypothesis says that its conditional mean is 0
or less, and a bet 0 < b < 1/B, 1 + b y_t is an e-value. The e-detector of Shiryaev and Roberts,

  M_t = (M_{t-1} + 1) (1 + b y_t),

may have begun at any window: E M_t <= t as long as nothing has changed, so that by Doob's
inequality an alarm at M_t >= ARL comes within t windows with a probability of t / ARL at most, and
every ARL windows on average (Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for
sequential change detection", 2023). Bets are mixed evenly: the mean of e-detectors is one.

"Within the limits" is claimed by e-processes, W_t = W_{t-1} (1 + b y_t), against the hypotheses
that the mean is at or beyond a limit: W_t >= 1/LEVEL has a probability of LEVEL at most, ever
(Ville's inequality; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting", 2024). That a measure is back within them is an alarm too, in the other direction.

Increments are winsorised at the same distance to either side of the limit, so that no single window
decides. The mean that is tested is therefore Huber's: that of the winsorised windows. For noise
that is as far to one side as to the other it is the plain mean, however far windows spread: of
4,000 watches of 200 windows with the mean just at a limit, of which the theory allows 2 % to alarm,
0.2, 0.4, 0.6 and 0.6 % did where the standard deviation was 0.3, 0.7, 2 and 7 reaches, and 0.6 %
with Student's t of three degrees of freedom. What is beyond the theory, again just at the limit:

- Windows that resemble their neighbours: 27 % at a correlation of 0.5 and a standard deviation of
  0.7 reaches. They do, and the limits allow for that (``watch.verdict.SPEED_SDS``); with the mean
  half a reach within the limit none of 4,000 did.
- Lopsided noise: windows that are now and then far faster raise the winsorised mean over the plain
  one, and alarm; windows that are now and then far slower are told by less than they weigh.

Intervals are asymptotic confidence sequences (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", 2024), with the long-run
variance of Newey and West (1987), because neighbouring windows resemble each other. They are for
people; alarms do not rest on them.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ARL = 10_000.0
"""Windows between two false alarms of one measure, on average and at least: 28 hours of 10 s."""

LEVEL = 0.05
"""Probability that "within the limits" is ever claimed falsely, in a whole watch."""

BETS = np.array([0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9])
"""Bets as shares of 1/B, B being the reach."""

KEPT = 2048
"""Windows that an interval is made of at most."""

STRETCH = 100.0
"""The number of windows at which the intervals are narrowest for what they promise."""

MOST = 1e100
"""Its square is still a number: a broken server may say anything."""

PRIOR_WEIGHT = 4.0
"""Windows that the belief about how far windows spread is worth, before they are seen."""

State = Literal["unknown", "within", "above", "below"]


@dataclass(frozen=True, slots=True)
class MonitorLimits:
    """Between which a mean is as it should be. ``low`` is -inf where less is only better."""

    low: float
    high: float
    reach: float
    """How far to either side of a limit a window counts; more counts as so much: none decides
    alone."""


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(slots=True)
class _Side:
    """One limit: an alarm for means beyond it, and a claim that the mean is not."""

    limit: float
    sign: float
    reach: float
    alarm: Floats = field(default_factory=lambda: np.zeros(len(BETS)))
    claim: Floats = field(default_factory=lambda: np.ones(len(BETS)))
    home: Floats = field(default_factory=lambda: np.zeros(len(BETS)))
    """As ``alarm``, for means that are not beyond the limit any more."""

    chart: float = 1.0
    since: int = 0
    """Windows ago that ``chart``, a CUSUM, was last at its floor: the change, if there was one."""

    def add(self, value: float) -> None:
        beyond = min(1.0, max(-1.0, self.sign * (value - self.limit) / self.reach))
        growth = 1 + BETS * beyond
        self.alarm = np.minimum((self.alarm + 1) * growth, MOST)
        inward = 1 - BETS * beyond
        self.claim = np.minimum(self.claim * inward, MOST)
        self.home = np.minimum((self.home + 1) * inward, MOST)
        self.chart = max(1.0, self.chart * float(growth[len(BETS) // 2]))
        self.since = 0 if self.chart == 1.0 else self.since + 1

    @property
    def alarms(self) -> bool:
        return float(self.alarm.mean()) >= ARL

    @property
    def claims(self) -> bool:
        return float(self.claim.mean()) >= 1 / LEVEL

    @property
    def is_home(self) -> bool:
        return float(self.home.mean()) >= ARL

    @property
    def evidence(self) -> float:
        """Share of the evidence that the claim needs, from 0 to 1."""
        return min(1.0, max(0.0, math.log(float(self.claim.mean())) / math.log(1 / LEVEL)))


@dataclass(slots=True)
class Monitor:
    """The mean of one measure over the windows, watched. Its memory is bounded."""

    limits: MonitorLimits
    prior_sd: float
    """How far single windows spread, before that is seen."""

    state: State = "unknown"
    windows: int = 0
    changed_at: int = 0
    """The window, counted from 0, from which on the state holds."""

    _values: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _sides: dict[Literal["above", "below"], _Side] = field(init=False)

    def __post_init__(self) -> None:
        self._reset()

    def add(self, value: float) -> bool:
        """Take one window's value in; return whether the state changed."""
        before = self.state
        self.windows += 1
        self._values.append(min(MOST, max(-MOST, value)))
        for side in self._sides.values():
            side.add(value)
        for name, side in self._sides.items():
            if side.alarms and before != name:
                self._enter(name, side.since)
                return True
        sides = self._sides.values()
        if before == "unknown" and all(side.claims for side in sides):
            self._enter("within", self.windows)
        elif self.is_beyond and all(side.is_home for side in sides):
            self._enter("within", 0)
        return self.state != before

    def interval(self) -> Interval | None:
        """Return the mean since the last change with its 95 % interval; None before any window."""
        values = np.array(self._values)[-max(1, self.windows - self.changed_at) :]
        return interval(values, prior_sd=self.prior_sd) if len(values) else None

    @property
    def is_beyond(self) -> bool:
        return self.state in {"above", "below"}

    @property
    def evidence(self) -> float:
        """Share of the evidence that "within" needs, from 0 to 1."""
        if self.state != "unknown":
            return 1.0
        return min(side.evidence for side in self._sides.values())

    def _enter(self, state: State, since: int) -> None:
        self.state = state
        self.changed_at = max(0, self.windows - since)
        self._reset()

    def _reset(self) -> None:
        limits = self.limits
        self._sides = {"above": _Side(limits.high, 1.0, limits.reach)}
        if math.isfinite(limits.low):
            self._sides["below"] = _Side(limits.low, -1.0, limits.reach)


def interval(values: Floats, *, prior_sd: float) -> Interval:
    """Return the mean of the windows with an interval that holds at all times at once, 95 %.

    With n windows, of long-run variance v: mean +- sqrt(v 2 (n r + 1) / (n^2 r) log(sqrt(n r + 1)
    / LEVEL)), r chosen for STRETCH windows.
    """
    size = len(values)
    middle = float(values.mean())
    variance = long_run_variance(values, prior_sd=prior_sd)
    tuned = -2 * math.log(LEVEL) + math.log(-2 * math.log(LEVEL) + 1)
    scale = size * tuned / STRETCH
    reach = math.sqrt(
        variance * 2 * (scale + 1) / (size * scale) * math.log(math.sqrt(scale + 1) / LEVEL)
    )
    return Interval(middle, middle - reach, middle + reach)


def long_run_variance(values: Floats, *, prior_sd: float) -> float:
    """Return n times the variance of the mean of n windows that resemble their neighbours.

    Newey and West's estimate with Bartlett's weights, at least the plain variance; together with
    the prior.
    """
    size = len(values)
    around = values - values.mean()
    variance = float(np.mean(around**2))
    total = variance
    lags = min(size - 1, int(4 * (size / 100) ** (2 / 9)) + 2)
    for lag in range(1, lags + 1):
        weight = 1 - lag / (lags + 1)
        total += 2 * weight * float(np.sum(around[lag:] * around[:-lag])) / size
    known = max(total, variance)
    return (size * known + PRIOR_WEIGHT * prior_sd**2) / (size + PRIOR_WEIGHT)
