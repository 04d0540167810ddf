"""The mean of pairs of replays without their luck, and how sure it is. Pure."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.runs.refine.gains.luck_share import (
    BELIEVED,
    HALF_OFF,
    SHARES,
    Lucks,
    Pairs,
    log_ratios,
    prior_sd,
    share_weights,
    spread_of,
    times,
)
from tuner.runs.refine.objective import Objective
from tuner.twin.uncertainty import PRIOR_WEIGHT

DRAWS = 4000
"""So many say how probable a gain is to a thousandth."""

T_POINTS, T_EACH = 2000, 200
"""Points that stand for Student's t, and draws that each of them is the mean of."""


@dataclass(frozen=True, slots=True)
class PairMean:
    """The mean of pairs without their luck: a mixture of Student's t over SHARES, log ratios."""

    middle: float
    share: float
    """Of the luck that the twin sees, how much is taken out."""

    trust: float
    """How much of how far the law may be off is left to trust: 1 where all pairs had the same luck,
    so that none shows it."""

    means: Floats
    sds: Floats
    weights: Floats
    """Of the mixture, which add up to 1."""

    freedom: float

    def draws(self) -> Floats:
        """Return DRAWS quantiles."""
        points = self.means[:, None] + self.sds[:, None] * t_points(self.freedom)
        return quantiles(points.ravel(), np.repeat(self.weights, T_POINTS))

    def density(self, points: Floats) -> Floats:
        """Return how likely the pairs are where that of all is so much, but for a constant."""
        found = np.zeros(len(points))
        for mean, sd, weight in zip(self.means, self.sds, self.weights, strict=True):
            found += weight * student_t(points - mean, sd, self.freedom)
        return found


def mean_without_luck(objective: Objective, pairs: Pairs, lucks: Lucks) -> PairMean | None:
    """Return the mean of the pairs' log ratios where it is not known how much of the luck there
    really was, but that it is about all, the same share on both sides and in every pair: one law is
    what is wrong of them. For each share it is Student's t over what is left. None where a pair has
    no such number."""
    found = [log_ratios(objective, pairs, times(lucks, share)) for share in SHARES.tolist()]
    logs = np.array([one for one in found if one is not None])
    if len(logs) < len(found):
        return None
    sds = [prior_sd(objective, pairs, times(lucks, share)) for share in SHARES.tolist()]
    freedom, means = PRIOR_WEIGHT + len(pairs) - 1, logs.mean(axis=1)
    left = PRIOR_WEIGHT * np.square(sds) + np.square(logs - means[:, None]).sum(axis=1)
    shown = share_weights(objective, pairs, lucks)
    blur = np.exp(-0.5 * ((SHARES[:, None] - SHARES) / HALF_OFF) ** 2)
    weights = blur @ shown
    share = float(shown @ SHARES)
    return PairMean(
        middle=float(np.interp(share, SHARES, means)),
        share=share,
        trust=min(1.0, spread_of(shown) / spread_of(BELIEVED)),
        means=means,
        sds=np.sqrt(blur @ (shown * left / freedom / len(pairs)) / weights),
        weights=weights / weights.sum(),
        freedom=freedom,
    )


def student_t(off: Floats, scale: float, freedom: float) -> Floats:
    """Return the density of Student's t."""
    height = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2)
    height /= math.sqrt(freedom * math.pi) * scale
    found: Floats = height * (1 + (off / scale) ** 2 / freedom) ** (-(freedom + 1) / 2)
    return found


@lru_cache
def t_points(freedom: float) -> Floats:
    """Return T_POINTS that stand for Student's t, each with the same probability."""
    drawn = np.sort(np.random.default_rng(0).standard_t(freedom, T_POINTS * T_EACH))
    found: Floats = drawn.reshape(T_POINTS, T_EACH).mean(axis=1)
    return found


def quantiles(points: Floats, weights: Floats) -> Floats:
    """Return DRAWS that stand for points of which some count more."""
    order = points.argsort()
    each = weights[order] / weights.sum()
    found: Floats = np.interp(
        (np.arange(DRAWS) + 0.5) / DRAWS, each.cumsum() - each / 2, points[order]
    )
    return found
