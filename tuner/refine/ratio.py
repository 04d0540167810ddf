"""Refined / knee with its interval: by pairs of replays in turns, and the twin. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.refine.objective import (
    LEAST_ATTAINMENT,
    OBJECTIVES,
    Numbers,
    Objective,
    gain,
)
from tuner.scheduler.state import Floats
from tuner.uncertainty import EQUAL_ATTAINMENT, GOOD_TAIL, PRIOR_WEIGHT

PAIR_SHARE = 0.5
"""How far the two replays of a pair differ, which follow each other, of how far any two do."""

DRAWS = 4000

MOST_LUCK = 0.30
"""Log ratio. Windows may well gain so much less than all of the traffic does, and the twin is right
about it; about more it was wrong where next to nothing was served in time (docs/experiments)."""

TWIN_OFF = 0.2
"""How far off the twin is when it says what one configuration gains over another, as a share of
that: a standard deviation, before pairs of different luck have shown it (docs/experiments)."""

OFF_FREEDOM = 5.0
"""Of Student's t, by which it is off: a few twins are so by far more."""

SHARES = np.linspace(0.0, 2.0, 101)
"""Of the luck that the twin sees, how much there may really have been."""

T_POINTS, T_EACH = 400, 1000

_Says = tuple[float, float, Floats]
"""A 95 % interval, and draws of what it is of."""

NOT_LOST = 1 - EQUAL_ATTAINMENT
"""Goodput, as a share of the knee's, that no gain may cost."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Refined / knee of one aim, with its 95 % interval; above 1 is more, not better."""

    name: str
    value: float
    low: float
    high: float
    larger_is_better: bool
    replayed: float
    """As the replays alone showed it, luck included."""

    sureness: float
    """How probable it is that the refined one is better."""

    kept: float
    """How probable it is that at least nothing is lost: NOT_LOST of it, or GOOD_TAIL of a time."""

    @property
    def is_better(self) -> bool:
        return self.low > 1 if self.larger_is_better else self.high < 1

    def __str__(self) -> str:
        shown = (f"{100 * (one - 1):+.1f}" for one in (self.value, self.low, self.high))
        value, low, high = shown
        return f"{OBJECTIVES[self.name].text} {value} % ({low} to {high} %)"


def ratio(
    objective: Objective,
    pairs: Sequence[tuple[Numbers, Numbers]],
    foreseen: Sequence[float] = (),
    lucks: Sequence[tuple[float, float]] = (),
) -> Ratio | None:
    """Return refined / knee over (knee, refined) pairs of replays made one after the other.

    Student's t over the pairs' log ratios, of shares over what each adds to the ratio of all; how
    far two replays differ is pooled with what is usual (``uncertainty.PRIOR_SD``; of shares, of all
    requests), so that two pairs that happen to agree prove nothing. ``foreseen`` holds the twin's
    log gains for the whole of the traffic: the interval covers these too, because the windows that
    were replayed are only a part of it. ``lucks`` (per pair the knee's and the refined one's, as
    ``refine.luck`` has them) are taken out, as far as the pairs show that the twin is right about
    them. Where what is left to trust changes more than MOST_LUCK, the ratio rests on the twin
    alone, and the interval covers what the replays say without it as well. Of both the twin may be
    off by TWIN_OFF, the same in every pair. None where a pair has no such number.
    """
    no_luck = [(0.0, 0.0)] * len(pairs)
    lucks = lucks or no_luck
    raw, found = _logs(objective, pairs, no_luck), _without_luck(objective, pairs, lucks)
    if raw is None or found is None:
        return None
    middle, replayed = found.middle, float(raw.mean())
    says = [_interval(found.draws)]
    taken = middle - replayed
    if objective.is_share:
        taken = min(taken, _share_taken(pairs, lucks), key=abs)
    if abs(taken) * found.trust > MOST_LUCK:
        without = _without_luck(objective, pairs, no_luck)
        says += [] if without is None else [_interval(without.draws)]
    if len(foreseen):
        says.append(_by_twin(foreseen))
    low, high = min(one[0] for one in says), max(one[1] for one in says)
    lost = math.log(NOT_LOST) if objective.larger_is_better else -math.log(GOOD_TAIL)
    sureness, kept = (
        min(float((draws > limit).mean()) for _, _, draws in says) for limit in (0.0, lost)
    )
    sign = 1 if objective.larger_is_better else -1
    return Ratio(
        objective.name,
        math.exp(sign * middle),
        math.exp(low if sign > 0 else -high),
        math.exp(high if sign > 0 else -low),
        objective.larger_is_better,
        math.exp(sign * replayed),
        sureness,
        kept,
    )


def _logs(
    objective: Objective,
    pairs: Sequence[tuple[Numbers, Numbers]],
    lucks: Sequence[tuple[float, float]],
) -> Floats | None:
    """Return the log ratio of each pair without its luck, so that their mean is that of all; None
    where there is no pair, or one has no such number.

    Of shares it is the ratio of the means and what each pair adds to it (a ratio estimator:
    Cochran, Sampling Techniques, chapter 6): a replay in which a neighbour left nothing to be
    served is one of several, and no logarithm of 0.
    """
    if not pairs:
        return None
    if objective.is_share:
        shares = _evened(pairs, lucks)
        means = np.clip(shares.mean(axis=0), LEAST_ATTAINMENT, 1.0)
        parts = (shares - shares.mean(axis=0)) / means
        whole: Floats = np.log(means[1] / means[0]) + parts[:, 1] - parts[:, 0]
        return whole
    found = [
        gain(objective, refined, knee, luck)
        for (knee, refined), luck in zip(pairs, lucks, strict=True)
    ]
    known = [one for one in found if one is not None]
    return np.array(known) if len(known) == len(found) else None


