"""The gain of a configuration over the knee, and its proof by pairs of replays in turns. Pure.

The number of pairs is fixed before the first; one look at half of them may only give up, and so
accepts nothing that the test would not. Each of goodput and tail is tested one-sided at 2.5 %, so
that both together accept a gain of equal engines in 5 % at most.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.replay.numbers import Measurement
from tuner.runs.paired import Ratio, log_ratio, mean_ratio, statistic
from tuner.traffic.constants import EQUAL_ATTAINMENT
from tuner.twin.windows import t_quantile, t_share

PAIRS, MOST_PAIRS = 4, 16
"""Pairs that are made at least, and where the budget has room for more; even numbers."""

FUTILE = 0.05
"""A look at half of the pairs gives up where the rest proves the gain with less probability than
this, if all went on as it began."""

NOT_LOST = 1 - EQUAL_ATTAINMENT
"""Goodput, as a share of the knee's, that no gain may cost."""

TAIL_WORTH = 0.01
"""Most that p99 E2EL counts beside goodput, reached where it halves or doubles: it decides between
configurations that serve as much, as it does for the knee."""

GOODPUT, TAIL = "goodput", "e2el"
NAMES = {GOODPUT: "goodput", TAIL: "p99 E2EL", "tpot": "p95 TPOT", "ttft": "p95 TTFT"}

Served = tuple[float, float | None]
"""Attainment and p99 E2EL, of a replay or by the twin."""

Pairs = Sequence[tuple[Measurement, Measurement]]
"""(Knee, refined), replayed one after the other. What both were sent is the same, so that the ratio
of goodput is that of attainment."""


def served(numbers: Measurement) -> Served:
    return numbers.attainment, None if numbers.e2el_s is None else numbers.e2el_s.p99


def gain_over(here: Served, knee: Served) -> float:
    """Return the logarithm of the ratio of goodput, in which the tail counts a little, so that one
    number orders configurations as the objective does: 0.01 is 1 % better."""
    shares = (max(EQUAL_ATTAINMENT, share) for share, _ in (here, knee))
    gain = math.log(next(shares) / next(shares))
    if here[1] and knee[1]:
        tail = math.log(knee[1] / here[1]) * TAIL_WORTH / math.log(2)
        gain += max(-TAIL_WORTH, min(TAIL_WORTH, tail))
    return gain


def keeps_goodput(here: Served, knee: Served) -> bool:
    return here[0] >= knee[0] - EQUAL_ATTAINMENT


@dataclass(frozen=True, slots=True)
class Proof:
    """What the pairs showed."""

    ratios: Mapping[str, Ratio]
    """Refined / knee by NAMES; above 1 is more, not better."""

    sureness: float | None
    """Of the gain; None where none is proven, which keeps the knee."""

    pairs: int

    def in_words(self) -> str:
        words = []
        for name, ratio in self.ratios.items():
            value, low, high = (
                f"{100 * ((x or 1) - 1):+.1f}" for x in (ratio.value, ratio.low, ratio.high)
            )
            words.append(f"{NAMES[name]} {value}% ({low} to {high}%)")
        return ", ".join(words)


def ratios_of(pairs: Pairs) -> dict[str, Ratio]:
    """Return refined / knee of goodput and of every time that all pairs know."""
    knees, refined = zip(*pairs, strict=True)
    shares = ([each.attainment for each in side] for side in (refined, knees))
    ratios = {GOODPUT: mean_ratio(*shares)}
    for name, words in list(NAMES.items())[1:]:
        spreads = [[getattr(each, f"{name}_s") for each in side] for side in (refined, knees)]
        if None not in spreads[0] + spreads[1]:
            ratios[name] = log_ratio(
                *([getattr(each, words[:3]) for each in side] for side in spreads)
            )
    return {name: ratio for name, ratio in ratios.items() if ratio and ratio.low is not None}


def statistics_of(pairs: Pairs) -> dict[str, float]:
    """Return Student's t of more goodput, and of a shorter tail where all pairs know it."""
    seen = [(served(refined), served(knee)) for knee, refined in pairs]
    statistics = {GOODPUT: statistic(np.array([here[0] - there[0] for here, there in seen]))}
    tails_s = np.array([(here[1], there[1]) for here, there in seen if here[1] and there[1]])
    if len(tails_s) == len(pairs):
        statistics[TAIL] = statistic(np.log(tails_s[:, 1] / tails_s[:, 0]))
    return statistics


def proven(pairs: Pairs) -> Proof:
    """Return what the pairs prove: more goodput for certain, or a shorter tail at no less of it."""
    ratios, statistics = ratios_of(pairs), statistics_of(pairs)
    nothing = Ratio(1.0, -math.inf, math.inf)
    goodput, tail = ratios.get(GOODPUT, nothing), ratios.get(TAIL, nothing)
    gains = {
        GOODPUT: goodput.low is not None and goodput.low > 1,
        TAIL: tail.high is not None and tail.high < 1,
    }
    gain = next((name for name, is_gain in gains.items() if is_gain), None)
    if gain is None or goodput.low is None or goodput.low < NOT_LOST:
        return Proof(ratios, None, len(pairs))
    return Proof(ratios, t_share(len(pairs) - 1, statistics[gain]), len(pairs))


def is_futile(pairs: Pairs, *, planned: int) -> bool:
    """Whether half of the planned pairs leave nothing to hope for: the conditional power under the
    trend (Jennison and Turnbull, Group Sequential Methods, 2000, chapter 10, normally
    approximated)."""
    needed = math.sqrt(2) * t_quantile(planned - 1)
    return all(
        0.5 * math.erfc((needed - 2 * t) / math.sqrt(2)) < FUTILE
        for t in statistics_of(pairs).values()
    )


def affordable(left_s: float, *, step_s: float, start_s: float) -> int:
    """Return how many pairs there is time for, each half of which takes so long a start besides.

    >>> [affordable(left_s, step_s=10.0, start_s=0.0) for left_s in (0.0, 119.0, 120.0, 9e9)]
    [4, 4, 6, 16]
    """
    two_s = 2 * 2 * (step_s + start_s)
    return max(PAIRS, min(MOST_PAIRS, 2 * int(left_s // two_s)))
