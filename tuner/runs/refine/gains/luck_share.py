"""How much of the luck that the twin sees is real, as pairs of replays show it. Pure.

Lucks are per pair the knee's and the refined one's, as ``luck.py`` has them.
"""

import math
from collections.abc import Sequence

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.runs.refine.objective import LEAST_ATTAINMENT, Numbers, Objective, gain
from tuner.twin.uncertainty import PRIOR_WEIGHT

PAIR_SHARE = 0.5
"""How far the two replays of a pair differ, which follow each other, of how far any two do."""

TWIN_OFF = 0.2
"""How far off the twin is when it says what one configuration gains over another, as a share of
that: a standard deviation (docs/experiments)."""

HALF_OFF = TWIN_OFF / math.sqrt(2)
"""Of luck half of that variance is the law's, which pairs whose luck differs can show; half is what
no difference between pairs shows, as a traffic of all that is not told right."""

OFF_FREEDOM = 5.0
"""Of Student's t, by which the law is off: a few gains were half or twice what was stated, which no
normal distribution of that deviation explains (docs/experiments)."""

SHARES = np.linspace(0.0, 2.0, 101)
"""Of the luck that the twin sees, how much there may really have been."""

BELIEVED = (1 + ((SHARES - 1) / HALF_OFF) ** 2 / OFF_FREEDOM) ** (-(OFF_FREEDOM + 1) / 2)
"""How likely each of them is before a pair was replayed."""

Pairs = Sequence[tuple[Numbers, Numbers]]
"""(Knee, refined), replayed one after the other."""

Lucks = Sequence[tuple[float, float]]


def share_weights(objective: Objective, pairs: Pairs, lucks: Lucks) -> Floats:
    """Return how probable each of SHARES is: what leaves little between pairs whose luck differs.

    A control variate with an uncertain coefficient, by its marginal likelihood under a variance
    that is not known (Gelman et al., Bayesian Data Analysis, chapter 14). What the twin says of a
    pair's luck is off by about as much as replays are: only what differs by more counts (regression
    calibration: Carroll et al., Measurement Error in Nonlinear Models, chapter 4).
    """
    apart, by_luck = _apart(objective, pairs, lucks)
    usual = prior_sd(objective, pairs, lucks) ** 2
    by_chance = usual * (len(apart) - 1)
    if by_chance:
        by_luck *= 1 - by_chance / max(by_chance, float(by_luck @ by_luck))
    left = np.square(apart - SHARES[:, None] * by_luck).sum(axis=1)
    freedom = PRIOR_WEIGHT + len(apart) - 1
    likely = BELIEVED * np.exp(-0.5 * freedom * np.log1p(left / (PRIOR_WEIGHT * usual)))
    found: Floats = likely / likely.sum()
    return found


def _apart(objective: Objective, pairs: Pairs, lucks: Lucks) -> tuple[Floats, Floats]:
    """Return how far each pair's log ratio as replayed is from their mean, and its luck from that
    of all. Of shares in units of the means without any luck, whichever share is asked about: in
    units of its own a share would be the likelier the less it makes of the noise of one side."""
    if objective.is_share:
        with_luck, luck = evened(pairs, [(0.0, 0.0)] * len(pairs)), np.array(lucks)
        units = np.clip(evened(pairs, lucks).mean(axis=0), LEAST_ATTAINMENT, 1.0)
        raw, lucky = np.diff(with_luck / units).ravel(), np.diff(luck / units).ravel()
    else:
        logs = [log_ratios(objective, pairs, times(lucks, share)) for share in (0.0, 1.0)]
        raw, even = (one for one in logs if one is not None)
        lucky = raw - even
    return raw - raw.mean(), lucky - lucky.mean()


def spread_of(weights: Floats) -> float:
    """Return the standard deviation of SHARES that are so likely."""
    weights = weights / weights.sum()
    return math.sqrt(float(weights @ np.square(SHARES - weights @ SHARES)))


def log_ratios(objective: Objective, pairs: Pairs, lucks: Lucks) -> Floats | None:
    """Return the log ratio of each pair without its luck, so that their mean is that of all; None
    where there is no pair, or one has no such number.

    Of shares it is the ratio of the means and what each pair adds to it (a ratio estimator:
    Cochran, Sampling Techniques, chapter 6): a replay in which a neighbour left nothing to be
    served is one of several, and no logarithm of 0.
    """
    if not pairs:
        return None
    if objective.is_share:
        attained = evened(pairs, lucks)
        means = np.clip(attained.mean(axis=0), LEAST_ATTAINMENT, 1.0)
        parts = (attained - attained.mean(axis=0)) / means
        whole: Floats = np.log(means[1] / means[0]) + parts[:, 1] - parts[:, 0]
        return whole
    found = [
        gain(objective, refined, knee, luck)
        for (knee, refined), luck in zip(pairs, lucks, strict=True)
    ]
    known = [one for one in found if one is not None]
    return np.array(known) if len(known) == len(found) else None


def evened(pairs: Pairs, lucks: Lucks) -> Floats:
    """Return attainment without luck, (pairs, 2): the knee's and the refined one's."""
    attained = np.array([[one.attainment for one in pair] for pair in pairs])
    found: Floats = attained - np.array(lucks)
    return found


def prior_sd(objective: Objective, pairs: Pairs, lucks: Lucks) -> float:
    """Return how far the two replays of a pair usually differ, as a logarithm: of shares it is so
    much of all requests, so the more of themselves the less the knee serves."""
    usual = PAIR_SHARE * objective.prior_sd
    if not objective.is_share:
        return usual
    return usual / float(np.clip(evened(pairs, lucks)[:, 0].mean(), LEAST_ATTAINMENT, 1.0))


def times(lucks: Lucks, share: float) -> list[tuple[float, float]]:
    """Return so much of each luck, on both sides."""
    return [(knee * share, other * share) for knee, other in lucks]


def share_taken(pairs: Pairs, lucks: Lucks) -> float:
    """Return how much of the knee's share was taken out as luck of the refined one's, net. Beside
    the ratio's own change: of little that was served ratios run away, and of shares that are far
    apart such differences do; neither is a large correction where the other is not."""
    knee, refined = np.mean(lucks, axis=0)
    served = max(LEAST_ATTAINMENT, float(evened(pairs, lucks)[:, 0].mean()))
    return float(knee - refined) / served
