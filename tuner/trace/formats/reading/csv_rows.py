"""Rows from lines of cells with commas between, for every format that is written so."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tuner.trace.formats.reading.record import Reason, Row
from tuner.trace.formats.reading.trace_file import BOM, TraceFile

COUNT = rb"(\d{1,9})"
WHOLE = re.compile(COUNT + rb"\.0*")

SEEN = 20
"""TraceFile that are looked at to find a format out."""

DELIMITERS = (b",", b";", b"\t")
BAD_COUNTS: dict[bytes, Reason] = {
    rb"|(?i:null|none)": "no_tokens",
    rb"[+-]?(?i:nan|inf|infinity)": "not_finite",
    rb"-\d+(?:\.0*)?": "negative",
    rb"0+": "zero_tokens",
    rb"\d{10,}": "out_of_range",
}


@dataclass(frozen=True, slots=True)
class Headings:
    """The headings of a table, in lower case: programs that write tables anew change it."""

    names: tuple[bytes, ...]
    delimiter: bytes

    def cells(self, line: bytes) -> dict[bytes, bytes] | None:
        """Return a line's cells by their headings; None where it has more or fewer."""
        cells = _split(line, self.delimiter)
        return dict(zip(self.names, cells, strict=True)) if len(cells) == len(self.names) else None


def headings(line: bytes) -> Headings:
    delimiter = max(DELIMITERS, key=line.count)
    names = tuple(name.lower() for name in _split(line, delimiter))
    return Headings(names, delimiter)


def first_lines(head: bytes) -> tuple[bytes, list[bytes]]:
    """Return the first line of a file and those behind it."""
    first, *rest = head.removeprefix(BOM).strip().split(b"\n", SEEN)
    return first.strip(), [line.strip() for line in rest[: SEEN - 1]]


def first_line(lines: TraceFile) -> bytes:
    """Return the first line of a file, from a look of its own."""
    return next(iter(lines.again()), (1, b""))[1]


def rows(
    lines: TraceFile,
    columns: bytes,
    parse: Callable[[bytes], Row | Reason],
    parse_all: Callable[[bytes], list[Row] | None] = lambda _: None,
) -> Iterator[Row]:
    """Yield the rows that can be used; count the others. ``columns`` is the line of headings.

    ``parse_all`` may read many lines at once; None where they need a look one by one.
    """
    tally = lines.tally
    for first, block in lines.blocks():
        found = parse_all(block)
        if found is not None:
            tally.rows_read += len(found)
            tally.rows_kept += len(found)
            yield from found
            continue
        for number, line in lines.split(first, block):
            if line == columns:
                continue
            tally.rows_read += 1
            row = parse(line)
            if isinstance(row, Row):
                tally.rows_kept += 1
                yield row
            elif row == "malformed" and number == lines.unterminated:
                tally.drop("truncated", number)
            else:
                tally.drop(row, number)


def whole(cell: bytes) -> int | None:
    """Return a count, also one that a program wrote which takes all numbers for fractions."""
    if cell.isdigit() and len(cell) < 10:
        return int(cell)
    match = WHOLE.fullmatch(cell)
    return int(match[1]) if match else None


def bad_count(cells: Iterable[bytes]) -> Reason:
    """Return why one of these cells is no usable count of tokens."""
    for cell in cells:
        for pattern, reason in BAD_COUNTS.items():
            if re.fullmatch(pattern, cell):
                return reason
    return "not_integer"


def _split(line: bytes, delimiter: bytes) -> list[bytes]:
    if b'"' not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    try:  # any byte is a character of Latin-1, so that none is lost
        cells = next(csv.reader([line.decode("latin-1")], delimiter=delimiter.decode()), [])
    except csv.Error:
        return []
    return [cell.strip().encode("latin-1") for cell in cells]
