"""Refined / knee with its interval, by pairs of replays in turns and the twin. Pure."""

import math
from dataclasses import dataclass

import numpy as np

from tuner.runs.refine.gains.luck_share import (
    Lucks,
    Pairs,
    log_ratios,
    prior_sd,
    share_taken,
    times,
)
from tuner.runs.refine.gains.pair_mean import mean_without_luck
from tuner.runs.refine.gains.with_twin import ByTwin, with_twin
from tuner.runs.refine.objective import OBJECTIVES, Objective
from tuner.twin.uncertainty import EQUAL_ATTAINMENT, GOOD_TAIL

MOST_LUCK = 0.30
"""Log ratio. Windows may well gain so much less than all of the traffic does, and the twin is right
about it; about more it was wrong where next to nothing was served in time (docs/experiments)."""

SHOWN = 0.9
"""How probable a gain must be by the pairs alone, whatever the twin says of it."""

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
    """How probable it is that the refined one is better, by pairs and twin together."""

    hope: float
    """How probable that is at most."""

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
    twin: ByTwin | None = None,
    lucks: Lucks = (),
) -> Ratio | None:
    """Return refined / knee over (knee, refined) pairs of replays made one after the other.

    Student's t over the pairs' log ratios, of shares over what each adds to the ratio of all; how
    far two replays differ is pooled with what is usual (``uncertainty.PRIOR_SD``; of shares, of all
    requests), so that two pairs that happen to agree prove nothing. ``lucks`` (per pair the knee's
    and the refined one's, as ``luck.py`` has them) are taken out, as far as the pairs show that
    the twin is right about them. Where what is left to trust changes more than MOST_LUCK, the
    interval covers what the replays say without it as well.

    With ``twin`` the ratio is of all of the traffic, of which the windows are a part; see
    ``with_twin``. The interval covers what the pairs alone say, between SHOWN on either side. None
    where a pair has no such number.
    """
    no_luck = [(0.0, 0.0)] * len(pairs)
    lucks = lucks or no_luck
    raw, found = log_ratios(objective, pairs, no_luck), mean_without_luck(objective, pairs, lucks)
    if raw is None or found is None:
        return None
    replayed = float(raw.mean())
    by_pairs, taken = found.draws(), found.middle - replayed
    if objective.is_share:
        taken = min(taken, share_taken(pairs, times(lucks, found.share)), key=abs)
    middle, says = found.middle, [by_pairs]
    if twin is not None:
        says = [with_twin(found, twin, usual_sd=prior_sd(objective, pairs, lucks))]
        middle = float(np.median(says))
    if abs(taken) * found.trust > MOST_LUCK:
        without = mean_without_luck(objective, pairs, no_luck)
        says += [] if without is None else [without.draws()]
    ends = [np.quantile(draws, (0.025, 0.975)) for draws in says]
    ends.append(np.quantile(by_pairs, ((1 - SHOWN), SHOWN)))
    low, high = float(min(one[0] for one in ends)), float(max(one[1] for one in ends))
    lost = math.log(NOT_LOST) if objective.larger_is_better else -math.log(GOOD_TAIL)
    better, kept = ([float((draws > limit).mean()) for draws in says] for limit in (0.0, lost))
    sign = 1 if objective.larger_is_better else -1
    return Ratio(
        objective.name,
        math.exp(sign * middle),
        math.exp(low if sign > 0 else -high),
        math.exp(high if sign > 0 else -low),
        objective.larger_is_better,
        math.exp(sign * replayed),
        min(better),
        max(*better, float((by_pairs > 0).mean())),
        min(kept),
    )
