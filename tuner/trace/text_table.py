"""Tables as text, CSV and its like: where their headings stand, and all cells as text."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from tuner.errors import TraceError
from tuner.trace.files import TraceFile
from tuner.trace.headings import main_roles
from tuner.trace.raw import MOST_COLUMNS, SAMPLE_ROWS, Opened, Raw, flattened, unique_names

DELIMITERS = (",", ";", "\t", "|")
HEADINGS_WITHIN = 25
"""Lines among which the headings stand: titles and comments may stand above."""

BLOCK_BYTES = 2**22
"""Of the table that are parsed at once; no row is longer."""

_VALUE = re.compile(r"[+-]?[\d.,]+$|\[?\d{1,4}[-/.]\d\d?[-/.]\d")
"""A number or a date, and no heading."""


def text_table(file: TraceFile, named: Sequence[str]) -> Opened:
    """Locate the headings and the rows of a table as text; without either nothing is in it."""
    lines = file.head.decode(errors="replace").split("\n", 3 * SAMPLE_ROWS)
    lines = lines if file.is_whole else lines[:-1]
    best: tuple[tuple[int, ...], list[str], int, str] = ((), [], 0, "")
    for mark in DELIMITERS:
        for line, cells in _cells(lines[:HEADINGS_WITHIN], mark):
            requested = len({*named} & {*cells})
            holds_values = any(map(_VALUE.match, cells)) or max(map(len, cells)) > 200
            roles = 0 if holds_values and not requested else len(main_roles(cells)) + requested
            names = cells if roles or not holds_values else [""] * len(cells)
            score = (roles, not holds_values, len(cells))
            best = max(best, (score, names, line + any(names), mark), key=lambda item: item[0])
    _, headings, first_line, mark = best
    if not headings:
        return Opened((), lambda _: iter(()), is_text=True)
    names = unique_names(headings)
    kept = [cells for _, cells in _cells(lines[first_line - 1 :], mark) if len(cells) == len(names)]
    rows = [{n: c or None for n, c in zip(names, cells, strict=True)} for cells in kept]

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        used = [name for name in names if any(f"{path}.".startswith(f"{name}.") for path in wanted)]
        return _raws(file, names, used or names[:1], first_line, mark)

    sample = [row | dict(flattened(row)) for row in rows[:SAMPLE_ROWS]]
    return Opened(sample, raws, names, is_text=True, first_line=first_line)


def _cells(lines: Sequence[str], delimiter: str) -> list[tuple[int, list[str]]]:
    """Return (number of its last line, cells) of each row of these lines that has several."""
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter)
    result: list[tuple[int, list[str]]] = []
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return result
        except csv.Error:  # a quote that nothing closes
            continue
        if 2 <= len(cells) <= MOST_COLUMNS:
            result.append((reader.line_num, [cell.strip() for cell in cells]))


class _Stream(io.RawIOBase):
    """The chunks of a file as a stream, whose quotes are counted."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks, self.rest, self.quotes = chunks, b"", 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        if not self.rest:
            self.rest = next(self.chunks, b"")
            self.quotes += self.rest.count(b'"')
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def _raws(
    file: TraceFile, names: Sequence[str], used: Sequence[str], begin: int, delimiter: str
) -> Iterator[Raw]:
    """Yield the rows as columns of text; count those that have other columns.

    Raises TraceError for quotes that nothing closes, and for headings between the rows.
    """
    tally, stream = file.tally, _Stream(file.chunks())
    bad: list[int] = []

    def count(row: arrow_csv.InvalidRow) -> str:
        bad.append(row.number)
        if row.text.strip():
            tally.lose("malformed", row.number)
        return "skip"

    try:
        for batch in arrow_csv.open_csv(
            io.BufferedReader(stream),
            arrow_csv.ReadOptions(
                use_threads=False,
                block_size=BLOCK_BYTES,
                skip_rows=begin - 1,
                column_names=[*names],
            ),
            arrow_csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=count,
            ),
            arrow_csv.ConvertOptions(
                include_columns=[*used],
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        ):
            lines = np.setdiff1d(np.arange(begin, begin + len(batch) + len(bad)), bad)[: len(batch)]
            begin = int(lines[-1]) + 1 if len(lines) else begin
            kept = _are_rows(batch, lines, names, file)
            columns = batch.filter(pa.array(kept)).columns
            yield Raw(lines[kept], columns=dict(zip(used, columns, strict=True)))
    except pa.ArrowException:
        stream.quotes = 1
    if stream.quotes % 2:
        raise TraceError(
            f"{tally.at(begin)}: a quote from here on that nothing closes",
            hint="Export the table again: it is cut off, or a quote in a cell is not doubled.",
        )


def _are_rows(batch: pa.RecordBatch, lines: Any, names: Sequence[str], file: TraceFile) -> Any:  # noqa: ANN401
    """Return which rows are rows: no empty lines, and no headings of a further table."""
    kept = np.zeros(len(batch), np.bool_)
    for column in batch.columns:
        kept |= column.is_valid().to_numpy(zero_copy_only=False)
    again = pc.is_in(batch.column(0), pa.array(names)).to_numpy(zero_copy_only=False)
    for place in np.flatnonzero(again).tolist():
        if [column[place].as_py() for column in batch.columns] != batch.schema.names:
            raise TraceError(
                f"{file.tally.at(int(lines[place]))}: headings in another order than above",
                hint="Cut the file there, and import each part by itself.",
            )
    kept[again] = False
    return kept
