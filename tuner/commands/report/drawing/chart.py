"""Charts as SVG: drawn from numbers, readable without scripts, in light and in dark. Pure.

Colours are classes that the page's style sheet names; sizes are pixels at a width of 360.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner.commands.report.drawing.axes import Axis, spread_out
from tuner.commands.report.drawing.html import Html, tag

WIDTH = 360.0
HEIGHT, LOW_HEIGHT = 210.0, 132.0
TOP, BOTTOM = 18.0, 34.0
LETTER = 6.1
"""Pixels of a letter, about."""

LABELS_APART = 12.0

Look = Literal["accent", "plain"]
"""Looks of a thing: the answer, and what it is compared with."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """Points that are joined, named at their right end."""

    x: Sequence[float] | Floats
    y: Sequence[float] | Floats
    label: str = ""
    look: Look = "plain"
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Area:
    """The area between two lines, such as an interval."""

    x: Sequence[float] | Floats
    low: Sequence[float] | Floats
    high: Sequence[float] | Floats
    look: Look = "plain"


@dataclass(frozen=True, slots=True)
class Dots:
    """Points, each with what a pointer on it is told."""

    x: Sequence[float]
    y: Sequence[float]
    told: Sequence[str]
    look: Look = "plain"
    is_hollow: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the chart at one value, with its name."""

    at: float
    label: str
    across: Literal["x", "y"] = "x"
    look: Look = "plain"
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the x axis that is set off, with its name."""

    begin: float
    end: float
    label: str = ""
    look: Look = "accent"


Item = Line | Area | Dots | Mark | Stretch


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart before it is drawn."""

    said: str
    """What it shows, in a sentence, for whoever cannot see it."""

    x: Axis
    y: Axis
    items: Sequence[Item]
    height: float = HEIGHT


def heights(item: Item) -> list[float]:
    """Return the values that an item has on the y axis."""
    match item:
        case Line() | Dots():
            return [float(one) for one in item.y]
        case Area():
            return [float(one) for one in (*item.low, *item.high)]
        case Mark():
            return [item.at] if item.across == "y" else []
        case Stretch():
            return []


