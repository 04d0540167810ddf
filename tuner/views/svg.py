"""Charts as SVG: no script, light and dark by the page's style sheet. Pure.

Sizes are pixels at a width of 360.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.views.html import Html, tag
from tuner.views.page import Chart, Kind, Series, text

WIDTH, HEIGHT, TOP, BOTTOM = 360.0, 200.0, 18.0, 34.0
FOOT = HEIGHT - BOTTOM
LETTER, LABELS_APART = 6.1, 12.0
"""Pixels of a letter, about, and between two labels."""
MOST_CAPS = 8
DECADES_FOR_LOG = 30.0
"""Times whose largest is so many times the least have a logarithmic axis."""

Floats = NDArray[np.float64]


def figure(chart: Chart) -> Html:
    """Return a chart with its title and note."""
    note = tag("span", chart.note) if chart.note else None
    return tag("figure", tag("figcaption", chart.title, note), _svg(chart))


def thinned(x: Floats, y: Floats, most: int) -> tuple[Floats, Floats]:
    """Return at most ``most`` points of a line: the ends, and of each of equal stretches of x the
    lowest and the highest, which are all that can be seen of it."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) <= most:
        return x, y
    stretches = (most - 2) // 2
    place = np.minimum(stretches - 1, (x - x[0]) / (x[-1] - x[0] or 1.0) * stretches).astype(int)
    order = np.lexsort((y, place))
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    kept = np.unique(np.concatenate(([0, len(x) - 1], order[first], order[last])))
    return x[kept], y[kept]


class _Axis:
    """Where a value is drawn, and which values are written beside it."""

    def __init__(self, ends: Sequence[float], pixels: tuple[float, float], *, is_log: bool) -> None:
        known = [value for value in ends if math.isfinite(value)]
        self.low, self.high = min(known, default=0.0), max(known, default=1.0)
        if not self.high > self.low:
            self.high = 2 * self.low if is_log else self.low + 1.0
        (self.begin, self.end), self.is_log = pixels, is_log
        self.ticks: list[float] = []

    def at(self, value: float) -> float:
        low, value, high = self.low, min(max(value, self.low), self.high), self.high
        if self.is_log:
            low, value, high = map(math.log, (low, value, high))
        return self.begin + (self.end - self.begin) * (value - low) / (high - low)


def _y_axis(chart: Chart, values: Sequence[float]) -> _Axis:
    """Return an axis from nothing to a round number, or over decades for times that differ so."""
    known = [value for value in values if math.isfinite(value)]
    positive = [value for value in known if value > 0]
    if chart.kind == "time" and positive and max(positive) >= DECADES_FOR_LOG * min(positive):
        first = math.floor(math.log10(min(positive)))
        last = math.ceil(math.log10(max(positive)) - 1e-9)
        ticks = [10.0**power for power in range(first, last + 1)]
        axis = _Axis(ticks, (FOOT, TOP), is_log=True)
    else:
        least, most = min([0.0, *known]), max([0.0, *known])
        step = _round_step((most - least) / 4 or 1.0)
        low = math.floor(least / step)
        count = max(1, math.ceil(most / step - low - 1e-9))
        ticks = [step * (low + number) for number in range(count + 1)]
        axis = _Axis(ticks, (FOOT, TOP), is_log=False)
    axis.ticks = ticks
    return axis


def _x_axis(chart: Chart, values: Sequence[float], left: float, right: float) -> _Axis:
    axis = _Axis(values, (left, right), is_log=chart.by_cap)
    if chart.by_cap:
        axis.ticks = sorted(set(values))
        while len(axis.ticks) > MOST_CAPS:
            axis.ticks = axis.ticks[::-2][::-1]
    else:
        step = _round_step((axis.high - axis.low) / 5)
        first, last = math.ceil(axis.low / step - 1e-9), math.floor(axis.high / step + 1e-9)
        axis.ticks = [step * number for number in range(first, last + 1)]
    return axis


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * (1 - 1e-9))


def tick(kind: Kind, value: float) -> str:
    """Return a round value beside an axis.

    >>> tick("time", 0.02), tick("time", 3.0), tick("share", 0.25), tick("count", 250_000)
    ('20 ms', '3 s', '25%', '250k')
    """
    if kind == "time" and value:
        return f"{value:,.4g} s" if value >= 1 else f"{1e3 * value:.4g} ms"
    if kind == "share":
        return f"{100 * value:.4g}%"
    return f"{value / 1e3:,.4g}k" if abs(value) >= 10_000 else f"{value:,.6g}"


