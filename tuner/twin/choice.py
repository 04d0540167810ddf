"""The choice by the twin, and how sure the measurements make it. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.traffic.slo import Slo
from tuner.twin.law import FittedLaw
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, attainment, simulate, tail_s
from tuner.twin.uncertainty import GOOD_ATTAINMENT, GOOD_TAIL, choose

DRAWS = 40
PLAUSIBLE = 0.2
"""A cap that serves so much less than the best is no candidate; the best one's neighbours are."""

INTERVAL = 0.95
NEAR_ENOUGH = 17 / 16
"""Batches so little larger than the largest measured one are no guess: knots lie as far apart."""

LEAST_S = 1e-9
"""Of a tail that has a logarithm: laws may be drawn in which an iteration takes no time."""

Values = Mapping[int, tuple[float, float]]
"""Cap → (attainment, log of p99 E2EL in seconds)."""


class Statistics(NamedTuple):
    """The statistics of one replay by the twin. Seconds; NaN where nothing came to that."""

    attainment: float
    log_tail: float
    """Log of p99 E2EL."""

    tpot_p95_s: float
    queue_p95_s: float
    kv_peak: float
    preemptions: float

    @classmethod
    def of(cls, traffic: Traffic, replay: TwinReplay, slo: Slo) -> "Statistics":
        return cls(
            *value_of(traffic, replay, slo),
            tpot_p95_s=_p95(replay.tpot_s),
            queue_p95_s=_p95(replay.queue_s),
            kv_peak=replay.kv_usage_peak,
            preemptions=float(replay.preemptions.sum()),
        )


@dataclass(frozen=True, slots=True)
class Weighed:
    """A fitted law's view of every cap, and of the choice between them."""

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

    samples: Mapping[int, tuple[Statistics, ...]]
    """Cap → what each of the drawn laws gives, in one order for all caps."""

    unseen: tuple[int, ...]
    """Caps at which the traffic makes batches larger than any that was measured: a guess."""


def value_of(traffic: Traffic, replay: TwinReplay, slo: Slo) -> tuple[float, float]:
    """Return attainment and log tail of one replay."""
    return attainment(traffic, replay, slo), math.log(max(LEAST_S, tail_s(replay)))


def weigh(  # noqa: PLR0913 - the question, and how hard to look
    traffic: Traffic,
    fitted: FittedLaw,
    shape: EngineShape,
    slo: Slo,
    caps: Sequence[int],
    *,
    corrections: Values | None = None,
    everywhere: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> Weighed:
    """Choose a cap for the traffic, under the law and under laws as likely.

    ``corrections`` (cap → what to add to attainment and log tail) come from the anchor. With
    ``everywhere`` there are samples for every cap, otherwise only for those that may be chosen.
    """
    replays = {cap: simulate(traffic, fitted.law, shape, max_num_seqs=cap) for cap in caps}
    values = {cap: value_of(traffic, replay, slo) for cap, replay in replays.items()}
    point = corrected(values, corrections)
    candidates = plausible(point)
    samples = [
        {
            cap: Statistics.of(traffic, simulate(traffic, law, shape, max_num_seqs=cap), slo)
            for cap in (caps if everywhere else candidates)
        }
        for law in fitted.draws(draws, seed=seed)
    ]
    drawn = [
        corrected(
            {cap: (one[cap].attainment, one[cap].log_tail) for cap in candidates}, corrections
        )
        for one in samples
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
        samples={cap: tuple(one[cap] for one in samples) for cap in samples[0]},
        unseen=tuple(
            cap
            for cap in caps
            if traffic.output_length.max(initial=0) > 1  # one token is no decoding
            and replays[cap].running_peak > NEAR_ENOUGH * fitted.extrapolated_from
        ),
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


def _p95(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.quantile(known, 0.95)) if len(known) else math.nan
