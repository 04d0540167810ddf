"""The aims of a refinement, and the proof of a gain by pairs of replays in turns. Pure.

Gains are logarithms of ratios to the knee, larger is better: 0.01 is 1 %.

The ratio of a time is tested by Student's paired t of its logarithms. The ratio of goodput, which
may be anything down to nothing, is tested by Fieller's interval for a ratio of means (J. Roy. Stat.
Soc. B 16, 1954). The number of pairs is fixed before the first; one look at half of them may only
give up, and so accepts nothing that the test would not. Each of goodput and tail is tested
one-sided at 2.5 %, so that both together accept a gain of equal engines in 5 % at most.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.errors import UsageError
from tuner.replay.numbers import Spread
from tuner.traffic.constants import EQUAL_ATTAINMENT, GOOD_TAIL
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

LEAST = 1e-6
"""Seconds, or a share: else one replay with nothing in it would end a comparison."""

MEMORY_AIM = "memory"
"""Of an acceptance: serves alike with less of it."""


class Numbers(Protocol):
    """The numbers that aims compare, of a measurement or of the twin."""

    @property
    def attainment(self) -> float: ...
    @property
    def output_tokens_per_s(self) -> float: ...
    @property
    def ttft_s(self) -> Spread | None: ...
    @property
    def tpot_s(self) -> Spread | None: ...
    @property
    def e2el_s(self) -> Spread | None: ...


@dataclass(frozen=True, slots=True)
class Aim:
    """One number to make better."""

    name: str
    text: str
    sign: int
    """1: more is better, -1: less is."""

    field: str
    share: str = ""
    """Of the spread of a time."""

    def of(self, numbers: Numbers) -> float | None:
        value = getattr(numbers, self.field)
        return float(getattr(value, self.share)) if self.share and value else value

    def gain(self, numbers: Numbers, knee: Numbers) -> float | None:
        """Return how much better than the knee it is; None where that is not known."""
        here, there = self.of(numbers), self.of(knee)
        if here is None or there is None:
            return None
        least = EQUAL_ATTAINMENT if self.field == "attainment" else LEAST
        return self.sign * math.log(max(least, here) / max(least, there))


GOODPUT = Aim("goodput", "goodput", 1, "attainment")
"""What is compared was sent the same requests: the ratio of goodput is that of attainment."""

TAIL = Aim("e2el", "p99 E2EL", -1, "e2el_s", "p99")
AIMS: Mapping[str, Aim] = {
    aim.name: aim
    for aim in (
        GOODPUT,
        Aim("throughput", "output tokens per second", 1, "output_tokens_per_s"),
        TAIL,
        Aim("tpot", "p95 TPOT", -1, "tpot_s", "p95"),
        Aim("ttft", "p95 TTFT", -1, "ttft_s", "p95"),
    )
}


def parse_aim(text: str) -> Aim:
    """Read the name of an aim. Raises UsageError for one that is not known."""
    if text not in AIMS:
        hint = f"Choose of {', '.join(AIMS)}."
        raise UsageError(f"--objective {text!r} is not known", hint=hint)
    return AIMS[text]


def gain_over(aim: Aim, numbers: Numbers, knee: Numbers) -> float | None:
    """Return how much better than the knee it is. Beside goodput the tail counts a little, so that
    one number orders configurations as the knee's objective does."""
    better = aim.gain(numbers, knee)
    if better is not None and aim is GOODPUT:
        tail = (TAIL.gain(numbers, knee) or 0.0) * TAIL_WORTH / math.log(2)
        better += max(-TAIL_WORTH, min(TAIL_WORTH, tail))
    return better


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """Refined / knee of one aim, with its 95 % interval; above 1 is more, not better."""

    name: str
    value: float
    low: float
    high: float
    sureness: float
    """One minus the one-sided p-value of no gain."""

    statistic: float
    """Student's t of no gain; positive is better."""

    @property
    def is_better(self) -> bool:
        return self.low > 1 if AIMS[self.name].sign > 0 else self.high < 1

    def __str__(self) -> str:
        value, low, high = (f"{100 * (x - 1):+.1f}" for x in (self.value, self.low, self.high))
        return f"{AIMS[self.name].text} {value}% ({low} to {high}%)"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The gain that is certain, and how sure that is."""

    of: str
    """Name of the aim, or MEMORY_AIM."""

    sureness: float


@dataclass(frozen=True, slots=True)
class PairedResult:
    """The result of the pairs: refined / knee of every aim."""

    ratios: dict[str, PairedRatio]
    accepted: Acceptance | None
    """None keeps the knee."""

    pairs: int


Pairs = Sequence[tuple[Numbers, Numbers]]
"""(Knee, refined), replayed one after the other."""


def ratios_of(pairs: Pairs) -> dict[str, PairedRatio]:
    """Return refined / knee of every aim that has such a number in every pair."""
    ratios = ((name, paired_ratio(aim, pairs)) for name, aim in AIMS.items())
    return {name: ratio for name, ratio in ratios if ratio is not None}


def paired_ratio(aim: Aim, pairs: Pairs) -> PairedRatio | None:
    """Return refined / knee over two pairs at least.

    None where a pair has no such number, or so little is served that a ratio has no interval.
    """
    if aim is GOODPUT:
        knee, refined = np.array([[each.attainment for each in pair] for pair in pairs]).T
        ends = fieller(refined, knee)
        if ends is None:
            return None
        value, (low, high) = float(refined.mean() / knee.mean()), ends
        t = statistic(refined - knee)
    else:
        known = [g for knee, refined in pairs if (g := aim.gain(refined, knee)) is not None]
        if len(known) < len(pairs):
            return None
        gains = np.array(known)
        reach = t_quantile(len(gains) - 1) * _standard_error(gains)
        log = aim.sign * float(gains.mean())
        value, low, high = math.exp(log), math.exp(log - reach), math.exp(log + reach)
        t = statistic(gains)
    return PairedRatio(aim.name, value, low, high, t_share(len(pairs) - 1, t), t)


def fieller(above: Floats, below: Floats) -> tuple[float, float] | None:
    """Return the 95 % interval of mean(above) / mean(below) over pairs of them; None where it has
    no ends, as ``below`` may be nothing.

    It holds the ratios r for which the mean of above - r * below does not differ from 0.

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
    mean, error = float(values.mean()), _standard_error(values)
    if error > 0:
        return mean / error
    return 0.0 if mean == 0 else math.copysign(math.inf, mean)


