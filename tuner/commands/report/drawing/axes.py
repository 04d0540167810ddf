"""Axes of a chart: where a value goes, and which values are written beside it. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Told = Callable[[float], str]

DECADES_FOR_LOG = 30.0
"""From so many times the least value on, a latency is drawn on a logarithmic axis."""

MOST_CAPS = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its ends, its scale, and its ticks as (value, text)."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    is_log: bool = False
    label: str = ""

    def place(self, value: float) -> float:
        """Return where a value is: 0 at the low end, 1 at the high one; outside it at the end."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return min(1.0, max(0.0, (value - low) / (high - low)))


def linear(values: Iterable[float], told: Told, *, label: str = "", count: int = 4) -> Axis:
    """Return an axis from 0 to above the largest value, or from below the least where that is
    negative."""
    known = [one for one in values if math.isfinite(one)]
    most, least = max(known, default=1.0), min(0.0, min(known, default=0.0))
    step = _nice((most - least) / count or 1.0)
    low, high = step * math.floor(least / step), step * math.ceil(most / step - 1e-9)
    high = high if high > low else low + step
    ticks = [low + step * number for number in range(round((high - low) / step) + 1)]
    return Axis(low, high, [(one, told(one)) for one in ticks], label=label)


def time(values: Iterable[float], *, label: str) -> Axis:
    """Return an axis of seconds that begins and ends where its values do."""
    known = [one for one in values if math.isfinite(one)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    high = high if high > low else low + 1.0
    step = _nice((high - low) / 5)
    first = math.ceil(low / step - 1e-9)
    ticks = [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return Axis(low, high, [(one, f"{one:,.6g}") for one in ticks], label=label)


def times(values: Iterable[float], told: Told) -> Axis:
    """Return an axis of positive values: logarithmic where they differ by orders."""
    known = [one for one in values if math.isfinite(one) and one > 0]
    if not known or max(known) < DECADES_FOR_LOG * min(known):
        return linear(known, told)
    low, high = _below(min(known)), _above(max(known))
    exponents = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    some = (1,) if len(exponents) > MOST_DECADES else (1, 3)
    ticks = [digit * 10.0**power for power in exponents for digit in some]
    inside = [one for one in ticks if low * (1 - 1e-9) <= one <= high * (1 + 1e-9)]
    return Axis(low, high, [(one, told(one)) for one in inside], is_log=True)


MOST_DECADES = 3


def caps(values: Sequence[int], *, chosen: int, label: str) -> Axis:
    """Return a logarithmic axis of ``max_num_seqs`` whose ticks are its steps."""
    steps = sorted({*values, chosen})
    low, high = steps[0], steps[-1]
    if low == high:
        low, high = max(1, low // 2), 2 * high
    told = [one for one in steps if one != chosen]
    while len(told) + 1 > MOST_CAPS:
        told = told[::-2][::-1]
    shown = sorted(
        one
        for one in (*told, chosen)
        if one == chosen or abs(math.log2(one / chosen)) > NEAR * math.log2(high / low)
    )
    return Axis(low, high, [(one, f"{one:,}") for one in shown], is_log=True, label=label)


NEAR = 0.05
"""Of the axis: a tick so near to the chosen one is left out."""


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * (1 - 1e-9))


def _below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return power if value < 3 * power else 3 * power


def _above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) - 1e-9)
    return 3 * power if value <= 3 * power else 10 * power


def whole(value: float) -> str:
    """Return a count for an axis.

    >>> whole(1500.0), whole(0.5), whole(250_000.0)
    ('1,500', '0.5', '250k')
    """
    if abs(value) >= 10_000:
        return f"{value / 1e3:,.4g}k"
    return f"{value:,.6g}" if math.isfinite(value) else "-"


def share(value: float) -> str:
    """Return a share for an axis.

    >>> share(0.25), share(0.0)
    ('25 %', '0 %')
    """
    return f"{100 * value:.4g} %"


def seconds(value: float) -> str:
    """Return a time for an axis.

    >>> seconds(0.02), seconds(1.0), seconds(3000.0), seconds(0.0)
    ('20 ms', '1 s', '3,000 s', '0')
    """
    if not value or not math.isfinite(value):
        return "0" if value == 0 else "-"
    if value >= 1 - 1e-9:
        return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms"


def milliseconds(value_ms: float) -> str:
    """Return a time that is kept in milliseconds for an axis.

    >>> milliseconds(20.0)
    '20 ms'
    """
    return seconds(value_ms / 1e3)


def times_as_long(value: float) -> str:
    """Return a ratio of times for an axis.

    >>> times_as_long(1.25)
    '1.25x'
    """
    return f"{value:g}x"


def spread_out(places: Sequence[float], *, least: float, low: float, high: float) -> list[float]:
    """Return places moved until they are ``least`` apart, from ``low`` to ``high`` where all fit.

    >>> spread_out([10.0, 10.0, 2.0], least=3.0, low=0.0, high=10.0)
    [7.0, 10.0, 2.0]
    """
    order = sorted(range(len(places)), key=lambda one: places[one])
    found = list(places)
    free = low
    for one in order:
        found[one] = free = max(places[one], free)
        free += least
    free = high
    for one in reversed(order):
        found[one] = free = min(found[one], free)
        free -= least
    return found
