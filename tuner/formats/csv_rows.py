"""Rows from lines of cells with commas between, for every format that is written so."""

import re
from collections.abc import Callable, Iterable, Iterator

from tuner.formats.lines import BOM, Lines
from tuner.formats.record import Reason, Row

COUNT = rb"(\d{1,9})"
BAD_COUNTS: dict[bytes, Reason] = {
    rb"|(?i:null|none)": "no_tokens",
    rb"[+-]?(?i:nan|inf|infinity)": "not_finite",
    rb"-\d+(?:\.0*)?": "negative",
    rb"0+": "zero_tokens",
    rb"\d{10,}": "out_of_range",
}


def first_lines(head: bytes) -> tuple[bytes, bytes]:
    """Return the first line of a file and the one behind it."""
    columns, _, rest = head.removeprefix(BOM).strip().partition(b"\n")
    return columns.strip(), rest.partition(b"\n")[0].strip()


def rows(
    lines: Lines,
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


def bad_count(cells: Iterable[bytes]) -> Reason:
    """Return why one of these cells is no usable count of tokens."""
    for cell in cells:
        for pattern, reason in BAD_COUNTS.items():
            if re.fullmatch(pattern, cell):
                return reason
    return "not_integer"
