"""The A/A check: whether the confirming engine is like the one that the ladder measured. Pure.

Two replays of one cap differ because the machine's speed varies. So each is held against the twin
at the speed that the machine had then, as a control variate: what is left is the engine's. Raw
tails of two equal replays would differ "significantly" most of the time (docs/decisions).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.seam import IterationLog
from tuner.twin.check import Observed, driven
from tuner.twin.forecast import Forecast
from tuner.twin.law import START_SHARE
from tuner.twin.simulation import attainment

PRIOR_SD, PRIOR_WEIGHT = 0.03, 4.0
"""Standard deviation of one window's attainment from the twin's before any was seen, and the
windows that this belief is worth."""

CLAIM = 2.0
"""Standard deviations beyond which a difference is claimed: 5 % of equal pairs where the noise is
normal."""

CLAIM_SPEED = 3.0
"""The same for speed, whose noise is not: a bad neighbour stays for a minute."""

LEAST_ATTAINMENT = 0.02
"""A smaller difference is not worth a word."""

POWER_SD = 0.84
"""Standard deviations above the claim at which four of five differences are claimed."""

PRIOR_SPEED_SD = 0.02
"""How far the mean speed of a minute is from machine speed, before it was seen."""


@dataclass(frozen=True, slots=True)
class AaCheck:
    """The confirming engine against the ladder's."""

    slower: float
    """How much longer its iterations took than the law says; 0.1 is 10 %."""

    slower_limit: float
    """What the machine's own changes of speed explain."""

    attainment: float
    """Attainment that neither the machine's speed nor the ladder explains."""

    attainment_limit: float

    @property
    def slower_found(self) -> float:
        """Slowdown of an engine that would have been claimed in 80 % of cases; 0.1 is 10 %."""
        return math.expm1(self.slower_limit * (1 + POWER_SD / CLAIM_SPEED))

    @property
    def attainment_found(self) -> float:
        """Difference in attainment that would have been claimed in 80 % of cases."""
        return self.attainment_limit * (1 + POWER_SD / CLAIM)

    @property
    def speed_differs(self) -> bool:
        return abs(math.log1p(self.slower)) > self.slower_limit

    @property
    def attainment_differs(self) -> bool:
        return abs(self.attainment) > self.attainment_limit


def aa_check(
    view: Forecast, ladder: Sequence[Observed], confirming: Sequence[Observed], *, cap: int
) -> AaCheck | None:
    """Return how the confirming windows at ``cap`` agree with the ladder's; None without any."""
    confirming = [one for one in confirming if len(one.iterations)]
    if not confirming:
        return None
    slower = _log_slowdown(view, [one.iterations for one in confirming])
    before = [_log_slowdown(view, [one.iterations]) for one in ladder if len(one.iterations)]
    seen = math.sqrt(float(np.mean(np.square(before)))) if before else 0.0
    speed_sd = math.hypot(PRIOR_SPEED_SD, max(view.speed_sd, seen))
    ours = [_left(view, one) for one in confirming if not one.cut]
    theirs = [_left(view, one) for one in ladder if not one.cut]
    same = [_left(view, one) for one in ladder if not one.cut and one.max_num_seqs == cap]
    spread = math.sqrt(
        (sum(one**2 for one in theirs) + PRIOR_WEIGHT * PRIOR_SD**2) / (len(theirs) + PRIOR_WEIGHT)
    )
    difference = float(np.mean(ours) - (np.mean(same) if same else 0.0)) if ours else 0.0
    return AaCheck(
        slower=math.expm1(slower),
        slower_limit=CLAIM_SPEED * speed_sd * math.sqrt(2 * (1 + START_SHARE**2)),
        attainment=difference,
        attainment_limit=max(LEAST_ATTAINMENT, CLAIM * spread),
    )


def _log_slowdown(view: Forecast, logs: Sequence[IterationLog]) -> float:
    """Return log(measured / lawful time) of these iterations."""
    work = np.concatenate(logs)
    lawful_s = float(view.fitted.law.durations_s(work).sum())
    return math.log(float(work["duration_s"].sum()) / lawful_s) if lawful_s > 0 else 0.0


def _left(view: Forecast, window: Observed) -> float:
    """Return measured minus predicted attainment of a window at the speed that it had."""
    twin = driven(window, view.fitted.law, view.shape)
    return attainment(window.traffic, window, view.slo) - attainment(window.traffic, twin, view.slo)
