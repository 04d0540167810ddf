"""What the twin would choose, and how sure the measurements make it. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.scheduler_state import StepLaw
from tuner.slo import Slo
from tuner.twin import EngineShape, Traffic, TwinReplay, attainment, simulate, tail_s
from tuner.twin_law import FittedLaw
from tuner.uncertainty import GOOD_ATTAINMENT, GOOD_TAIL, choose

DRAWS = 40
PLAUSIBLE = 0.2
"""A cap that serves so much less than the best is no candidate; the best one's neighbours are."""

INTERVAL = 0.95

Values = Mapping[int, tuple[float, float]]
"""Cap → (attainment, log of p99 E2EL in seconds)."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a fitted law says of every cap, and of the choice between them."""

    values: Values
    """By the law itself, with the corrections."""

    best: int
    """The cap that is right, or as good as right, under the most laws that might be true."""

    confidence: float
    """The share of those laws under which it is."""

    interval: tuple[int, int]
    """The caps between which at least 95 % of those laws choose."""

    rightness: Mapping[int, float]
    """Cap → the share of laws under which it is right or as good; candidates only."""

    spread: Mapping[int, tuple[tuple[float, float], tuple[float, float]]]
    """Cap → 95 % intervals of attainment and of log tail; candidates only."""

    unseen: tuple[int, ...]
    """Caps at which the traffic makes batches larger than any that was measured: a guess."""


def predict(
    traffic: Traffic, law: StepLaw, shape: EngineShape, slo: Slo, caps: Sequence[int]
) -> Values:
    """Return what the whole traffic sees at every cap."""
    replays = {cap: simulate(traffic, law, shape, max_num_seqs=cap) for cap in caps}
    return {cap: value_of(traffic, replay, slo) for cap, replay in replays.items()}


def value_of(traffic: Traffic, replay: TwinReplay, slo: Slo) -> tuple[float, float]:
    """Return attainment and log tail of one replay."""
    return attainment(traffic, replay, slo), math.log(tail_s(replay))


def weigh(  # noqa: PLR0913 - the question, and how hard to look
    traffic: Traffic,
    fitted: FittedLaw,
    shape: EngineShape,
    slo: Slo,
    caps: Sequence[int],
    *,
    corrections: Values | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Weighed:
    """Choose a cap for the traffic, under the law and under laws as likely.

    ``corrections`` (cap → what to add to attainment and log tail) come from the anchor.
    """
    replays = {cap: simulate(traffic, fitted.law, shape, max_num_seqs=cap) for cap in caps}
    values = {cap: value_of(traffic, replay, slo) for cap, replay in replays.items()}
    point = corrected(values, corrections)
    candidates = plausible(point)
    drawn = [
        corrected(predict(traffic, law, shape, slo, candidates), corrections)
        for law in fitted.draws(draws, seed=seed)
    ]
    good = [good_caps(one) for one in drawn]
    rightness = {cap: float(np.mean([cap in one for one in good])) for cap in candidates}
    chosen = choose(point)
    # The law's own choice unless another is right under more of the laws: at least 1 in 40.
    best = max(candidates, key=lambda cap: (rightness[cap] + 0.02 * (cap == chosen), -cap))
    choices = np.sort([choose(one) for one in drawn])
    outside = int(len(choices) * (1 - INTERVAL) / 2)
    return Weighed(
        values=point,
        best=best,
        confidence=rightness[best],
        interval=(
            min(best, int(choices[outside])),
            max(best, int(choices[len(choices) - 1 - outside])),
        ),
        rightness=rightness,
        spread={cap: _spread([one[cap] for one in drawn]) for cap in candidates},
        unseen=tuple(cap for cap in caps if replays[cap].running_peak > fitted.extrapolated_from),
    )


def corrected(values: Values, corrections: Values | None) -> Values:
    """Return the values with the corrections added; attainment stays a share."""
    if corrections is None:
        return values
    return {
        cap: (
            min(1.0, max(0.0, share + corrections[cap][0])),
            log_tail + corrections[cap][1],
        )
        for cap, (share, log_tail) in values.items()
    }


def plausible(values: Values) -> list[int]:
    """Return the caps between which the choice is."""
    caps = sorted(values)
    place = caps.index(choose(values))
    most = max(share for share, _ in values.values())
    return [
        cap
        for i, cap in enumerate(caps)
        if abs(i - place) <= 1 or values[cap][0] >= most - PLAUSIBLE
    ]


def good_caps(values: Values) -> set[int]:
    """Return the caps that are as good as the best for every practical purpose."""
    best_share, best_tail = values[choose(values)]
    return {
        cap
        for cap, (share, log_tail) in values.items()
        if share >= best_share - GOOD_ATTAINMENT and log_tail <= best_tail + math.log(GOOD_TAIL)
    }


def _spread(
    values: Sequence[tuple[float, float]],
) -> tuple[tuple[float, float], tuple[float, float]]:
    shares, tails = np.quantile(np.array(values), (0.025, 0.975), axis=0).T.tolist()
    return (shares[0], shares[1]), (tails[0], tails[1])
