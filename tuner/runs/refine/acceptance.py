"""The acceptance of a gain over the knee: by pairs of replays, refined and knee in turns. Pure.

The ratio of a time is tested by Student's paired t of its logarithms. The ratio of goodput, which
may be anything down to nothing, is tested by Fieller's interval for a ratio of means (J. Roy. Stat.
Soc. B 16, 1954). Nothing that a twin says is in either. The number of pairs is settled before the
first; one look at half of them may only give up, and so accepts nothing that the test would not.

Goodput is accepted first, then a shorter tail at goodput that is not lost. Each is tested one-sided
at 2.5 %, so that both together accept a gain of equal engines in 5 % at most.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.runs.refine.objective import GOODPUT, OBJECTIVES, TAIL, AimNumbers, Objective
from tuner.twin.objective import EQUAL_ATTAINMENT, GOOD_TAIL
from tuner.twin.uncertainty import t_quantile, t_share

PAIRS, MOST_PAIRS = 4, 16
"""Pairs that are made at least, and where the budget has room for more; even numbers."""

FUTILE = 0.05
"""A look at half of the pairs gives up where the rest proves the gain with less probability than
this, if all went on as it began."""

NOT_LOST = 1 - EQUAL_ATTAINMENT
"""Goodput, as a share of the knee's, that no gain may cost."""

MEMORY = "memory"
"""Of an acceptance: serves alike with less of it."""

Pairs = Sequence[tuple[AimNumbers, AimNumbers]]
"""(Knee, refined), replayed one after the other."""


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Refined / knee of one aim, with its 95 % interval; above 1 is more, not better."""

    name: str
    value: float
    low: float
    high: float
    larger_is_better: bool
    sureness: float
    """One minus the one-sided p-value of no gain."""

    kept: float
    """The same of a loss: of NOT_LOST of it, or of GOOD_TAIL of a time."""

    statistic: float
    """Student's t of no gain; positive is better."""

    kept_statistic: float
    forecast: float | None = None
    """What the twin says that it is; None where it cannot tell."""

    @property
    def is_better(self) -> bool:
        return self.low > 1 if self.larger_is_better else self.high < 1

    def __str__(self) -> str:
        value, low, high = (f"{100 * (one - 1):+.1f}" for one in (self.value, self.low, self.high))
        forecast = f", forecast {100 * (self.forecast - 1):+.1f} %" if self.forecast else ""
        return f"{OBJECTIVES[self.name].text} {value} % ({low} to {high} %{forecast})"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The gain that is certain, and how sure that is."""

    of: str
    """Name of the aim, or MEMORY."""

    sureness: float


@dataclass(frozen=True, slots=True)
class PairedResult:
    """The result of the pairs: refined / knee of every aim."""

    ratios: dict[str, PairedRatio]
    accepted: Acceptance | None
    """None keeps the knee."""

    pairs: int


def paired_ratio(
    objective: Objective, pairs: Pairs, forecast: float | None = None
) -> PairedRatio | None:
    """Return refined / knee over two pairs at least; ``forecast`` is the twin's log gain.

    None where a pair has no such number, or so little is served that a ratio has no interval.
    """
    if objective.is_share:
        knee, refined = np.array([[one.attainment for one in pair] for pair in pairs]).T
        ends = fieller(refined, knee)
        if ends is None:
            return None
        value, (low, high) = float(refined.mean() / knee.mean()), ends
        gained, kept = statistic(refined - knee), statistic(refined - NOT_LOST * knee)
    else:
        logs = [(objective.log(one), objective.log(other)) for one, other in pairs]
        known = [here - there for there, here in logs if here is not None and there is not None]
        if len(known) < len(pairs):
            return None
        gains = np.array(known)
        mean, reach = float(gains.mean()), t_quantile(len(gains) - 1) * standard_error(gains)
        sign = 1 if objective.larger_is_better else -1
        value = math.exp(sign * mean)
        low, high = sorted((math.exp(sign * mean - reach), math.exp(sign * mean + reach)))
        lost = math.log(NOT_LOST if objective.larger_is_better else 1 / GOOD_TAIL)
        gained, kept = statistic(gains), statistic(gains - lost)
    freedom, sign = len(pairs) - 1, 1 if objective.larger_is_better else -1
    return PairedRatio(
        objective.name,
        value,
        low,
        high,
        objective.larger_is_better,
        sureness=t_share(freedom, gained),
        kept=t_share(freedom, kept),
        statistic=gained,
        kept_statistic=kept,
        forecast=None if forecast is None else math.exp(sign * forecast),
    )


def fieller(above: Floats, below: Floats) -> tuple[float, float] | None:
    """Return the 95 % interval of mean(above) / mean(below) over pairs of them; None where it has
    no ends, as ``below`` may be nothing.

    It holds the ratios r for which the mean of above - r * below is not told from 0.

    >>> fieller(np.array([0.6, 0.6]), np.array([0.5, 0.5]))
    (1.2, 1.2)
    """
    scale = t_quantile(len(above) - 1) ** 2 / len(above)
    (of_above, both), (_, of_below) = scale * np.cov(above, below)
    a = float(below.mean() ** 2 - of_below)
    b = float(above.mean() * below.mean() - both)
    c = float(above.mean() ** 2 - of_above)
    if a <= 0:
        return None
    reach = math.sqrt(max(0.0, b * b - a * c))
    return (b - reach) / a, (b + reach) / a


def statistic(values: Floats) -> float:
    """Return Student's t of values whose mean may be 0; infinite where they are all alike."""
    mean, error = float(values.mean()), standard_error(values)
    if error > 0:
        return mean / error
    return 0.0 if mean == 0 else math.copysign(math.inf, mean)


