"""Tables as text, CSV and its like: where their headings stand, and all cells as text."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from tuner.errors import TraceError
from tuner.trace.files import MAX_LINE_BYTES, TraceFile
from tuner.trace.raw import MOST_COLUMNS, SAMPLE_ROWS, Opened, Raw, Tally, unique_names

DELIMITERS = (",", ";", "\t", "|")
HEADINGS_WITHIN = 25
"""Lines among which the headings stand: titles and comments may stand above."""


@dataclass(frozen=True, slots=True)
class _Shape:
    headings: tuple[str, ...]
    delimiter: str
    first_line: int
    """Where rows begin."""

    headed: bool = True


def text_table(file: TraceFile, delimiter: str | None, named: Sequence[str]) -> Opened:
    text = file.head.decode(file.encoding or "utf-8", errors="replace")
    lines = text.split("\n", 3 * SAMPLE_ROWS)
    lines = [line.removesuffix("\r") for line in (lines if file.is_whole else lines[:-1])]
    if lines and (hint := re.fullmatch(r"sep=(.)", lines[0].strip('"\ufeff '))):
        delimiter, lines[0] = delimiter or hint[1], ""
    shape = _shape(lines, (delimiter,) if delimiter else DELIMITERS, named)
    if shape is None:
        return Opened((), (), lambda _: iter(()), is_text=True)
    rows = [cells for _, cells in _cells(lines[shape.first_line - 1 :], shape.delimiter)]
    width = len(shape.headings)
    if [len(cells) for cells in rows].count(width + 1) * 2 > len(rows) and any(
        cells[-1] for cells in rows if len(cells) == width + 1
    ):  # rows that are named, by a column that is not
        shape = _Shape(("", *shape.headings), shape.delimiter, shape.first_line)
    names = unique_names(shape.headings)
    kept = [tuple(one or None for one in cells) for cells in rows if len(cells) == len(names)]

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        within = {one.lower() for one in wanted}
        used = [
            name
            for name in names
            if name.lower() in within or any(one.startswith(f"{name.lower()}.") for one in within)
        ]
        for first, block in _whole_rows(file):
            yield _of_text(first, block, names, used, shape, file.tally)

    sample = tuple(kept[:SAMPLE_ROWS])
    return Opened(names, sample, raws, is_text=True, first_line=shape.first_line)


def _shape(lines: Sequence[str], delimiters: Sequence[str], named: Sequence[str]) -> _Shape | None:
    """Return the shape of the table whose headings look most like some; None for no two columns."""
    from tuner.trace.headings import main_roles  # noqa: PLC0415 - see above

    wanted = {name.lower() for name in named}
    best: tuple[tuple[int, ...], _Shape] | None = None
    widest = _Shape((), "", 0)
    for delimiter in delimiters:
        for line, cells in _cells(lines[:HEADINGS_WITHIN], delimiter):
            if any(len(cell) > 200 for cell in cells):
                continue
            if len(cells) > len(widest.headings):
                widest = _Shape(("",) * len(cells), delimiter, line, headed=False)
            asked = len(wanted & {cell.lower() for cell in cells})
            holds_values = any(_is_value(cell) for cell in cells)
            roles = 0 if holds_values and not asked else len(main_roles(cells)) + asked
            score = (roles, not holds_values, len(cells))
            if best is None or score > best[0]:
                best = score, _Shape(tuple(cells), delimiter, line + 1)
    if best is not None and not best[0][0] and not best[0][1]:
        return widest
    return best[1] if best else None


def _is_value(cell: str) -> bool:
    """Whether a cell is a number or a date, and no heading."""
    return re.match(r"[+-]?[\d.,]+$|\[?\d{1,4}[-/.]\d\d?[-/.]\d", cell) is not None


def _cells(lines: Sequence[str], delimiter: str) -> list[tuple[int, list[str]]]:
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


def _whole_rows(file: TraceFile) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole rows: a cell in quotes may run over line ends."""
    held, held_first = b"", 0
    for first, block in file.blocks():
        if held:
            block, first = held + b"\n" + block, held_first  # noqa: PLW2901 - with what was left
            held = b""
        if block.count(b'"') % 2 and len(block) < 2 * MAX_LINE_BYTES:
            cut = _open_row(block)
            held, held_first = block[cut + 1 :], first + block.count(b"\n", 0, cut) + (cut >= 0)
            block = block[: max(cut, 0)]  # noqa: PLW2901
        if block:
            yield first, block
    if held:
        yield held_first, held


