"""A page as one HTML file: nothing on it is fetched and nothing runs. Pure.

Text that others wrote (names of models, traces, errors) can only become text: ``tag`` escapes the
children and attributes of every element that are no ``Html`` yet.
"""

import base64
import hashlib
import html
from importlib.resources import files

from tuner.system.printable import printable
from tuner.views.page import Page, Section, Table, headed, texts

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
    sections = [_section(section) for section in page.sections]
    if page.details:
        items = (tag("li", line) for line in page.details)
        sections.append(tag("section", tag("h2", "Details"), tag("ul", *items)))
    body = tag("body", _header(page), tag("main", *sections))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _header(page: Page) -> Html:
    facts: list[tuple[str, str]] = [*page.facts]
    if page.run_dir:
        facts.append(("run", page.run_dir))
    if page.next:
        facts.append(("next", tag("code", page.next)))
    if page.warnings:
        items = (tag("li", each) for each in page.warnings)
        facts.append(("warnings", tag("ul", *items, class_="warnings")))
    return tag(
        "header",
        tag("p", page.subject, class_="subject"),
        tag("h1", page.title),
        tag("p", page.aside, class_="aside") if page.aside else None,
        tag("p", page.missing, class_="missing") if page.missing else None,
        tag("dl", *(joined(tag("dt", name), tag("dd", words)) for name, words in facts)),
    )


def _section(section: Section) -> Html:
    from tuner.views.svg import figure  # noqa: PLC0415 - which uses tag

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
        cells = [row[place] for row in table.rows]
        look = "text" if column.kind == "text" else None
        words = zip(texts(column.kind, cells), cells, strict=True)
        if column.heading:
            head = tag("th", headed(column, cells), scope="col", class_=look)
            bars = column.kind == "share"
            data = (tag("td", word, _bar(cell) if bars else None, class_=look)
                    for word, cell in words)  # fmt: skip
            columns.append([head, *data])
    head_row, *rows = (
        tag("tr", *row, class_="chosen" if number - 1 == table.chosen else None)
        for number, row in enumerate(zip(*columns, strict=True))
    )
    caption = tag("caption", table.caption) if table.caption else None
    inner = tag("table", caption, tag("thead", head_row), tag("tbody", *rows))
    label = table.caption or "Table"
    return tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=label)


def _bar(cell: object) -> Html | None:
    """Return a share as a bar beside its number."""
    if not isinstance(cell, int | float):
        return None
    return tag("meter", min="0", max="1", value=f"{cell:.3f}")
