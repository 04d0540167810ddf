"""A page as one HTML file with charts in SVG: nothing on it is fetched and nothing runs. Pure.

Text that others wrote (names of models, traces, errors) can only become text: ``tag`` escapes the
children and attributes of every element that are no ``Html`` yet. Charts are drawn at a width of
360 pixels; the style sheet decides on colors, light and dark.
"""

import base64
import hashlib
import html
import math
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.system.printable import printable
from tuner.views.page import Chart, Kind, Page, Section, Table, headed, text, texts

GENERATOR = "tuner show"
"""In the head of every page: only a page may be overwritten by a page."""
VOID = {"meta", "circle", "path", "rect"}

WIDTH, HEIGHT, TOP, FOOT, RIGHT = 360.0, 200.0, 18.0, 166.0, 348.0
LETTER = 6.1
"""Pixels of a letter, about."""
MOST_CAPS = 8
DECADES_FOR_LOG = 30.0
"""Times whose largest is so many times the least have a logarithmic axis."""

Floats = NDArray[np.float64]


class Html(str):
    """Text that is HTML already: made by ``tag``, or a constant of ours."""

    __slots__ = ()


def tag(element: str, /, *children: str | None, **attributes: object) -> Html:
    """Return an element. ``class_`` loses its underscore, others become hyphens; None is left out.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    words = [element] + [
        f'{key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    ]
    if element in VOID and not children:
        return Html(f"<{' '.join(words)}/>")
    return Html(f"<{' '.join(words)}>{joined(*children)}</{element}>")


def joined(*children: str | None) -> Html:
    given = (child for child in children if child is not None)
    return Html("".join(each if isinstance(each, Html) else escaped(each) for each in given))


def escaped(value: object) -> Html:
    """Return text as HTML that shows it and does nothing else: characters that control or hide are
    spelled as escapes."""
    return Html(html.escape("\n".join(map(printable, str(value).split("\n")))))


def page_html(page: Page) -> str:
    """Return the page as HTML."""
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=GENERATOR),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{page.title} - {page.subject}"),
        Html(f"<style>{style}</style>"),
    )
    facts = [(name, escaped(words)) for name, words in [*page.facts, ("run", page.run_dir)]]
    facts.append(("next", joined(page.next and tag("code", page.next))))
    facts.append(("warnings", _items(page.warnings, class_="warnings")))
    header = tag(
        "header",
        tag("p", page.subject, class_="subject"),
        tag("h1", page.title),
        tag("p", page.aside, class_="aside") if page.aside else None,
        tag("p", page.missing, class_="missing") if page.missing else None,
        tag("dl", *(joined(tag("dt", name), tag("dd", word)) for name, word in facts if word)),
    )
    sections = [_section(section) for section in page.sections]
    if page.details:
        sections.append(tag("section", tag("h2", "Details"), _items(page.details)))
    body = tag("body", header, tag("main", *sections))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _items(lines: Sequence[str], **attributes: str) -> Html:
    return tag("ul", *(tag("li", line) for line in lines), **attributes) if lines else Html()


def _section(section: Section) -> Html:
    return tag(
        "section",
        tag("h2", section.title),
        tag("p", section.note) if section.note else None,
        tag("div", *map(figure, section.charts), class_="charts") if section.charts else None,
        *map(_table, section.tables),
    )


def _table(table: Table) -> Html:
    columns = []
    for place, column in enumerate(table.columns):
        if column.heading:
            cells = [row[place] for row in table.rows]
            look = "text" if column.kind == "text" else None
            head = tag("th", headed(column, cells), scope="col", class_=look)
            columns.append([head, *(tag("td", w, class_=look) for w in texts(column.kind, cells))])
    head_row, *rows = (
        tag("tr", *row, class_="chosen" if number - 1 == table.chosen else None)
        for number, row in enumerate(zip(*columns, strict=True))
    )
    caption = tag("caption", table.caption) if table.caption else None
    inner = tag("table", caption, tag("thead", head_row), tag("tbody", *rows))
    label = table.caption or "Table"
    return tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=label)


# Charts


class Scale(NamedTuple):
    """Where values are drawn, and which are written beside the axis: from end to end."""

    ticks: Sequence[float]
    begin: float
    end: float
    """Pixels of the first and the last tick."""
    is_log: bool = False

    def at(self, values: ArrayLike) -> Any:  # noqa: ANN401 - a number, or an array of them
        ends = np.array([self.ticks[0], self.ticks[-1]])
        inside = np.clip(np.asarray(values, float), *ends)
        if self.is_log:
            inside, ends = np.log(inside), np.log(ends)
        return np.interp(inside, ends, (self.begin, self.end))


def figure(chart: Chart) -> Html:
    """Return a chart with its title and note."""
    known = [value for value in chart.y if value is not None]
    ys = [each for each in (*known, *chart.low, *chart.high, chart.limit) if each is not None]
    y = _y_scale(chart.kind, [*ys, *(value for _, value in chart.points if value)])
    left = LETTER * max(len(tick(chart.kind, value)) for value in y.ticks) + 10
    if chart.by_cap:
        caps = sorted({*chart.x, *(mark.at for mark in chart.marks)})
        x = Scale(caps or [1.0], left, RIGHT, is_log=True)
    else:
        x = Scale(_round_ticks(chart.x or [0.0], 8), left, RIGHT)
    ends = (text(chart.kind, end(known)) for end in (min, max) if known)
    drawn = tag(
        "svg",
        *_grid(chart, x, y),
        *_marks(chart, x, y),
        *_line(chart, x, y),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=f"{chart.title}: from {' to '.join(ends)}" if known else chart.title,
    )
    note = tag("span", chart.note) if chart.note else None
    return tag("figure", tag("figcaption", chart.title, note), drawn)


def _y_scale(kind: Kind, values: Sequence[float]) -> Scale:
    """Return an axis from nothing to a round number, or over decades for times that differ so."""
    most = max(values, default=0.0)
    least = min((value for value in values if value > 0), default=math.inf)
    if kind == "time" and most >= DECADES_FOR_LOG * least:
        powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most) - 1e-9) + 1)
        return Scale([10.0**power for power in powers], FOOT, TOP, is_log=True)
    return Scale(_round_ticks([0.0, *values], 4), FOOT, TOP)


def _round_ticks(values: Sequence[float], count: int) -> Sequence[float]:
    """Return about so many round values, equally far apart, from below the least to above the
    most."""
    low, high = min(values), max(values)
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    return [step * n for n in range(first, max(first + 1, math.ceil(high / step - 1e-9)) + 1)]


def tick(kind: Kind, value: float) -> str:
    """Return a round value beside an axis.

    >>> tick("time", 0.02), tick("time", 3.0), tick("share", 0.25), tick("count", 250_000)
    ('20 ms', '3 s', '25%', '250k')
    """
    if kind == "time" and value:
        return f"{value:,.6g} s" if value >= 1 else f"{1e3 * value:.4g} ms"
    if kind == "share":
        return f"{100 * value:.4g}%"
    return f"{value / 1e3:,.4g}k" if abs(value) >= 10_000 else f"{value:,.6g}"


def _grid(chart: Chart, x: Scale, y: Scale) -> Iterator[Html]:
    for value, at in zip(y.ticks, y.at(y.ticks), strict=True):
        yield tag("path", class_="grid", d=f"M{x.begin:.1f} {at:.1f}H{x.end:.1f}")
        yield _text(tick(chart.kind, value), x.begin - 6, at + 3.5, "tick", "end")
    shown = x.ticks[:: -max(1, math.ceil(len(x.ticks) / MOST_CAPS))]
    for value, at in zip(shown, x.at(shown), strict=True):
        yield _text(f"{value:,.6g}", at, FOOT + 14, "tick")
    yield _text(chart.x_label, (x.begin + x.end) / 2, HEIGHT - 4, "tick")
    for shade in chart.shades:
        low, high = x.at(shade)
        box = {"x": f"{low:.1f}", "width": f"{max(1.0, high - low):.1f}"}
        yield tag("rect", class_="shade", **box, y=f"{TOP:g}", height=f"{FOOT - TOP:g}")


def _marks(chart: Chart, x: Scale, y: Scale) -> Iterator[Html]:
    for mark in chart.marks:
        look, at = "accent" if mark.is_accent else "plain", x.at(mark.at)
        yield tag("path", class_=f"mark {look}", d=f"M{at:.1f} {TOP:g}V{FOOT:g}")
        half = LETTER * len(mark.label) / 2
        place = min(max(at, x.begin + half), WIDTH - half)
        yield _text(mark.label, place, TOP - 5, f"label {look}")
    if chart.limit is not None:
        at = y.at(chart.limit)
        yield tag("path", class_="mark plain", d=f"M{x.begin:.1f} {at:.1f}H{x.end:.1f}")
        yield _text("SLO", x.begin + 3, at - 4, "label plain", "start")


def _line(chart: Chart, x: Scale, y: Scale) -> Iterator[Html]:
    """Yield the band, the line, and a dot for each value that has one."""
    at, values, low, high = (
        np.array(each, float) for each in (chart.x, chart.y, chart.low, chart.high)
    )
    if len(known := np.flatnonzero(np.isfinite(low))):
        around = x.at(at[[*known, *known[::-1]]])
        ends = y.at(np.concatenate((high[known], low[known[::-1]])))
        yield tag("path", class_="band", d=f"{_path(around, ends)}Z")
    yield tag("path", class_="line", d=_path(x.at(at), y.at(values)))
    dots = [("accent", *dot) for dot in zip(at, values, strict=True) if chart.by_cap]
    for look, cap, value in [*dots, *(("plain", *point) for point in chart.points)]:
        if value is not None and math.isfinite(value):
            hint = tag("title", f"{cap:g}: {text(chart.kind, value)}")
            place = {"cx": f"{x.at(cap):.1f}", "cy": f"{y.at(value):.1f}"}
            yield tag("circle", hint, class_=f"dot {look}", **place, r="3")


def _path(x: Floats, y: Floats) -> str:
    """Return a path through points, parted where one is not known."""
    words, pen = [], "M"
    for at, height in zip(x.tolist(), y.tolist(), strict=True):
        if math.isfinite(height):
            words.append(f"{pen}{at:.1f} {height:.1f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(words)


def _text(words: str, x: float, y: float, look: str, anchor: str = "middle") -> Html:
    return tag("text", words, class_=look, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
