"""A page as one HTML file with charts in SVG: nothing on it is fetched and nothing runs. Pure.

Text that others wrote (names of models, traces, errors) goes through ``escaped``; what else is put
into elements are our own numbers and words. Charts are 360 pixels wide; the style sheet decides on
colors.
"""

import base64
import hashlib
import html
import math
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.system.printable import printable
from tuner.views.page import Chart, Kind, Page, Section, Table

GENERATOR = b'<meta name="generator" content="tuner show"/>'
"""In the head of every page: only a page may be overwritten by a page."""

WIDTH, HEIGHT, TOP, FOOT, RIGHT = 360, 200, 18, 166, 348
LETTER = 6.1
"""Pixels of a letter, about."""
MOST_CAPS = 8
DECADES_FOR_LOG = 30.0
"""Times whose largest is so many times the least have a logarithmic axis."""


def escaped(value: object) -> str:
    """Return text as HTML that shows it and does nothing else: characters that control or hide are
    spelled as escapes.

    >>> print(escaped('a < b, "c\\u202e"'))
    a &lt; b, &quot;c\\u202e&quot;
    """
    return html.escape("\n".join(map(printable, str(value).split("\n"))))


def page_html(page: Page) -> str:
    """Return the page as HTML."""
    template, style = (
        files(__package__).joinpath(name).read_text("utf-8") for name in ("page.html", "style.css")
    )
    facts = [(name, escaped(words)) for name, words in [*page.facts, ("run", page.run_dir)]]
    facts.append(("next", page.next and f"<code>{escaped(page.next)}</code>"))
    facts.append(("warnings", _items(page.warnings)))
    sections = [_section(section) for section in page.sections]
    if page.details:
        sections.append(f"<section><h2>Details</h2>{_items(page.details)}</section>")
    return Template(template).substitute(
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        style=style,
        title=escaped(page.title),
        subject=escaped(page.subject),
        aside=_paragraph(page.aside, "aside"),
        facts="".join(f"<dt>{escaped(n)}</dt><dd>{words}</dd>" for n, words in facts if words),
        main="".join(sections),
    )


def _paragraph(words: str, look: str) -> str:
    return f'<p class="{look}">{escaped(words)}</p>' if words else ""


def _items(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return items and f"<ul>{items}</ul>"


def _section(section: Section) -> str:
    charts = "".join(map(figure, section.charts))
    return (
        f"<section><h2>{escaped(section.title)}</h2>{_paragraph(section.note, 'note')}"
        f'<div class="charts">{charts}</div>{"".join(map(_table, section.tables))}</section>'
    )


def _table(table: Table) -> str:
    columns = [
        [
            f'<th scope="col" class="{kind}">{escaped(heading)}</th>',
            *(f'<td class="{kind}">{escaped(cell)}</td>' for cell in cells),
        ]
        for heading, kind, cells in table.shown()
    ]
    head, *rows = map("".join, zip(*columns, strict=True))
    body = "".join(
        f'<tr class="{"chosen" if place == table.chosen else ""}">{row}</tr>'
        for place, row in enumerate(rows)
    )
    caption = escaped(table.caption)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{caption or "Table"}"><table>'
        f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        "</table></div>"
    )


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


def figure(chart: Chart) -> str:
    """Return a chart with its title."""
    ys = [each for each in (*chart.y, *chart.low, *chart.high, chart.limit) if each]
    y = _y_scale(chart.kind, ys)
    left = LETTER * max(len(tick(chart.kind, value)) for value in y.ticks) + 10
    x = Scale(_round_ticks(max(chart.x, default=0.0), 8), left, RIGHT)
    if chart.by_cap:
        caps = sorted({*chart.x, *(mark.at for mark in chart.marks)})
        x = Scale(caps or [1.0], left, RIGHT, is_log=True)
    title = escaped(chart.title)
    parts = [*_grid(chart, x, y), *_marks(chart, x, y), *_line(chart, x, y)]
    return (
        f"<figure><figcaption>{title}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}'
        "</svg></figure>"
    )


def _y_scale(kind: Kind, values: Sequence[float]) -> Scale:
    """Return an axis from nothing to a round number, or over decades for times that differ so."""
    most, least = max(values, default=0.0), min(values, default=1.0)
    if kind == "time" and most >= DECADES_FOR_LOG * least:
        powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most) - 1e-9) + 1)
        return Scale([10.0**power for power in powers], FOOT, TOP, is_log=True)
    return Scale(_round_ticks(most, 4), FOOT, TOP)


def _round_ticks(most: float, count: int) -> Sequence[float]:
    """Return about so many round values, equally far apart, from 0 to above the most."""
    rough = most / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * (1 - 1e-9))
    return [step * n for n in range(max(1, math.ceil(most / step - 1e-9)) + 1)]


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


def _grid(chart: Chart, x: Scale, y: Scale) -> Iterator[str]:
    for value, at in zip(y.ticks, y.at(y.ticks), strict=True):
        yield f'<path class="grid" d="M{x.begin:.1f} {at:.1f}H{x.end:.1f}"/>'
        yield _text(tick(chart.kind, value), x.begin - 6, at + 3.5, "tick", "end")
    shown = x.ticks[:: -max(1, math.ceil(len(x.ticks) / MOST_CAPS))]
    for value, at in zip(shown, x.at(shown), strict=True):
        yield _text(f"{value:,.6g}", at, FOOT + 14, "tick")
    label = "max_num_seqs" if chart.by_cap else "seconds"
    yield _text(label, (x.begin + x.end) / 2, HEIGHT - 4, "tick")


def _marks(chart: Chart, x: Scale, y: Scale) -> Iterator[str]:
    for mark in chart.marks:
        look, at = "accent" if mark.is_accent else "plain", x.at(mark.at)
        yield f'<path class="mark {look}" d="M{at:.1f} {TOP}V{FOOT}"/>'
        yield _text(mark.label, at, TOP - 5, f"label {look}")
    if chart.limit is not None:
        at = y.at(chart.limit)
        yield f'<path class="mark plain" d="M{x.begin:.1f} {at:.1f}H{x.end:.1f}"/>'
        yield _text("SLO", x.begin + 3, at - 4, "label plain", "start")


def _line(chart: Chart, x: Scale, y: Scale) -> Iterator[str]:
    """Yield the band, the line, and a dot for each value that has one."""
    at, values, low, high = (
        np.array(each, float) for each in (chart.x, chart.y, chart.low, chart.high)
    )
    if len(known := np.flatnonzero(np.isfinite(low))):
        around = at[[*known, *known[::-1]]]
        ends = np.concatenate((high[known], low[known[::-1]]))
        yield f'<path class="band" d="{_path(x.at(around), y.at(ends))}Z"/>'
    yield f'<path class="line" d="{_path(x.at(at), y.at(values))}"/>'
    for cap, value in zip(chart.x, chart.y, strict=True) if chart.by_cap else ():
        if value is not None:
            yield f'<circle class="dot" cx="{x.at(cap):.1f}" cy="{y.at(value):.1f}" r="3"/>'


def _path(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """Return a path through points, parted where one is not known."""
    words, pen = [], "M"
    for at, height in zip(x, y, strict=True):
        is_known = math.isfinite(height)
        words.append(f"{pen}{at:.1f} {height:.1f}" if is_known else "")
        pen = "L" if is_known else "M"
    return "".join(words)


def _text(words: str, x: float, y: float, look: str, anchor: str = "middle") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{look}" {place}>{escaped(words)}</text>'
