"""Pairs of replays of the same traffic: their windows, ratios with 95 % intervals, and what they
prove of a configuration against the knee. Pure.

The number of pairs is fixed before the first; one look at half of them may only give up, and so
accepts nothing that the test would not. Each of goodput and tail is tested one-sided at 2.5 %, so
that both together accept a gain of equal engines in 5 % at most.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from tuner.engines.scheduler.state import Floats
from tuner.replay.numbers import Measurement
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import EQUAL_ATTAINMENT
from tuner.traffic.window import Window
from tuner.twin.samples import t_quantile, t_share

FUTILE = 0.05
"""A look at half of the pairs gives up where the rest proves the gain with less probability than
this, if all went on as it began."""

NOT_LOST = 1 - EQUAL_ATTAINMENT
"""Goodput, as a share of the knee's, that no gain may cost."""


def spread_windows(
    requests: Sequence[TraceRequest], part: Window, like: Window, count: int
) -> tuple[Window, ...]:
    """Return windows as long as this one, evenly spaced over the requests of a part, so that
    together they stand for all of the traffic.

    They overlap where the part has no room for all; all are this one where it has none for two.
    """
    if 2 * like.replay_s > part.length_s:
        return (like,) * count
    has_room = count * like.replay_s <= part.length_s
    windows, free_s = list[Window](), part.start_s
    for number in range(count):
        middle = requests[len(requests) * (2 * number + 1) // (2 * count)]
        earliest_s = max(middle.arrival_s, free_s, part.start_s + like.run_in_s)
        start_s = min(earliest_s, part.end_s - like.length_s)
        free_s = start_s + like.length_s if has_room else part.start_s
        windows.append(replace(like, start_s=start_s))
    return tuple(windows)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One side over the other, with the ends of its interval; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


def log_ratio(above: ArrayLike, below: ArrayLike) -> Ratio | None:
    """Return the geometric mean of the pairs' ratios, by Student's t of their logarithms; None
    where a side is 0."""
    pairs = np.array([above, below], float)
    if not pairs.size or not (pairs > 0).all():
        return None
    logs = np.log(pairs[0] / pairs[1])
    mean = float(logs.mean())
    if len(logs) < 2:
        return Ratio(math.exp(mean))
    reach = t_quantile(len(logs) - 1) * _standard_error(logs)
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def mean_ratio(above: ArrayLike, below: ArrayLike) -> Ratio | None:
    """Return mean(above) / mean(below), by Fieller's interval (J. Roy. Stat. Soc. B 16, 1954): the
    r for which the mean of above - r * below does not differ from 0. None where ``below`` may be
    nothing, so that there is no such interval.

    >>> mean_ratio([0.6, 0.6], [0.5, 0.5]).low
    1.2
    """
    over, under = np.array(above, float), np.array(below, float)
    scale = t_quantile(len(over) - 1) ** 2 / len(over)
    (of_over, both), (_, of_under) = scale * np.cov(over, under)
    a = float(under.mean() ** 2 - of_under)
    b = float(over.mean() * under.mean() - both)
    c = float(over.mean() ** 2 - of_over)
    if a <= 0:
        return None
    reach = math.sqrt(max(0.0, b * b - a * c))
    return Ratio(float(over.mean() / under.mean()), (b - reach) / a, (b + reach) / a)


def _statistic(values: Floats) -> float:
    """Return Student's t of values whose mean may be 0; infinite where they are all alike."""
    mean, error = float(values.mean()), _standard_error(values)
    if error > 0:
        return mean / error
    return 0.0 if mean == 0 else math.copysign(math.inf, mean)


def _standard_error(values: Floats) -> float:
    """Return the standard error of a mean; 0 of values that differ by rounding alone."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return error if error > 1e-12 * float(np.abs(values).max()) else 0.0


# Proof


@dataclass(frozen=True, slots=True)
class Proof:
    """What pairs of (knee, refined) showed. What both were sent is the same, so that the ratio of
    goodput is that of attainment."""

    pairs: int
    goodput: Ratio | None
    """Refined / knee; None where the knee may serve nothing."""

    tail: Ratio | None
    """Refined / knee of p99 E2EL; None where not all replays know it."""

    statistics: tuple[float, ...]
    """Student's t of more goodput, and of a shorter tail where it is known."""

    sureness: float | None
    """How sure the gain is: more goodput for certain, or a shorter tail at no less of it; None
    where none is proven, which keeps the knee."""

    def is_futile(self, planned: int) -> bool:
        """Whether half of the planned pairs leave nothing to hope for: the conditional power under
        the trend (Jennison and Turnbull, Group Sequential Methods, 2000, chapter 10, normally
        approximated)."""
        needed = math.sqrt(2) * t_quantile(planned - 1)
        powers = [0.5 * math.erfc((needed - 2 * t) / math.sqrt(2)) for t in self.statistics]
        return max(powers) < FUTILE

    def in_words(self) -> str:
        words = []
        for name, ratio in (("goodput", self.goodput), ("p99 E2EL", self.tail)):
            if ratio is not None and ratio.low is not None and ratio.high is not None:
                value, low, high = (
                    f"{100 * (each - 1):+.1f}" for each in (ratio.value, ratio.low, ratio.high)
                )
                words.append(f"{name} {value}% ({low} to {high}%)")
        return ", ".join(words) or "the knee met the SLO too seldom to compare with"


def proof_of(pairs: Sequence[tuple[Measurement, Measurement]]) -> Proof:
    """Return what these pairs of (knee, refined) show."""
    shares = np.array([[each.attainment for each in pair] for pair in pairs])
    goodput = mean_ratio(shares[:, 1], shares[:, 0])
    statistics, tail = [_statistic(shares[:, 1] - shares[:, 0])], None
    tails_s = np.array([each.e2el_s.p99 for pair in pairs for each in pair if each.e2el_s])
    if len(tails_s) == 2 * len(pairs):
        knee_s, refined_s = tails_s[::2], tails_s[1::2]
        tail = log_ratio(refined_s, knee_s)
        statistics.append(_statistic(np.log(knee_s / refined_s)))
    sureness, low = None, goodput.low if goodput and goodput.low else 0.0
    if low > 1:
        sureness = t_share(len(pairs) - 1, statistics[0])
    elif low >= NOT_LOST and tail is not None and tail.high is not None and tail.high < 1:
        sureness = t_share(len(pairs) - 1, statistics[1])
    return Proof(len(pairs), goodput, tail, tuple(statistics), sureness)