def standard_error(values: Floats) -> float:
    """Return the standard error of a mean; 0 of values that differ by rounding alone."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return error if error > 1e-12 * float(np.abs(values).max()) else 0.0


def proving(objective: Objective) -> tuple[Objective, ...]:
    """Return the aims of which any that is better proves a gain, in order."""
    return (GOODPUT, TAIL) if objective is GOODPUT else (objective,)


def acceptance(
    objective: Objective, ratios: Mapping[str, PairedRatio], *, frees_memory: bool = False
) -> Acceptance | None:
    """Return what proves a gain, None where nothing does.

    The aim itself must be better for certain, and goodput not lost. Where the aim is goodput, a
    shorter tail at no less goodput is a gain too; and so is less memory, where neither is lost.
    """
    goodput, tail = ratios.get(GOODPUT.name), ratios.get(TAIL.name)
    if goodput is None or goodput.low < NOT_LOST:
        return None
    for aim in proving(objective):
        found = ratios.get(aim.name)
        if found is not None and found.is_better:
            return Acceptance(found.name, found.sureness)
    if frees_memory and tail is not None and tail.high <= GOOD_TAIL:
        return Acceptance(MEMORY, min(goodput.kept, tail.kept))
    return None


def is_futile(
    objective: Objective,
    ratios: Mapping[str, PairedRatio],
    *,
    pairs: int,
    frees_memory: bool = False,
) -> bool:
    """Whether half of ``pairs`` leave nothing to hope for; ``ratios`` are of these."""
    hopes = [found.statistic for aim in proving(objective) if (found := ratios.get(aim.name))]
    if frees_memory:
        kept = [found.kept_statistic for aim in (GOODPUT, TAIL) if (found := ratios.get(aim.name))]
        hopes.append(min(kept, default=-math.inf))
    return all(_hope(each, pairs) < FUTILE for each in hopes)


def _hope(half_way: float, pairs: int) -> float:
    """Return how probable it is that all of the pairs prove a gain of which half have this t, if
    the rest is like them (the conditional power under the trend: Jennison and Turnbull, Group
    Sequential Methods, 2000, chapter 10, normally approximated)."""
    needed = math.sqrt(2) * t_quantile(pairs - 1)
    return 0.5 * math.erfc((needed - 2 * half_way) / math.sqrt(2))


def affordable(left_s: float, *, step_s: float, start_s: float) -> int:
    """Return how many pairs there is time for, each half of which takes so long a start besides.

    >>> [affordable(left_s, step_s=10.0, start_s=0.0) for left_s in (0.0, 119.0, 120.0, 9e9)]
    [4, 4, 6, 16]
    """
    two_s = 2 * 2 * (step_s + start_s)
    return max(PAIRS, min(MOST_PAIRS, 2 * int(left_s // two_s)))
