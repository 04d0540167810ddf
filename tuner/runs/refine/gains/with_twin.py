"""What pairs of replays and the twin together say of a gain: robust Bayesian inference. Pure.

The windows that were replayed are a part of the traffic, of all of which the twin tells. Its law
may be off, which no pair shows, whose luck was taken out by it; and the twin, which pairs show.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.runs.refine.gains.luck_share import OFF_FREEDOM, TWIN_OFF
from tuner.runs.refine.gains.pair_mean import T_POINTS, PairMean, quantiles, student_t, t_points

LEAST_OFF = 0.2
"""How far off the twin is at least, whatever it foresees, of how far the replays of a pair usually
differ, beside what the law may be off. More than random worlds show (docs/experiments), as an
engine is not the twin's model of it."""

ASTRAY = 0.1
"""How probable it is that a gain is anything about what the twin says, of the other sign in one of
four. Between what it is in random worlds, one in fifty on typical machines and one in five on noisy
ones (docs/experiments)."""

ASTRAY_FREEDOM = 1.0
"""Of Student's t. Its tails are longer than those of any pairs, so that these have the last word
where they contradict the twin (Dawid, Posterior expectations for large observations, 1973)."""

_FAR_POINTS = np.tan(np.pi * ((np.arange(T_POINTS) + 0.5) / T_POINTS - 0.5))
"""Quantiles of Student's t of ASTRAY_FREEDOM."""


@dataclass(frozen=True, slots=True)
class ByTwin:
    """The twin's log gains for the whole of the traffic."""

    middle: float
    """By the law that told of the pairs' luck."""

    drawn: Sequence[float]
    """By laws as likely; one at least."""


def with_twin(mean: PairMean, twin: ByTwin, *, usual_sd: float) -> Floats:
    """Return draws of the gain: what the twin says by a law, and how far the twin is off.

    That is mostly within TWIN_OFF of what it says and LEAST_OFF of ``usual_sd`` (how far the
    replays of a pair usually differ), but for ASTRAY; the pairs say how far, as against the twin's
    middle.
    """
    usual = math.hypot(TWIN_OFF * twin.middle, LEAST_OFF * usual_sd)
    astray = math.hypot(twin.middle, usual_sd)
    off = np.sort(
        np.concatenate(
            (mean.draws() - twin.middle, usual * t_points(OFF_FREEDOM), astray * _FAR_POINTS)
        )
    )
    believed = (1 - ASTRAY) * student_t(off, usual, OFF_FREEDOM)
    believed += ASTRAY * student_t(off, astray, ASTRAY_FREEDOM)
    weights = believed * mean.density(off + twin.middle) * np.gradient(off)
    both = np.add.outer(np.asarray(twin.drawn), off).ravel()
    return quantiles(both, np.tile(weights, len(twin.drawn)))