def _open_row(block: bytes) -> int:
    """Return the last line end of a block that stands outside of quotes; -1 for none."""
    end, is_open = len(block), True
    while is_open and end > 0:
        begin = block.rfind(b"\n", 0, end)
        is_open ^= block.count(b'"', max(begin, 0), end) % 2 == 1
        end = begin
    return end


def _of_text(  # noqa: PLR0913, PLR0917 - some lines, and how they are read
    first: int,
    block: bytes,
    names: Sequence[str],
    used: Sequence[str],
    shape: _Shape,
    tally: Tally,
) -> Raw:
    """Return the rows of some lines as columns; count those that have other columns."""
    while first < shape.first_line and block:
        _, _, block = block.partition(b"\n")
        first += 1
    if not block:
        return Raw(np.empty(0, np.int64))
    columns = (
        None if b'"' in block and not _quotes_close(block) else _at_once(block, names, used, shape)
    )
    if columns is not None:
        size = len(next(iter(columns.values())))
        return Raw(np.arange(first, first + size), columns=columns)
    numbers, rows = _one_by_one(first, block, names, shape, tally)
    places = [names.index(name) for name in used]
    by_name = {
        name: pa.array([row[place] or None for row in rows], pa.string())
        for name, place in zip(used, places, strict=True)
    }
    return Raw(np.array(numbers, np.int64), columns=by_name)


def _quotes_close(block: bytes) -> bool:
    return all(line.count(b'"') % 2 == 0 for line in block.split(b"\n"))


def _at_once(
    block: bytes, names: Sequence[str], used: Sequence[str], shape: _Shape
) -> dict[str, pa.Array] | None:
    """Return columns as text; None where a row has other columns, or repeats the headings."""
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block),
            arrow_csv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=[*names]
            ),
            arrow_csv.ParseOptions(delimiter=shape.delimiter, ignore_empty_lines=False),
            arrow_csv.ConvertOptions(
                include_columns=[*used],
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError, OverflowError):
        return None
    if len(table) != block.count(b"\n") + (not block.endswith(b"\n")) or not used:
        return None
    columns = {name: _joined(table.column(name)) for name in used}
    headings = pa.array(shape.headings)
    return None if pc.any(pc.is_in(columns[used[0]], headings)).as_py() else columns


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _one_by_one(
    first: int, block: bytes, names: Sequence[str], shape: _Shape, tally: Tally
) -> tuple[list[int], list[list[str]]]:
    """Return (first line of each row, cells); count rows that have other columns."""
    own, width = [*shape.headings], len(names)
    numbers: list[int] = []
    rows: list[list[str]] = []
    text = block.decode(errors="replace")
    before = csv.field_size_limit(len(text) + 1)
    try:
        reader = csv.reader((line + "\n" for line in text.split("\n")), delimiter=shape.delimiter)
        while True:
            number = first + reader.line_num
            try:
                cells = [cell.strip() for cell in next(reader)]
            except StopIteration:
                break
            except csv.Error:
                cells = [""] * (width + 2)
            if len(cells) == width + 1 and not cells[-1]:  # a delimiter ends each line
                del cells[-1]
            if cells == own or not any(cells):  # a further table below the first
                continue
            if shape.headed and sorted(cells) == sorted(own):
                raise TraceError(
                    f"{tally.at(number)}: headings in another order than above",
                    hint="Cut the file there, and import each part by itself.",
                )
            if len(cells) != width:
                tally.lose("malformed", number)
                continue
            numbers.append(number)
            rows.append(cells)
    finally:
        csv.field_size_limit(before)
    return numbers, rows
