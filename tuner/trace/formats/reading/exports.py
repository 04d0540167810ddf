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
    head = lines.head(HEAD_BYTES)
    headings = set(_headings(head))
    if any(headings >= names for names in needed):
        yield from _table(lines, _delimiter(_first_line(head)))
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
    line = _first_line(head)
    if line[:1] in ("{", "[") or len(line) > MAX_HEADINGS:
        return []
    return [name.strip().strip('"') for name in line.split(_delimiter(line))]


def _first_line(head: bytes) -> str:
    return head.lstrip().partition(b"\n")[0].strip().decode(errors="replace")


def _delimiter(headings: str) -> str:
    return max(DELIMITERS, key=headings.count)


def _table(lines: TraceFile, delimiter: str) -> Iterator[tuple[int, Object]]:
    """Yield a table's rows as objects; text of several lines may stand in quotes."""
    rows = records(lines, delimiter, errors="replace")
    _, headings = next(rows, (0, None))
    columns = headings or []
    for number, cells in rows:
        if cells == columns:  # of another table behind the first
            continue
        if cells is None or len(cells) != len(columns):
            lines.tally.lose("malformed", number)
            continue
        entry = dict(zip(columns, cells, strict=True))
        check_text(entry, number, lines)
        yield number, entry


def records(
    lines: Iterable[tuple[int, bytes]], delimiter: str, *, errors: str
) -> Iterator[tuple[int, list[str] | None]]:
    """Yield (number of its first line, cells) of each row; None for the cells of a broken one.

    A cell in quotes may hold line ends.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    first = 0

    def texts() -> Iterator[str]:
        nonlocal first
        for place, line in lines:
            first = first or place
            yield line.decode(errors=errors) + "\n"

    reader = csv.reader(texts(), delimiter=delimiter)
    while True:
        first = 0
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield first, None
            continue
        if cells:
            yield first, [cell.strip() for cell in cells]
