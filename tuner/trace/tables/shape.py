"""The shape of a table in a file: where its headings stand, and what parts its cells. Pure."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tuner.trace.formats.reading.json_values import spans_lines, values
from tuner.trace.formats.reading.trace_file import SAMPLE_BYTES, TableOptions
from tuner.trace.tables.clocks import is_date, number
from tuner.trace.tables.headings import MAIN, Role, meanings
from tuner.trace.tables.layout import plan_of
from tuner.trace.tables.nested import flattened
from tuner.trace.tables.plan import Refusal, Shape, TablePlan

DELIMITERS = (",", ";", "\t", "|")
HEADINGS_WITHIN = 25
"""Lines among which the headings stand: titles and comments may stand above."""

SAMPLE_ROWS = 1000
MOST_COLUMNS = 2000

RULE = re.compile(rb"[\s|+:=-]{3,}")
"""A line that only draws: under the headings of psql's and Markdown's tables."""

FOOTER = re.compile(
    rb"\(?\d+ rows?(?: affected| in set| selected)?\)?\.?(?: \([\d.]+ sec\))?", re.IGNORECASE
)
"""Lines that psql, sqlcmd, mysql and SQL*Plus write below a table."""

TYPES = re.compile(
    r"(?:Nullable\(|LowCardinality\()*+(?:U?Int\d+|Float\d+|(?:Decimal|DateTime|FixedString|Enum|"
    r"Array|Map).*+|Date\d*|String|Bool|UUID|IPv\d)\)*+"
)
"""Types that ClickHouse writes in a line below the headings. The pattern gives nothing back of what
it matched: a cell of a million brackets would take hours."""

_decode = msgspec.json.Decoder().decode


def text_shape(head: bytes, *, delimiter: str | None, named: Sequence[str] = ()) -> Shape | None:
    """Return the shape of CSV and its like; None for what has no two columns.

    ``named`` are headings that the user says are there.
    """
    lines = _lines(head)
    if lines and (hint := re.fullmatch(r"sep=(.)", lines[0].strip('"\ufeff '))):
        delimiter = delimiter or hint[1]
        lines[0] = ""
    best = _headings_in(lines, (delimiter,) if delimiter else DELIMITERS, named)
    if best is None:
        return None if delimiter else _parted_by_spaces(lines)
    (known, *_), shape = best
    if not known and _holds_values(shape.headings):
        shape = _without_headings(lines, delimiter) or shape
    return _with_sample(shape, lines)


def is_drawn(line: bytes, delimiter: bytes) -> bool:
    """Whether a line only draws: no cell of a row is ``---``."""
    return RULE.fullmatch(line) is not None or (
        b"---" in line and RULE.fullmatch(line.replace(delimiter, b"")) is not None
    )


Scored = tuple[tuple[int, ...], Shape]


def _headings_in(
    lines: Sequence[str], delimiters: Iterable[str], named: Sequence[str]
) -> Scored | None:
    """Return the row that looks most like headings, as the shape of a table; and how much so."""
    best: Scored | None = None
    for one in delimiters:
        for line_number, cells in _cells_of(lines[:HEADINGS_WITHIN], one):
            score = _score(cells, named)
            if score is not None and (best is None or score > best[0]):
                best = (score, Shape(tuple(cells), (), one, line_number + 1))
    return best


def _parted_by_spaces(lines: Sequence[str]) -> Shape | None:
    """Return the shape of a table whose rows have as many words as its headings."""
    best = _headings_in(lines, " ", ())
    if best is None or best[0][0] < len(MAIN):
        return None
    shape = best[1]
    rows = _cells_of(lines[shape.first_line - 1 :][:SAMPLE_ROWS], " ")
    is_even = all(len(cells) == len(shape.headings) for _, cells in rows)
    return _with_sample(shape, lines) if is_even else None


def _lines(head: bytes) -> list[str]:
    text = head[:SAMPLE_BYTES].decode(errors="replace")
    lines = text.split("\n")
    if len(head) > SAMPLE_BYTES:
        del lines[-1]  # which may break off
    return [line.removesuffix("\r") for line in lines]


def _cells_of(lines: Iterable[str], delimiter: str) -> list[tuple[int, list[str]]]:
    """Return (number of its last line, cells) of each row of these lines that has several."""
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter)
    found: list[tuple[int, list[str]]] = []
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return found
        except csv.Error:  # a quote that nothing closes
            continue
        if 2 <= len(cells) <= MOST_COLUMNS:
            found.append((reader.line_num, [cell.strip() for cell in cells]))


def _score(cells: Sequence[str], named: Sequence[str]) -> tuple[int, ...] | None:
    """Return how well cells look like headings; None for a row that can be none."""
    if any(len(cell) > 200 for cell in cells):
        return None
    roles: set[Role] = set()
    for cell in cells:
        roles |= {one.role for one in meanings(cell)}
    if "end" in roles and "duration" in roles:
        roles.add("timestamp")
    values = _holds_values(cells)
    asked = sum(name in cells or name.lower() in {c.lower() for c in cells} for name in named)
    main = 0 if values and not asked else len(roles & MAIN) + asked
    return main, not values, len(roles) if main else 0, len(cells)


def _holds_values(cells: Sequence[str]) -> bool:
    """Whether a number or a date stands among these cells: then they are no headings."""
    return any(number(cell) is not None or is_date(cell) for cell in cells if cell)


def _without_headings(lines: Sequence[str], delimiter: str | None) -> Shape | None:
    rows = (_cells_of(lines[:HEADINGS_WITHIN], one) for one in (delimiter or DELIMITERS))
    best = max(rows, key=lambda found: max((len(cells) for _, cells in found), default=0))
    if not best:
        return None
    width = max(len(cells) for _, cells in best)
    one = next(
        d for d in (delimiter or DELIMITERS) if _cells_of(lines[:HEADINGS_WITHIN], d) == best
    )
    first = next(number for number, cells in best if len(cells) == width)
    return Shape(("",) * width, (), one, first, headed=False)


def _with_sample(shape: Shape, lines: Sequence[str]) -> Shape:
    begin = shape.first_line - 1
    rows = [
        cells
        for _, cells in _cells_of(lines[begin : begin + 2 * SAMPLE_ROWS], shape.delimiter)
        if not RULE.fullmatch("".join(cells).encode())
    ]
    if rows and all(TYPES.fullmatch(cell) for cell in rows[0]):
        del rows[0]
    widths = [len(cells) for cells in rows[:SAMPLE_ROWS]]
    width, shift = len(shape.headings), 0
    if widths and widths.count(width) < widths.count(width + 1):
        is_tail = all(not cells[-1] for cells in rows if len(cells) == width + 1)
        shift = -1 if is_tail else 1
    if shift == 1:
        shape = replace(shape, headings=("", *shape.headings))
        width += 1
    kept = [tuple(cells[:width]) for cells in rows if len(cells) == width + (shift == -1)]
    return replace(shape, sample=tuple(kept[:SAMPLE_ROWS]), shift=shift)


def json_shape(head: bytes, *, complete: bool) -> Shape | None:
    """Return the shape of JSON objects; None for what is none.

    ``complete``: the head is the whole file.
    """
    start = head.lstrip()
    if not start.startswith((b"{", b"[")):
        return None
    objects = list(_objects(start))
    inside = _inside_document(start) if complete and len(objects) <= 1 else None
    if inside is not None and (
        not objects or _roles(inside.headings) >= _roles(_of_objects(objects).headings)
    ):
        return inside
    return _of_objects(objects) if objects else None


def _inside_document(text: bytes) -> Shape | None:
    """Return the shape of the rows in one JSON document; None where it is but a row itself."""
    try:
        document = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    rows = list(rows_of_document(document))
    if not rows or rows[0] is document or document is rows:
        return None
    return replace(_of_objects(rows[:SAMPLE_ROWS]), whole=True)


def _roles(headings: Iterable[str]) -> int:
    return len(MAIN & {one.role for heading in headings for one in meanings(heading)})


def _of_objects(objects: Sequence[Mapping[str, Any]]) -> Shape:
    rows = [dict(flattened(one)) for one in objects]
    headings = dict.fromkeys(key for row in rows for key in row)
    sample = tuple(tuple(row.get(key) for key in headings) for row in rows)
    return Shape(tuple(headings)[:MOST_COLUMNS], tuple(one[:MOST_COLUMNS] for one in sample))


def _objects(head: bytes) -> Iterator[dict[str, Any]]:
    """Yield the whole objects at the beginning of a file."""
    if spans_lines(head):
        array = head.startswith(b"[")
        parts = [
            text
            for _, text, whole in values([head], array=array, longest=SAMPLE_BYTES)
            if text and whole
        ]
    else:
        parts = head.split(b"\n")
    for text in parts[: SAMPLE_ROWS + 1]:
        try:
            found = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def rows_of_document(found: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - any JSON
    """Yield the rows of one document, as APIs and pandas write them: a list of objects somewhere
    in it, columns and rows apart, or a column under each key."""
    if isinstance(found, list):
        yield from (one for one in found if isinstance(one, dict))
        return
    if not isinstance(found, dict):
        return
    listed = [held for _, held in flattened(found) if isinstance(held, list)]
    objects = [held for held in listed if held and all(isinstance(one, dict) for one in held)]
    tables = [held for held in listed if held and all(isinstance(one, list) for one in held)]
    headings = [names for held in listed if (names := _names_in(held))]
    if headings and tables and (rows := _named_rows(headings, max(tables, key=len))):
        yield from rows
    elif objects and (logged := [*_logged(found)]):
        yield from logged
    elif objects:
        most = max(objects, key=lambda rows: (_roles(dict(flattened(rows[0]))), len(rows)))
        only = most[0] if len(most) == 1 else {}
        wraps = any(isinstance(held, list) and held for _, held in flattened(only))
        yield from rows_of_document(only) if wraps else most
    elif len(found) > 1 and all(isinstance(held, dict) for held in found.values()):
        keys = dict.fromkeys(key for held in found.values() for key in held)
        yield from ({name: held.get(key) for name, held in found.items()} for key in keys)
    elif len(found) > 1 and len({len(held) for held in listed}) == 1 and len(listed) == len(found):
        yield from (dict(zip(found, row, strict=True)) for row in zip(*listed, strict=True))
    else:
        yield found


def _logged(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the lines of Loki's answer: its streams hold pairs of nanoseconds and a line."""
    data = found.get("data")
    streams = data.get("result") if isinstance(data, dict) else None
    for one in streams if isinstance(streams, list) else ():
        if not isinstance(one, dict) or not isinstance(one.get("values"), list):
            return
        for pair in one["values"]:
            if not isinstance(pair, list) or len(pair) < 2:
                return
            yield {"timestamp": pair[0], "line": pair[1], "labels": one.get("stream")}


