"""One self-contained page: sections of figures and tables. Pure.

Nothing on it is fetched and nothing runs: a strict content security policy tells the browser so.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from tuner.commands.report.drawing.chart import Chart, drawn
from tuner.commands.report.drawing.html import Child, Html, joined, tag

GENERATOR = "tuner report"
"""In the head of every page: by this a later report knows what it may overwrite."""

Cell = Child | tuple[Child, str]
"""Content of a cell in a table, or that and its class."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its caption."""

    title: str
    chart: Chart | Html
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the first cell of a row names it."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    chosen: int | None = None
    """The row that is the answer."""

    text: Sequence[int] = (0,)
    """The columns that hold words."""

    is_facts: bool = False
    """Whether it is a list of names and values, without headings that are worth showing."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Parts that are shown when they are asked for."""

    title: str
    note: str
    parts: "Sequence[Part]"
    is_open: bool = False


Part = Sequence[Figure] | Table | Folded | Html
"""Figures stand side by side; everything else has a line of its own."""


@dataclass(frozen=True, slots=True)
class PageSection:
    title: str
    note: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report before it is written."""

    kind: str
    """What this is a report of."""

    title: str
    rows: Sequence[tuple[str, str]]
    next: str
    sections: Sequence[PageSection]
    aside: str = ""
    partly: str = ""
    """What is missing, where the run has not ended."""

    made: str = ""
    warnings: Sequence[str] = ()


def written(page: Page) -> str:
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
        tag("title", f"{page.title} - {page.kind}"),
        Html(f"<style>{style}</style>"),
    )
    body = tag(
        "body",
        _top(page),
        tag("main", *_sections(page), id="main"),
        tag("footer", page.made),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _top(page: Page) -> Html:
    rows = [joined((tag("dt", name), tag("dd", text))) for name, text in page.rows]
    if page.next:
        rows.append(joined((tag("dt", "next"), tag("dd", tag("code", page.next)))))
    links = [tag("li", tag("a", one.title, href=f"#{_id(one)}")) for one in _all(page)]
    return tag(
        "header",
        tag("a", "Skip to the figures", href="#main", class_="skip"),
        tag("p", page.kind, class_="kind"),
        tag("h1", page.title),
        tag("p", page.aside, class_="aside") if page.aside else None,
        tag("p", page.partly, class_="partly") if page.partly else None,
        tag("dl", *rows, class_="verdict"),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        class_="top",
    )


def _all(page: Page) -> list[PageSection]:
    """Return the sections, and those that every page has."""
    found = list(page.sections)
    if page.warnings:
        items = tag("ul", *(tag("li", one) for one in page.warnings), class_="warnings")
        found.insert(1, PageSection("Warnings", "", [items]))
    return found


def _sections(page: Page) -> list[Html]:
    return [
        tag(
            "section",
            tag("h2", one.title, id=f"{_id(one)}-title"),
            tag("p", one.note) if one.note else None,
            *map(_part, one.parts),
            id=_id(one),
            aria_labelledby=f"{_id(one)}-title",
        )
        for one in _all(page)
    ]


def _id(section: PageSection) -> str:
    return "".join(one if one.isalnum() else "-" for one in section.title.lower())


def _part(part: Part) -> Html:
    match part:
        case Html():
            return part
        case Table():
            return _table(part)
        case Folded():
            title = tag("summary", part.title, " ", tag("span", part.note))
            return tag("details", title, *map(_part, part.parts), open="" if part.is_open else None)
        case _:
            return tag("div", *map(_figure, part), class_="charts")


def _figure(figure: Figure) -> Html:
    note = tag("span", figure.note) if figure.note else None
    chart = figure.chart if isinstance(figure.chart, Html) else drawn(figure.chart)
    return tag("figure", tag("figcaption", figure.title, note), chart)


def _table(table: Table) -> Html:
    headings = [
        tag("th", one, scope="col", class_="text" if number in table.text else None)
        for number, one in enumerate(table.headings)
    ]
    rows = [
        tag("tr", *_cells(row, table), class_="chosen" if number == table.chosen else None)
        for number, row in enumerate(table.rows)
    ]
    whole = tag(
        "table",
        tag("caption", table.caption) if table.caption else None,
        tag("thead", tag("tr", *headings)) if table.headings else None,
        tag("tbody", *rows),
        class_="facts" if table.is_facts else None,
    )
    return tag(
        "div", whole, class_="wide", tabindex="0", role="region",
        aria_label=table.caption or "Table",
    )  # fmt: skip


def _cells(row: Sequence[Cell], table: Table) -> list[Html]:
    found = []
    for number, cell in enumerate(row):
        content, look = cell if isinstance(cell, tuple) else (cell, "")
        words = " ".join(filter(None, ("text" if number in table.text else "", look))) or None
        if number == 0:
            found.append(tag("th", content, scope="row", class_=words))
        else:
            found.append(tag("td", content, class_=words))
    return found
