"""Rows as gateways and observability tools export them: JSON, pages of an API, tables as CSV."""

import csv
from collections.abc import Iterable, Iterator

from tuner.trace.formats.reading.json_rows import Object, check_text, first_listed, objects, opening
from tuner.trace.formats.reading.trace_file import HEAD_BYTES, MAX_LINE_BYTES, TraceFile

MAX_PAGE_BYTES = 64 * 2**20
"""Of one answer of an API."""

MAX_HEADINGS = 10_000
DELIMITERS = ",;\t"

FEW = 4
"""No row of any format has fewer keys."""

PAGES = ("data", "observations")
"""Under which of an object's keys its rows stand, if it is a page."""


def first_keys(head: bytes) -> frozenset[str]:
    """Return the keys of the first row of a file that begins so."""
    first = next(iter(_page_of(opening(head))), None)
    if not isinstance(first, dict) or len(first) < FEW:  # or a page longer than the head
        first = next(filter(None, (first_listed(head, key) for key in PAGES)), first)
    return frozenset(first if isinstance(first, dict) else ()) or frozenset(_headings(head))


def entries(lines: TraceFile, *needed: frozenset[str]) -> Iterator[tuple[int, Object]]:
    """Yield ``(line number, row)``; count what is none as a row that was dropped.

    A file is a table if its first line has all headings of one of the sets.

    Raises TraceError for a row that holds text, unless that was allowed.
    """
    headings = set(_headings(lines.head(HEAD_BYTES)))
    if any(headings >= names for names in needed):
        yield from _table(lines)
        return
    lines.longest = MAX_PAGE_BYTES
    for number, found in objects(lines):
        for entry in _page_of(found):
            if isinstance(entry, dict):
                check_text(entry, number, lines)
                yield number, entry
            else:
                lines.tally.lose("malformed", number)


def _page_of(found: Object) -> Iterable[object]:
    """Return the rows of a page, as APIs answer (``{"data": [...]}``), or the object itself."""
    pages = (found[key] for key in PAGES if isinstance(found.get(key), list))
    return next(pages, (found,))


def _headings(head: bytes) -> list[str]:
    """Return the headings of a table; none where it is JSON."""
    line = head.lstrip().partition(b"\n")[0].strip()
    if line[:1] in (b"{", b"[") or len(line) > MAX_HEADINGS:
        return []
    text = line.decode(errors="replace")
    return [name.strip().strip('"') for name in text.split(_delimiter(text))]


def _delimiter(headings: str) -> str:
    return max(DELIMITERS, key=headings.count)


def _table(lines: TraceFile) -> Iterator[tuple[int, Object]]:
    """Yield a table's rows as objects; text of several lines may stand in quotes."""
    last = 0

    def texts() -> Iterator[str]:
        nonlocal last
        for number, line in lines:
            last = number
            yield line.decode(errors="replace") + "\n"

    csv.field_size_limit(MAX_LINE_BYTES)
    found = texts()
    first = next(found, "")
    delimiter = _delimiter(first)
    columns = [name.strip() for name in _cells(csv.reader([first], delimiter=delimiter)) or ()]
    reader = csv.reader(found, delimiter=delimiter)
    while True:
        number = last + 1
        if (cells := _cells(reader)) is None:
            return
        if cells == columns:  # of another table behind the first
            continue
        if len(cells) != len(columns):
            lines.tally.lose("malformed", number)
            continue
        entry = dict(zip(columns, cells, strict=True))
        check_text(entry, number, lines)
        yield number, entry


def _cells(reader: Iterator[list[str]]) -> list[str] | None:
    """Return the next row; none of its cells where it is broken, None at the end."""
    try:
        return next(reader, None)
    except csv.Error:  # a quote that nothing closes, a line end in the middle of a line
        return []