def _names_in(listed: Sequence[Any]) -> list[str]:
    """Return the names of columns that a list in a document holds; none where it is another."""
    if listed and all(isinstance(one, str) for one in listed):
        return [*listed]
    keys = ("name", "text", "ColumnName", "label")
    found = [
        next((one[key] for key in keys if isinstance(one.get(key), str)), None)
        for one in listed
        if isinstance(one, dict)
    ]
    return [name for name in found if name is not None] if len(found) == len(listed) else []


def _named_rows(
    headings: Iterable[Sequence[str]], table: Sequence[Sequence[Any]]
) -> list[dict[str, Any]]:
    """Return the rows of a table, or of its columns, with the names of which there are as many."""
    for names in headings:
        if len(names) == len(table[0]):
            return [dict(zip(names, row, strict=False)) for row in table]
    for names in headings:
        if len(names) == len(table) and len({*map(len, table)}) == 1:
            return [dict(zip(names, row, strict=True)) for row in zip(*table, strict=True)]
    return []


def planned(shape: Shape, asked: TableOptions) -> tuple[Shape, TablePlan | Refusal]:
    """Return how a table is read: by its columns or, where they do not do, with what stands in
    their cells."""
    plan = plan_of(shape.headings, shape.sample, asked, naive=shape.naive)
    if isinstance(plan, TablePlan) or not (inner := shape.opened()).inside:
        return shape, plan
    inner_plan = plan_of(inner.headings, inner.sample, asked, naive=inner.naive)
    if isinstance(inner_plan, TablePlan) or (inner_plan.likely and not plan.likely):
        return inner, inner_plan
    return shape, plan
