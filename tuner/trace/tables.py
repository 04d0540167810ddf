"""Tables, whose rows come as columns: CSV and its like, all cells of which are text; Parquet."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from tuner.errors import TraceError
from tuner.system.memory import at_most
from tuner.trace.files import TraceFile
from tuner.trace.headings import main_roles
from tuner.trace.raw import (
    MOST_COLUMNS,
    ROWS,
    SAMPLE_ROWS,
    Opened,
    Raw,
    flattened,
    unique_names,
    within,
)

DELIMITERS = (",", ";", "\t", "|")
HEADINGS_WITHIN = 25
"""Lines among which the headings stand: titles and comments may stand above."""

BLOCK_BYTES = 2**22
"""Of the table that are parsed at once; no row is longer."""

_VALUE = re.compile(r"[+-]?[\d.,]+$|\[?\d{1,4}[-/.]\d\d?[-/.]\d")
"""A number or a date, and no heading."""


def text_table(file: TraceFile) -> Opened:
    """Locate the headings and the rows of a table as text; without either nothing is in it."""
    lines = file.head.decode(errors="replace").split("\n", 3 * SAMPLE_ROWS)
    lines = lines if file.is_whole else lines[:-1]

    def fitness(row: tuple[str, int, list[str]]) -> tuple[int, bool, int]:
        cells = row[2]
        is_data = any(map(_VALUE.match, cells)) or max(map(len, cells)) > 200
        return 0 if is_data else len(main_roles(cells)), not is_data, len(cells)

    top = lines[:HEADINGS_WITHIN]
    candidates = [(mark, *row) for mark in DELIMITERS for row in _cells(top, mark)]
    if not candidates:
        return Opened((), lambda _: iter(()), is_text=True)
    best = max(candidates, key=fitness)
    (mark, line, cells), (_, is_headed, width) = best, fitness(best)
    names = unique_names(cells if is_headed else [""] * width)
    first_line = line + is_headed

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        return _text_rows(file, names, within(names, wanted) or names[:1], first_line, mark)

    below = [cells for _, cells in _cells(lines[first_line - 1 :], mark) if len(cells) == width]
    rows = [{n: c or None for n, c in zip(names, cells, strict=True)} for cells in below]
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


def _text_rows(
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

    how = (
        arrow_csv.ReadOptions(
            use_threads=False, block_size=BLOCK_BYTES, skip_rows=begin - 1, column_names=[*names]
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
    )
    try:
        for batch in arrow_csv.open_csv(io.BufferedReader(stream), *how):
            lines = np.setdiff1d(np.arange(begin, begin + len(batch) + len(bad)), bad)[: len(batch)]
            begin = int(lines[-1]) + 1 if len(lines) else begin
            again = pc.is_in(batch.column(0), pa.array(names)).to_numpy(zero_copy_only=False)
            if again.any():
                raise TraceError(
                    f"{tally.at(int(lines[again.argmax()]))}: headings between the rows",
                    hint="Cut the file there, and import each part by itself.",
                )
            kept = np.zeros(len(batch), np.bool_)
            for column in batch.columns:
                kept |= column.is_valid().to_numpy(zero_copy_only=False)
            columns = batch.filter(pa.array(kept)).columns
            yield Raw(lines[kept], columns=dict(zip(used, columns, strict=True)))
    except pa.ArrowException:
        stream.quotes = 1
    if stream.quotes % 2:
        raise TraceError(
            f"{tally.at(begin)}: a quote from here on that nothing closes",
            hint="Export the table again: it is cut off, or a quote in a cell is not doubled.",
        )


# Parquet.

STEP_BYTES = 2**31
"""Bytes that some rows may take beside four times the file's size: half a megabyte of Parquet can
hold columns of a hundred gigabytes."""


def parquet_file(file: TraceFile) -> Opened:
    """Return the columns of a Parquet file, by dotted paths; its numbers are rows."""
    file.tally.unit = "row"
    step = partial(_step, file.tally.place, STEP_BYTES + 4 * file.path.stat().st_size)

    def tables(columns: list[str] | None, rows: int) -> Iterator[dict[str, pa.Array]]:
        with step():
            batches = parquet.ParquetFile(file.path).iter_batches(
                rows, columns=columns, use_threads=False
            )
        while True:
            with step():
                if (batch := next(batches, None)) is None:
                    return
                batch.validate(full=True)
                table = pa.Table.from_batches([batch])
                while any(map(pa.types.is_struct, table.schema.types)):
                    table = table.flatten()
                plain = [_plain(column.combine_chunks()) for column in table.columns]
            yield dict(zip(unique_names(table.column_names), plain, strict=True))

    first = next(tables(None, SAMPLE_ROWS), None)
    if not first:
        raise TraceError(f"{file.tally.place}: no rows", hint="Is the file complete?")

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        used = within({path.partition(".")[0] for path in first}, wanted)
        begin = 1
        for columns in tables(None if any("#" in name for name in first) else used, ROWS):
            count = len(next(iter(columns.values())))
            yield Raw(np.arange(begin, begin + count), columns=columns)
            begin += count

    with step():
        sample = [row | dict(flattened(row)) for row in pa.table(first).to_pylist()]
    return Opened(sample, raws, tuple(first))


@contextmanager
def _step(place: str, most_bytes: int) -> Iterator[None]:
    """Bound what is done here, and explain what Arrow raises: never in its words, which may quote
    cells."""
    try:
        with at_most(most_bytes):
            yield
    except MemoryError:
        raise TraceError(
            f"{place}: some of its rows unpack to more than {most_bytes >> 20:,} MiB",
            hint="Write it again, with the columns that are needed.",
        ) from None
    except (pa.ArrowException, EOFError, LookupError, OSError, ValueError) as error:
        what = f"a broken Parquet file ({type(error).__name__})"
        raise TraceError(f"{place}: {what}", hint="Copy the file again.") from None


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as numbers or text; times as dates with their zone, spans with their unit."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    kind, types = column.type, pa.types
    if types.is_timestamp(kind) or types.is_date64(kind):
        zone = "UTC" if getattr(kind, "tz", None) else None
        return pc.cast(pc.cast(column, pa.timestamp("ns", zone)), pa.string())
    if types.is_duration(kind):
        nanoseconds = pc.cast(pc.cast(column, pa.duration("ns")), pa.int64())
        return pc.binary_join_element_wise(pc.cast(nanoseconds, pa.string()), "ns", "")
    if types.is_decimal(kind) or types.is_floating(kind):
        return pc.cast(column, pa.float64())
    as_text = types.is_date32(kind) or types.is_time(kind) or types.is_large_string(kind)
    return pc.cast(column, pa.string()) if as_text or types.is_string_view(kind) else column
