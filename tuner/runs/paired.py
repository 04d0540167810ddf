"""Pairs of replays of the same traffic: their windows, and ratios with 95 % intervals. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import Window
from tuner.twin.windows import t_quantile


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


def log_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
    """Return the geometric mean of the pairs' ratios, by Student's t of their logarithms; None
    where nothing can be divided."""
    pairs = np.array([above, below], float)
    if not pairs.size or not pairs[1].sum() > 0:
        return None
    if not (pairs > 0).all():
        return Ratio(float(pairs[0].sum() / pairs[1].sum()))
    logs = np.log(pairs[0] / pairs[1])
    mean = float(logs.mean())
    if len(logs) < 2:
        return Ratio(math.exp(mean))
    reach = t_quantile(len(logs) - 1) * _standard_error(logs)
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def mean_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio | None:
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


def statistic(values: Floats) -> float:
    """Return Student's t of values whose mean may be 0; infinite where they are all alike."""
    mean, error = float(values.mean()), _standard_error(values)
    if error > 0:
        return mean / error
    return 0.0 if mean == 0 else math.copysign(math.inf, mean)


def _standard_error(values: Floats) -> float:
    """Return the standard error of a mean; 0 of values that differ by rounding alone."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return error if error > 1e-12 * float(np.abs(values).max()) else 0.0
