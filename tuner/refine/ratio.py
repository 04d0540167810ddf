"""Refined / knee with its interval: by pairs of replays in turns, and the twin. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.refine.luck_share import (
    BELIEVED,
    HALF_OFF,
    SHARES,
    TWIN_OFF,
    Lucks,
    Pairs,
    log_ratios,
    prior_sd,
    share_taken,
    share_weights,
    spread_of,
    times,
)
from tuner.refine.objective import OBJECTIVES, Objective
from tuner.scheduler.state import Floats
from tuner.uncertainty import EQUAL_ATTAINMENT, GOOD_TAIL, PRIOR_WEIGHT

DRAWS = 4000
"""So many say how probable a gain is to a thousandth."""

MOST_LUCK = 0.30
"""Log ratio. Windows may well gain so much less than all of the traffic does, and the twin is right
about it; about more it was wrong where next to nothing was served in time (docs/experiments)."""

T_POINTS, T_EACH = 2000, 200
"""Points that stand for Student's t, and draws that each of them is the mean of."""

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
    pairs: Pairs,
    foreseen: Sequence[float] = (),
    lucks: Lucks = (),
) -> Ratio | None:
    """Return refined / knee over (knee, refined) pairs of replays made one after the other.

    Student's t over the pairs' log ratios, of shares over what each adds to the ratio of all; how
    far two replays differ is pooled with what is usual (``uncertainty.PRIOR_SD``; of shares, of all
    requests), so that two pairs that happen to agree prove nothing. ``foreseen`` holds the twin's
    log gains for the whole of the traffic: the interval covers these too, because the windows that
    were replayed are only a part of it. ``lucks`` (per pair the knee's and the refined one's, as
    ``refine.luck`` has them) are taken out, as far as the pairs show that the twin is right about
    them. Where what is left to trust changes more than MOST_LUCK, the ratio rests on the twin
    alone, and the interval covers what the replays say without it as well. The twin may be off by
    TWIN_OFF of what it foresees, and of luck before the pairs have shown more of that. None where a
    pair has no such number.
    """
    no_luck = [(0.0, 0.0)] * len(pairs)
    lucks = lucks or no_luck
    raw, found = log_ratios(objective, pairs, no_luck), _without_luck(objective, pairs, lucks)
    if raw is None or found is None:
        return None
    middle, replayed = found.middle, float(raw.mean())
    says = [_interval(found.draws)]
    taken = middle - replayed
    if objective.is_share:
        taken = min(taken, share_taken(pairs, times(lucks, found.share)), key=abs)
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


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean of pairs without their luck."""

    middle: float
    draws: Floats
    share: float
    """Of the luck that the twin sees, how much is taken out."""

    trust: float
    """How much of how far the law may be off is left to trust: 1 where all pairs had the same luck,
    so that none shows it."""


def _without_luck(objective: Objective, pairs: Pairs, lucks: Lucks) -> _Mean | None:
    """Return the mean of the pairs' log ratios where it is not known how much of the luck there
    really was, but that it is about all, the same share on both sides and in every pair: one law is
    what is wrong of them. For each share it is Student's t over what is left."""
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
    own = blur @ (shown * left / freedom / len(pairs)) / weights
    share = float(shown @ SHARES)
    return _Mean(
        middle=float(np.interp(share, SHARES, means)),
        draws=_drawn(means, np.sqrt(own), weights / weights.sum(), freedom),
        share=share,
        trust=min(1.0, spread_of(shown) / spread_of(BELIEVED)),
    )


def _drawn(means: Floats, sds: Floats, weights: Floats, freedom: float) -> Floats:
    """Return DRAWS quantiles of a mixture of Student's t."""
    points = (means[:, None] + sds[:, None] * _t_points(freedom)).ravel()
    order = points.argsort()
    each = np.repeat(weights / T_POINTS, T_POINTS)[order]
    found: Floats = np.interp(
        (np.arange(DRAWS) + 0.5) / DRAWS, each.cumsum() - each / 2, points[order]
    )
    return found


@lru_cache
def _t_points(freedom: float) -> Floats:
    """Return points that stand for Student's t, each with the same probability."""
    drawn = np.sort(np.random.default_rng(0).standard_t(freedom, T_POINTS * T_EACH))
    found: Floats = drawn.reshape(T_POINTS, T_EACH).mean(axis=1)
    return found


def _interval(draws: Floats) -> _Says:
    low, high = np.quantile(draws, (0.025, 0.975)).tolist()
    return low, high, draws


def _by_twin(foreseen: Sequence[float]) -> _Says:
    """Return what the twin says, by its draws, each of which may be off by a share of itself."""
    drawn = np.resize(np.asarray(foreseen), DRAWS)
    off: Floats = 1 + TWIN_OFF * np.random.default_rng(0).standard_normal(DRAWS)
    return _interval(drawn * off)
