"""Charts as SVG: no script, light and dark by the page's style sheet. Pure.

Sizes are pixels at a width of 360.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tuner.views.html import Html, tag
from tuner.views.page import Chart, Kind, Mark, Series, text

WIDTH, HEIGHT, TOP, FOOT = 360.0, 200.0, 18.0, 166.0
LETTER, LABELS_APART = 6.1, 12.0
"""Pixels of a letter, about, and between two labels."""
MOST_CAPS = 8
DECADES_FOR_LOG = 30.0
"""Times whose largest is so many times the least have a logarithmic axis."""


class Scale(NamedTuple):
    """Where a value is drawn, and which values are written beside the axis."""

    ticks: list[float]
    ends: tuple[float, float]
    """The values at both ends."""
    begin: float
    end: float
    """Their pixels."""
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high = self.ends
        value = min(max(value, low), high)
        if self.is_log:
            low, value, high = map(math.log, (low, value, high))
        return self.begin + (self.end - self.begin) * (value - low) / (high - low or 1.0)


def figure(chart: Chart) -> Html:
    """Return a chart with its title and note."""
    ys = [value for each in chart.series for value in (*each.y, *each.low, *each.high)]
    y = _y_scale(chart.kind, [value for value in ys if value is not None], chart.marks)
    names = max((len(each.name) for each in chart.series), default=0)
    left = LETTER * max(len(tick(chart.kind, value)) for value in y.ticks) + 10
    right = WIDTH - (LETTER * names + 10 if names else 12)
    xs = [value for each in chart.series for value in each.x]
    if chart.by_cap:
        caps = {*xs, *(mark.at for mark in chart.marks if mark.axis == "x")}
        ticks = sorted(caps) or [1.0]
        x = Scale(ticks, (ticks[0], ticks[-1]), left, right, is_log=True)
    else:
        low, high = min(xs, default=0.0), max(xs, default=1.0)
        ticks = [value for value in _round_ticks(low, high, 5) if low <= value <= high]
        x = Scale(ticks, (low, high), left, right)
    parts = [*_grid(chart, x, y), *(part for mark in chart.marks for part in _mark(mark, x, y))]
    for each in chart.series:
        parts += _line(chart.kind, each, x, y)
    words = "; ".join(_in_words(chart.kind, each) for each in chart.series)
    drawn = tag(
        "svg",
        *parts,
        *_names(chart.series, x, y),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=f"{chart.title}: {words}",
    )
    note = tag("span", chart.note) if chart.note else None
    return tag("figure", tag("figcaption", chart.title, note), drawn)


def _y_scale(kind: Kind, values: Sequence[float], marks: Sequence[Mark]) -> Scale:
    """Return an axis from nothing to a round number, or over decades for times that differ so."""
    known = [0.0, *values, *(mark.at for mark in marks if mark.axis == "y")]
    least = min((value for value in known if value > 0), default=math.inf)
    if kind == "time" and max(known) >= DECADES_FOR_LOG * least:
        last = math.ceil(math.log10(max(known)) - 1e-9)
        decades = range(math.floor(math.log10(least)), last + 1)
        ticks, is_log = [10.0**power for power in decades], True
    else:
        ticks, is_log = _round_ticks(min(known), max(known), 4), False
    return Scale(ticks, (ticks[0], ticks[-1]), FOOT, TOP, is_log=is_log)


def _round_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about so many round values, equally far apart, from below one to above the other."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [step * number for number in range(first, last + 1)]


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


def _in_words(kind: Kind, series: Series) -> str:
    """Return a line in words, for those who cannot see it."""
    known = [value for value in series.y if value is not None]
    ends = [text(kind, end(known)) for end in (min, max) if known]
    return f"{series.name or 'line'} from {' to '.join(ends)}" if ends else "no values"


def _grid(chart: Chart, x: Scale, y: Scale) -> Iterator[Html]:
    for value in y.ticks:
        yield tag("path", class_="grid", d=f"M{x.begin:.1f} {y.at(value):.1f}H{x.end:.1f}")
        yield _text(tick(chart.kind, value), x.begin - 6, y.at(value) + 3.5, "tick", "end")
    for value in x.ticks[:: -max(1, math.ceil(len(x.ticks) / MOST_CAPS))]:
        yield _text(f"{value:,.6g}", x.at(value), FOOT + 14, "tick")
    yield _text(chart.x_label, (x.begin + x.end) / 2, HEIGHT - 4, "tick")
    for low, high in chart.shades:
        box = {"x": f"{x.at(low):.1f}", "width": f"{max(1.0, x.at(high) - x.at(low)):.1f}"}
        yield tag("rect", class_="shade", **box, y=f"{TOP:g}", height=f"{FOOT - TOP:g}")


def _mark(mark: Mark, x: Scale, y: Scale) -> Iterator[Html]:
    look = "accent" if mark.is_accent else "plain"
    if mark.axis == "x":
        at, half = x.at(mark.at), LETTER * len(mark.label) / 2
        path, anchor = f"M{at:.1f} {TOP:g}V{FOOT:g}", "middle"
        place = min(max(at, x.begin + half), WIDTH - half - 2), TOP - 5
    else:
        at = y.at(mark.at)
        path, anchor, place = f"M{x.begin:.1f} {at:.1f}H{x.end:.1f}", "start", (x.begin + 3, at - 4)
    yield tag("path", class_=f"mark {look}", d=path)
    yield _text(mark.label, *place, f"label {look}", anchor)


def _line(kind: Kind, series: Series, x: Scale, y: Scale) -> Iterator[Html]:
    look = f"{'accent' if series.is_accent else 'plain'}{' dashed' * series.is_dashed}"
    low, high = (list(zip(series.x, ends, strict=False)) for ends in (series.low, series.high))
    if band := [(at, end) for at, end in (*high, *low[::-1]) if end is not None]:
        yield tag("path", class_=f"band {look}", d=f"{_path(band, x, y)}Z")
    points = list(zip(series.x, series.y, strict=True))
    if series.has_line:
        yield tag("path", class_=f"line {look}", d=_path(points, x, y))
    for at, value in points if series.has_dots else ():
        if value is not None:
            hint = tag("title", f"{at:g}: {text(kind, value)}")
            place = {"cx": f"{x.at(at):.1f}", "cy": f"{y.at(value):.1f}"}
            yield tag("circle", hint, class_=f"dot {look}", **place, r="3")


def _path(points: Sequence[tuple[float, float | None]], x: Scale, y: Scale) -> str:
    words, pen = [], "M"
    for at, value in points:
        if value is not None:
            words.append(f"{pen}{x.at(at):.1f} {y.at(value):.1f}")
        pen = "M" if value is None else "L"
    return "".join(words)


def _names(series: Sequence[Series], x: Scale, y: Scale) -> Iterator[Html]:
    """Yield the names of the lines at their right ends, none over another."""
    known = [(each, [value for value in each.y if value is not None]) for each in series]
    ends = [(values[-1], each) for each, values in known if each.name and values]
    lowest = FOOT
    for value, each in sorted(ends, key=lambda end: end[0]):
        lowest = min(y.at(value), lowest)
        look = "label accent" if each.is_accent else "label"
        yield _text(each.name, x.at(each.x[-1]) + 5, lowest + 3.5, look, "start")
        lowest -= LABELS_APART


def _text(words: str, x: float, y: float, look: str, anchor: str = "middle") -> Html:
    return tag("text", words, class_=look, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
