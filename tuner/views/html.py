"""A page as one HTML file: nothing on it is fetched and nothing runs. Pure.

Text that others wrote (names of models, traces, errors) can only become text: ``tag`` escapes the
children and attributes of every element that are no ``Html`` yet.
"""

import base64
import hashlib
import html
from collections.abc import Iterable
from importlib.resources import files

from tuner.system.printable import printable
from tuner.views.page import Cell, Page, Section, Table, headed, texts

GENERATOR = "tuner show"
"""In the head of every page: only a page may be overwritten by a page."""
VOID = {"meta", "circle", "path", "rect"}


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
    return Html(f"<{' '.join(words)}>{joined(children)}</{element}>")


def joined(children: Iterable[str | None]) -> Html:
    return Html(
        "".join(
            child if isinstance(child, Html) else escaped(child)
            for child in children
            if child is not None
        )
    )


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
    body = tag("body", _header(page), tag("main", *map(_section, _sections(page))))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _sections(page: Page) -> list[Section]:
    """Return the sections, and one for the sentences that have none."""
    details = [Table([], [[line] for line in page.details])] if page.details else []
    return [*page.sections, *([Section("Details", tables=details)] if details else [])]


def _header(page: Page) -> Html:
    facts = [*page.facts, *([("run", page.run_dir)] if page.run_dir else [])]
    rows = [joined((tag("dt", name), tag("dd", words))) for name, words in facts]
    if page.next:
        rows.append(joined((tag("dt", "next"), tag("dd", tag("code", page.next)))))
    if page.warnings:
        warnings = tag("ul", *(tag("li", each) for each in page.warnings), class_="warnings")
        rows.append(joined((tag("dt", "warnings"), tag("dd", warnings))))
    return tag(
        "header",
        tag("p", page.subject, class_="subject"),
        tag("h1", page.title),
        tag("p", page.aside, class_="aside") if page.aside else None,
        tag("p", page.missing, class_="missing") if page.missing else None,
        tag("dl", *rows),
    )


def _section(section: Section) -> Html:
    from tuner.views.svg import figure  # noqa: PLC0415 - which uses tag

    charts = tag("div", *map(figure, section.charts), class_="charts") if section.charts else None
    parts = (charts, *map(_table, section.tables))
    if section.is_folded:
        title = tag("summary", section.title, " ", tag("span", section.note))
        return tag("details", title, *parts)
    note = tag("p", section.note) if section.note else None
    return tag("section", tag("h2", section.title), note, *parts)


def _table(table: Table) -> Html:
    shown = [place for place, column in enumerate(table.columns) if column.heading]
    cells = [[row[place] for row in table.rows] for place in shown]
    columns = [table.columns[place] for place in shown]
    words = [texts(column.kind, each) for column, each in zip(columns, cells, strict=True)]
    looks = ["text" if column.kind == "text" else None for column in columns]
    headings = [
        tag("th", headed(column, each), scope="col", class_=look)
        for column, each, look in zip(columns, cells, looks, strict=True)
    ]
    if not columns:  # sentences
        return tag("ul", *(tag("li", str(row[0])) for row in table.rows))
    rows = [
        tag(
            "tr",
            *(
                tag("td", word, _bar(column.kind, cell), class_=look)
                for column, word, cell, look in zip(
                    columns, each, _row(cells, number), looks, strict=True
                )
            ),
            class_="chosen" if number == table.chosen else None,
        )
        for number, each in enumerate(zip(*words, strict=True))
    ]
    inner = tag(
        "table",
        tag("caption", table.caption) if table.caption else None,
        tag("thead", tag("tr", *headings)),
        tag("tbody", *rows),
    )
    label = table.caption or "Table"
    return tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=label)


def _row(cells: list[list[Cell]], number: int) -> list[Cell]:
    return [column[number] for column in cells]


def _bar(kind: str, cell: Cell) -> Html | None:
    """Return a share as a bar beside its number."""
    if kind != "share" or not isinstance(cell, int | float):
        return None
    return tag("meter", min="0", max="1", value=f"{cell:.3f}")