def _svg(chart: Chart) -> Html:
    drawn = [(*each.y, *each.low, *each.high) for each in chart.series]
    ys = [value for each in drawn for value in each if value is not None]
    y = _y_axis(chart, [*ys, *(mark.at for mark in chart.marks if mark.axis == "y")])
    names = max((len(each.name) for each in chart.series), default=0)
    left = LETTER * max(len(tick(chart.kind, value)) for value in y.ticks) + 10
    right = WIDTH - (LETTER * names + 10 if names else 12)
    xs = [value for each in chart.series for value in each.x]
    if chart.by_cap:
        xs += [mark.at for mark in chart.marks if mark.axis == "x"]
    x = _x_axis(chart, xs, left, right)
    parts = [*_grid(chart, x, y), *_marks(chart, x, y)]
    for each in chart.series:
        parts += _line(chart, each, x, y)
    parts += _names(chart, x, y)
    words = "; ".join(f"{each.name or 'line'} {_in_words(chart, each)}" for each in chart.series)
    label = f"{chart.title}: {words}"
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=label)


def _in_words(chart: Chart, series: Series) -> str:
    """Return a line in words, for those who cannot see it."""
    pairs = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
    if not pairs:
        return "without values"
    if chart.by_cap:
        return ", ".join(f"{x:g}: {text(chart.kind, y)}" for x, y in pairs)
    known = [y for _, y in pairs]
    return f"from {text(chart.kind, min(known))} to {text(chart.kind, max(known))}"


def _grid(chart: Chart, x: _Axis, y: _Axis) -> Iterator[Html]:
    for value in y.ticks:
        yield tag("path", class_="grid", d=f"M{x.begin:.1f} {y.at(value):.1f}H{x.end:.1f}")
        yield _text(tick(chart.kind, value), x.begin - 6, y.at(value) + 3.5, "tick", "end")
    for value in x.ticks:
        yield _text(f"{value:,.6g}", x.at(value), FOOT + 14, "tick")
    yield _text(chart.x_label, (x.begin + x.end) / 2, HEIGHT - 4, "tick")
    for low, high in chart.shades:
        begin, width = x.at(low), max(1.0, x.at(high) - x.at(low))
        box = {"x": f"{begin:.1f}", "y": f"{TOP:g}", "width": f"{width:.1f}"}
        yield tag("rect", class_="shade", **box, height=f"{FOOT - TOP:g}")


def _marks(chart: Chart, x: _Axis, y: _Axis) -> Iterator[Html]:
    for mark in chart.marks:
        look = "accent" if mark.is_accent else "plain"
        if mark.axis == "x":
            at = x.at(mark.at)
            half = LETTER * len(mark.label) / 2
            inside = min(max(at, x.begin + half), WIDTH - half - 2)
            yield tag("path", class_=f"mark {look}", d=f"M{at:.1f} {TOP:g}V{FOOT:g}")
            yield _text(mark.label, inside, TOP - 5, f"label {look}")
        else:
            at = y.at(mark.at)
            yield tag("path", class_=f"mark {look}", d=f"M{x.begin:.1f} {at:.1f}H{x.end:.1f}")
            yield _text(mark.label, x.begin + 3, at - 4, f"label {look}", "start")


def _line(chart: Chart, series: Series, x: _Axis, y: _Axis) -> Iterator[Html]:
    look = f"{'accent' if series.is_accent else 'plain'}{' dashed' * series.is_dashed}"
    low, high = (
        [(at, end) for at, end in zip(series.x, ends, strict=False) if end is not None]
        for ends in (series.low, series.high)
    )
    if low and high:
        yield tag("path", class_=f"band {look}", d=f"{_path([*high, *low[::-1]], x, y)}Z")
    points = list(zip(series.x, series.y, strict=True))
    if series.has_line:
        yield tag("path", class_=f"line {look}", d=_path(points, x, y))
    for at, value in points if series.has_dots else ():
        if value is not None:
            hint = tag("title", f"{at:g}: {text(chart.kind, value)}")
            place = {"cx": f"{x.at(at):.1f}", "cy": f"{y.at(value):.1f}"}
            yield tag("circle", hint, class_=f"dot {look}", **place, r="3")


def _path(points: Sequence[tuple[float, float | None]], x: _Axis, y: _Axis) -> str:
    words, pen = [], "M"
    for at, value in points:
        if value is not None:
            words.append(f"{pen}{x.at(at):.1f} {y.at(value):.1f}")
        pen = "M" if value is None else "L"
    return "".join(words)


def _names(chart: Chart, x: _Axis, y: _Axis) -> Iterator[Html]:
    """Yield the names of the lines at their right ends, none over another."""
    ends = []
    for each in chart.series:
        known = [value for value in each.y if value is not None]
        if each.name and known:
            ends.append((known[-1], each))
    lowest = FOOT
    for value, each in sorted(ends, key=lambda end: end[0]):
        lowest = min(y.at(value), lowest)
        look = "label accent" if each.is_accent else "label"
        yield _text(each.name, x.at(each.x[-1]) + 5, lowest + 3.5, look, "start")
        lowest -= LABELS_APART


def _text(words: str, x: float, y: float, look: str, anchor: str = "middle") -> Html:
    return tag("text", words, class_=look, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