def drawn(chart: Chart) -> Html:
    """Return the chart as an SVG element."""
    frame = _Frame.of(chart)
    parts = [*_grid(chart, frame)]
    for item in sorted(chart.items, key=_depth):
        parts += _item(item, frame)
    parts += _labels(chart, frame)
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH:g} {chart.height:g}",
        role="img",
        aria_label=chart.said,
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """The frame in which the data of a chart is drawn, in pixels."""

    chart: Chart
    left: float
    right: float
    bottom: float

    @classmethod
    def of(cls, chart: Chart) -> "_Frame":
        written = max((len(text) for _, text in chart.y.ticks), default=0)
        named = max((len(one.label) for one in chart.items if isinstance(one, Line)), default=0)
        right = WIDTH - (LETTER * named + 10 if named else 12)
        return cls(chart, LETTER * written + 10, right, chart.height - BOTTOM)

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * self.chart.x.place(value)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - TOP) * self.chart.y.place(value)

    def path(self, x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> str:
        """Return the points as the data of a path, in hundredths of a pixel. Each is written from
        the last one on, which is short; a value that is no number parts the path."""
        words = list[str]()
        last: tuple[int, int] | None = None
        for one, other in zip(x, y, strict=True):
            if not (np.isfinite(one) and np.isfinite(other)):
                last = None
                continue
            at = round(100 * self.x(float(one))), round(100 * self.y(float(other)))
            if last is None:
                words.append(f"M{_short(at[0])} {_short(at[1])}")
            else:
                words.append(f"l{_short(at[0] - last[0])} {_short(at[1] - last[1])}")
            last = at
        return "".join(words)


def _short(hundredths: int) -> str:
    """Return hundredths as a path takes them, of which a page has tens of thousands.

    >>> _short(-15), _short(1200), _short(0), _short(31005)
    ('-.15', '12', '0', '310.05')
    """
    text = f"{hundredths / 100:g}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _depth(item: Item) -> int:
    order: tuple[type, ...] = (Stretch, Area, Mark, Line, Dots)
    return order.index(type(item))


def _grid(chart: Chart, frame: _Frame) -> Iterator[Html]:
    for value, text in chart.y.ticks:
        y = f"{frame.y(value):.1f}"
        yield tag(
            "line", class_="grid", x1=f"{frame.left:.1f}", x2=f"{frame.right:.1f}", y1=y, y2=y
        )
        yield _text(text, frame.left - 6, frame.y(value) + 3.5, "tick", anchor="end")
    for value, text in chart.x.ticks:
        yield _text(text, frame.x(value), frame.bottom + 14, "tick", anchor="middle")
    if chart.x.label:
        middle = (frame.left + frame.right) / 2
        yield _text(chart.x.label, middle, chart.height - 4, "axis", anchor="middle")


def _item(item: Item, frame: _Frame) -> Iterator[Html]:
    match item:
        case Stretch():
            begin, end = frame.x(item.begin), frame.x(item.end)
            yield tag(
                "rect",
                class_=f"stretch {item.look}",
                x=f"{begin:.1f}",
                y=f"{TOP:g}",
                width=f"{max(1.0, end - begin):.1f}",
                height=f"{frame.bottom - TOP:.1f}",
            )
            if item.label:
                yield _text(item.label, (begin + end) / 2, TOP - 5, f"label {item.look}", "middle")
        case Area():
            known = np.isfinite(np.asarray(item.low, float)) & np.isfinite(
                np.asarray(item.high, float)
            )
            x, low, high = (np.asarray(one, float)[known] for one in (item.x, item.low, item.high))
            if len(x):
                outline = frame.path(np.append(x, x[::-1]), np.append(high, low[::-1]))
                yield tag("path", class_=f"area {item.look}", d=f"{outline}Z")
        case Mark():
            yield from _mark(item, frame)
        case Line():
            dashed = " dashed" if item.is_dashed else ""
            yield tag(
                "path",
                class_=f"line {item.look}{dashed}",
                d=frame.path(item.x, item.y),
            )
        case Dots():
            yield from _dots(item, frame)


def _mark(item: Mark, frame: _Frame) -> Iterator[Html]:
    dashed = " dashed" if item.is_dashed else ""
    if item.across == "x":
        x = frame.x(item.at)
        at = f"{x:.1f}"
        yield tag(
            "line", class_=f"mark {item.look}{dashed}", x1=at, x2=at, y1=f"{TOP:g}",
            y2=f"{frame.bottom:.1f}",
        )  # fmt: skip
        half = LETTER * len(item.label) / 2
        inside = min(max(x, frame.left + half), WIDTH - half - 2)
        yield _text(item.label, inside, TOP - 5, f"label {item.look}", "middle")
        return
    y = frame.y(item.at)
    at = f"{y:.1f}"
    yield tag(
        "line", class_=f"mark {item.look}{dashed}", x1=f"{frame.left:.1f}",
        x2=f"{frame.right:.1f}", y1=at, y2=at,
    )  # fmt: skip
    yield _text(item.label, frame.left + 3, y - 4, f"label {item.look}")


def _dots(item: Dots, frame: _Frame) -> Iterator[Html]:
    look = f"{item.look}{' hollow' if item.is_hollow else ''}"
    for x, y, text in zip(item.x, item.y, item.told, strict=True):
        if np.isfinite(y):
            at = {"cx": f"{frame.x(x):.2f}", "cy": f"{frame.y(y):.2f}"}
            dot = tag("circle", class_=f"dot {look}", **at, r="3")
            yield tag("g", tag("title", text), dot)


def _labels(chart: Chart, frame: _Frame) -> Iterator[Html]:
    """Yield the names of the lines at their right ends, none over another."""
    named = [one for one in chart.items if isinstance(one, Line) and one.label and len(one.y)]
    places = [frame.y(float(one.y[-1])) for one in named]
    for one, y in zip(
        named, spread_out(places, least=LABELS_APART, low=TOP, high=frame.bottom), strict=True
    ):
        end = frame.x(float(one.x[-1])) + 5
        yield _text(one.label, end, y + 3.5, f"label end {one.look}", "start")


def _text(text: str, x: float, y: float, look: str, anchor: str = "start") -> Html:
    return tag("text", text, class_=look, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a list, with its value written behind it."""

    label: str
    value: float | None
    """None where there is none: that is said."""

    ends: tuple[float, float] | None = None
    """Its interval."""

    is_least: bool = False
    """Whether the truth is more."""

    look: Look = "plain"


ROW, MOST_LETTERS = 24.0, 24
VALUE_WIDTH = 66.0


def barred(bars: Sequence[Bar], told: Callable[[float], str]) -> Html:
    """Return bars one below the other, from 0 on; where one is negative, to both sides of it."""
    known = [one.value for one in bars if one.value is not None]
    ends = [end for one in bars if one.ends is not None for end in one.ends]
    low, high = min([0.0, *known, *ends]), max([0.0, *known, *ends])
    left = LETTER * min(MOST_LETTERS, max((len(one.label) for one in bars), default=0)) + 8
    scale = (WIDTH - VALUE_WIDTH - left) / ((high - low) or 1.0)

    def x(value: float) -> float:
        return left + (value - low) * scale

    parts: list[Html] = []
    for number, one in enumerate(bars):
        y = ROW * number + 4
        label = one.label if len(one.label) <= MOST_LETTERS else f"{one.label[: MOST_LETTERS - 1]}…"
        parts.append(_text(label, left - 6, y + 12, f"label {one.look}", "end"))
        if one.value is None:
            parts.append(_text("not measured", x(0.0) + 4, y + 12, "label"))
            continue
        begin, end = sorted((x(0.0), x(one.value)))
        parts.append(
            tag("rect", class_=f"bar {one.look}", x=f"{begin:.1f}", y=f"{y:g}",
                width=f"{max(1.0, end - begin):.1f}", height="16", rx="2")
        )  # fmt: skip
        reach = end
        if one.ends is not None:
            first, last = (x(each) for each in one.ends)
            middle, reach = f"{y + 8:g}", max(end, last)
            parts.append(
                tag(
                    "line",
                    class_="whisker",
                    x1=f"{first:.1f}",
                    x2=f"{last:.1f}",
                    y1=middle,
                    y2=middle,
                )
            )
        value = f"{'> ' if one.is_least else ''}{told(one.value)}"
        parts.append(_text(value, reach + 5, y + 12, f"label {one.look}"))
    listed = "; ".join(
        f"{one.label}: {'not measured' if one.value is None else told(one.value)}" for one in bars
    )
    height = ROW * len(bars) + 4
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=listed)