def _standard_error(values: Floats) -> float:
    """Return the standard error of a mean; 0 of values that differ by rounding alone."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return error if error > 1e-12 * float(np.abs(values).max()) else 0.0


def proving(aim: Aim) -> tuple[Aim, ...]:
    """Return the aims of which any that is better proves a gain, in order."""
    return (GOODPUT, TAIL) if aim is GOODPUT else (aim,)


def acceptance(
    aim: Aim, ratios: Mapping[str, PairedRatio], *, frees_memory: bool = False
) -> Acceptance | None:
    """Return what proves a gain, None where nothing does.

    The aim itself must be better for certain, and goodput not lost. Where the aim is goodput, a
    shorter tail at no less goodput is a gain too; and so is less memory, where neither is lost.
    """
    goodput, tail = ratios.get(GOODPUT.name), ratios.get(TAIL.name)
    if goodput is None or goodput.low < NOT_LOST:
        return None
    for each in proving(aim):
        ratio = ratios.get(each.name)
        if ratio is not None and ratio.is_better:
            return Acceptance(ratio.name, ratio.sureness)
    if frees_memory and tail is not None and tail.high <= GOOD_TAIL:
        return Acceptance(MEMORY_AIM, 0.95)  # both ends of two intervals
    return None


def is_futile(aim: Aim, ratios: Mapping[str, PairedRatio], *, pairs: int) -> bool:
    """Whether half of ``pairs`` leave nothing to hope for; ``ratios`` are of these.

    The hope is the conditional power under the trend (Jennison and Turnbull, Group Sequential
    Methods, 2000, chapter 10, normally approximated).
    """
    needed = math.sqrt(2) * t_quantile(pairs - 1)
    half_way = [ratios[each.name].statistic for each in proving(aim) if each.name in ratios]
    return all(0.5 * math.erfc((needed - 2 * t) / math.sqrt(2)) < FUTILE for t in half_way)


def affordable(left_s: float, *, step_s: float, start_s: float) -> int:
    """Return how many pairs there is time for, each half of which takes so long a start besides.

    >>> [affordable(left_s, step_s=10.0, start_s=0.0) for left_s in (0.0, 119.0, 120.0, 9e9)]
    [4, 4, 6, 16]
    """
    two_s = 2 * 2 * (step_s + start_s)
    return max(PAIRS, min(MOST_PAIRS, 2 * int(left_s // two_s)))