def _share_taken(
    pairs: Sequence[tuple[Numbers, Numbers]], lucks: Sequence[tuple[float, float]]
) -> float:
    """Return how much of the knee's share was taken out as luck of the refined one's, net. Beside
    the ratio's own change: of little that was served ratios run away, and of shares that are far
    apart such differences do; neither is a large correction where the other is not."""
    knee, refined = np.mean(lucks, axis=0)
    served = max(LEAST_ATTAINMENT, float(_evened(pairs, lucks)[:, 0].mean()))
    return float(knee - refined) / served


def _evened(
    pairs: Sequence[tuple[Numbers, Numbers]], lucks: Sequence[tuple[float, float]]
) -> Floats:
    """Return attainment without luck, (pairs, 2): the knee's and the refined one's."""
    attained = np.array([[one.attainment for one in pair] for pair in pairs])
    evened: Floats = attained - np.array(lucks)
    return evened


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean of pairs without their luck."""

    middle: float
    draws: Floats
    trust: float
    """How much of how far the twin may be off is left to trust: 1 where all pairs had the same
    luck, so that none shows it."""


def _without_luck(
    objective: Objective,
    pairs: Sequence[tuple[Numbers, Numbers]],
    lucks: Sequence[tuple[float, float]],
) -> _Mean | None:
    """Return the mean of the pairs' log ratios where the share of the luck that there really was is
    not known, but that it is about 1, the same for both sides and in every pair: one law is what is
    wrong of them.

    For each share Student's t over what is left; pairs whose luck differs show which shares leave
    little (a control variate with an uncertain coefficient, its marginal likelihood under the
    pooled variance: Gelman et al., Bayesian Data Analysis, chapter 14).
    """
    logs = [_logs(objective, pairs, _times(lucks, share)) for share in SHARES.tolist()]
    known = [one for one in logs if one is not None]
    if len(known) < len(logs):
        return None
    freedom = PRIOR_WEIGHT + len(pairs) - 1
    prior = PRIOR_WEIGHT * np.array(
        [_prior_sd(objective, pairs, _times(lucks, share)) ** 2 for share in SHARES.tolist()]
    )
    means = np.array([one.mean() for one in known])
    left = prior + np.array([((one - one.mean()) ** 2).sum() for one in known])
    off = ((SHARES - 1) / TWIN_OFF) ** 2 / OFF_FREEDOM
    likely = -0.5 * (freedom * np.log(left / prior) + (OFF_FREEDOM + 1) * np.log1p(off))
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    sds = np.sqrt(left / freedom / len(pairs))
    points = means[:, None] + sds[:, None] * _t_points(freedom)
    order = points.ravel().argsort()
    below = np.repeat(weights / T_POINTS, T_POINTS)[order].cumsum()
    draws: Floats = np.interp((np.arange(DRAWS) + 0.5) / DRAWS, below, points.ravel()[order])
    share = float(weights @ SHARES)
    still_off = math.sqrt(float(weights @ (SHARES - share) ** 2))
    middle = float(np.interp(share, SHARES, means))
    return _Mean(middle, draws, trust=min(1.0, still_off / TWIN_OFF))


@lru_cache
def _t_points(freedom: float) -> Floats:
    """Return points that stand for Student's t, each with the same probability."""
    drawn = np.sort(np.random.default_rng(0).standard_t(freedom, T_POINTS * T_EACH))
    found: Floats = drawn.reshape(T_POINTS, T_EACH).mean(axis=1)
    return found


def _times(lucks: Sequence[tuple[float, float]], share: float) -> list[tuple[float, float]]:
    return [(knee * share, other * share) for knee, other in lucks]


def _interval(draws: Floats) -> _Says:
    low, high = np.quantile(draws, (0.025, 0.975)).tolist()
    return low, high, draws


def _prior_sd(
    objective: Objective,
    pairs: Sequence[tuple[Numbers, Numbers]],
    lucks: Sequence[tuple[float, float]],
) -> float:
    """Return how far the two replays of a pair usually differ, as a logarithm: of shares it is so
    much of all requests, so the more of themselves the less the knee serves."""
    usual = PAIR_SHARE * objective.prior_sd
    if not objective.is_share:
        return usual
    return usual / float(np.clip(_evened(pairs, lucks)[:, 0].mean(), LEAST_ATTAINMENT, 1.0))


def _by_twin(foreseen: Sequence[float]) -> _Says:
    """Return what the twin says, by its draws, each of which may be off by a share of itself."""
    drawn = np.resize(np.asarray(foreseen), DRAWS)
    off: Floats = 1 + TWIN_OFF * np.random.default_rng(0).standard_normal(DRAWS)
    return _interval(drawn * off)
