"""Rows as they stand in a file: of JSON, of tables as text, of Parquet; with their lines.

No cell is read here. ``Raw`` is some rows: objects, or columns by their headings.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from tuner.errors import TraceError
from tuner.system.memory import at_most
from tuner.trace.files import PARQUET, TraceFile
from tuner.trace.headings import main_roles
from tuner.trace.values import Cells, Ints, as_list, as_object, is_empty

MOST_COLUMNS = 2000
SAMPLE_ROWS, ROWS = 1000, 2**16
"""Rows that show how a file is read, and rows that are read at once at most."""

Object = dict[str, Any]
Numbered = Iterator[tuple[int, Object]]
"""Objects, each with the number of its line."""


@dataclass(frozen=True)
class Raw:
    """Some rows of a file: objects of JSON, or columns of text or of Arrow's types."""

    lines: Ints
    """The number of each row's line."""
    objects: Sequence[Object] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def names(self) -> Iterable[str]:
        """The keys that any object has, or the columns."""
        return self.columns or frozenset(chain.from_iterable(self.objects))

    @cached_property
    def kinds(self) -> set[type]:
        """The types of all that objects hold."""
        return {*map(type, chain.from_iterable(map(dict.values, self.objects)))}

    def cells(self, paths: Sequence[str]) -> Cells | None:
        """Return the cells at the first of these paths that is not empty, row by row.

        None where no row has any of them.
        """
        each = [cells for path in paths if (cells := self._at(path)) is not None]
        if len(each) < 2:
            return each[0] if each else None
        return [first(row) for row in zip(*map(as_list, each), strict=True)]

    def _at(self, path: str) -> Cells | None:
        if path in self.columns:
            return self.columns[path]
        if path in self.names and list not in self.kinds:
            return [row.get(path) for row in self.objects]
        top = next((name for name in self.names if f"{path}.".startswith(f"{name}.")), None)
        if top is None:
            return None
        rows = self.objects or [{top: cell} for cell in self.columns[top].to_pylist()]
        return [at(row, path) for row in rows]


def first(cells: Iterable[Any]) -> Any:  # noqa: ANN401 - any JSON
    """Return the first cell that is not empty."""
    return next((cell for cell in cells if not is_empty(cell)), None)


def at(row: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what stands at a dotted path, whose parts may have dots themselves."""
    if path in row:
        return only(row[path])
    for key, held in row.items():
        if path.startswith(f"{key}.") and (inner := as_object(held)) is not None:
            return at(inner, path[len(key) + 1 :])
    return None


def only(held: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the only text of a list, as logs have headers, and search engines fields."""
    return held[0] if type(held) is list and len(held) == 1 and type(held[0]) is str else held


def flattened(
    value: Mapping[str, Any], above: str = "", depth: int = 4
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, value) of all within, also within objects that a log wraps up as text."""
    for key, held in value.items():
        inner = as_object(held)
        if inner and depth:
            yield from flattened(inner, f"{above}{key}.", depth - 1)
        else:
            yield f"{above}{key}", only(held)


@dataclass(frozen=True)
class Opened:
    """A file whose rows are located."""

    first: Sequence[Object]
    """The first rows."""
    raws: Callable[[Sequence[str]], Iterator[Raw]]
    """Yields all rows, with the columns in which these paths stand."""
    columns: Sequence[str] = ()
    """The headings of a table, which may have no rows; nothing for JSON."""
    is_text: bool = False
    """Cells are parted by a delimiter, so that the headings are cells as well."""
    first_line: int = 1

    @cached_property
    def sample(self) -> list[Object]:
        """The first rows, flat: also what cells hold as JSON objects."""
        result: list[Object] = [{} for _ in self.first]
        for row, flat in zip(self.first, result, strict=True):
            for path, held in flattened(row):  # a heading with a dot may be a path as well
                flat[f"{path}#2" if path in flat else path] = held
        return result

    @cached_property
    def headings(self) -> tuple[str, ...]:
        """Dotted paths, of JSON and of columns that hold others. Each names one column."""
        paths = dict.fromkeys([*self.columns, *chain.from_iterable(self.sample)])
        return tuple(paths)[:MOST_COLUMNS]


def unique_names(headings: Sequence[str]) -> list[str]:
    """Return headings of which each names one column."""
    names: dict[str, None] = {}
    for place, heading in enumerate(headings, 1):
        name = heading or f"#{place}"
        names[f"{name}#{place}" if name in names else name] = None
    return [*names]


def within(names: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Return the columns in which dotted paths stand."""
    return [name for name in names if any(f"{path}.".startswith(f"{name}.") for path in wanted)]


# JSON.

PREFIX = rb"(?m)^[^{\"\n]{1,200}(?=\{\")"
"""What stands before the JSON of a line in logs of containers: a time, a name, a stream."""

JSON_BYTES = 2**30
"""Memory that a document, or some lines, may take: they can hold a hundred million lists."""


def opened(file: TraceFile) -> Opened:
    """Locate the rows of a file. Raises TraceError for a file that has none."""
    start = file.head.lstrip()
    if start.startswith(PARQUET):
        return parquet_file(file)
    if re.match(rb"\{|\[[\[{\s\]]", start):
        first, _, rest = start.partition(b"\n")
        return _json_lines(file) if rest.strip() and _row(first) else _document(file)
    lines = [line for line in start.split(b"\n", 50)[:50] if line.strip()]
    if sum(line.startswith(b'{"') for line in lines) * 3 >= len(lines):
        return _json_lines(file)  # among lines that a program writes of itself
    if sum(re.match(PREFIX, line) is not None for line in lines) * 2 > len(lines):
        file.note("what stands before the JSON of each line is left out")
        return _json_lines(file, PREFIX)
    return text_table(file)


def _json_lines(file: TraceFile, prefix: bytes = b"") -> Opened:
    def bare(text: bytes) -> bytes:
        return re.sub(prefix, b"", text) if prefix else text

    def raws(_: Sequence[str]) -> Iterator[Raw]:
        for line, block in file.blocks():
            with bounded(file.at(line), JSON_BYTES):
                raw, malformed = _of_lines(line, bare(block))
            for place in malformed:
                file.lose(place)
            yield raw

    return Opened(_of_lines(1, bare(file.head))[0].objects[:SAMPLE_ROWS], raws)


def _of_lines(first: int, block: bytes) -> tuple[Raw, list[int]]:
    """Return the rows of some lines, and the numbers of those that are none."""
    try:
        rows = msgspec.json.Decoder().decode_lines(block)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        rows = []
    if len(rows) == block.count(b"\n") + 1 and {*map(type, rows)} == {dict}:
        keys = sum(map(len, rows))
        if keys == block.count(b":") or keys == block.count(b'":') + block.count(b'" :'):
            return Raw(np.arange(first, first + len(rows)), rows), []  # no key stands twice
    lines = {place: line for place, line in enumerate(block.split(b"\n"), first) if line.strip()}
    read = {place: _row(line) for place, line in lines.items()}
    kept = {place: row for place, row in read.items() if row is not None}
    return Raw(np.array([*kept], np.int64), [*kept.values()]), sorted(read.keys() - kept.keys())


def _row(line: bytes) -> Object | None:
    """Return the object that a line is; None where it is none, or a key stands twice in it."""
    try:
        result = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def _unique(pairs: list[tuple[str, object]]) -> Object:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError
    return result


def _document(file: TraceFile) -> Opened:
    """Return the rows of one JSON document: an array, a page of an API, or objects over lines."""
    text = file.document().strip()
    if not text.startswith(b"["):
        text = b"[" + re.sub(rb"\}\s*\n\s*\{", b"},{", text) + b"]"
    try:
        with bounded(str(file.path), JSON_BYTES):
            rows = _rows_in(json.loads(text, object_pairs_hook=_unique))  # reads NaN, as vLLM's
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{file.path}:{getattr(error, 'lineno', 1)}: not valid JSON from here on",
            hint="Export it again: it is cut off, or not JSON in UTF-8.",
        ) from None
    file.unit = "row" if len(rows) > 1 or b"\n" in text else "line"
    kept = {place: row for place, row in enumerate(rows, 1) if isinstance(row, dict)}

    def raws(_: Sequence[str]) -> Iterator[Raw]:
        for place in {*range(1, len(rows) + 1)} - kept.keys():
            file.lose(place)
        yield Raw(np.array([*kept], np.int64), [*kept.values()])

    return Opened([*kept.values()][:SAMPLE_ROWS], raws)


def _rows_in(documents: list[Any]) -> list[Any]:
    """Return the rows of a document: a list of objects within it, or what it is itself."""
    if len(documents) != 1 or not isinstance(documents[0], dict):
        return documents
    lists = [held for _, held in flattened(documents[0]) if isinstance(held, list)]
    lists = [rows for rows in lists if rows and isinstance(rows[0], dict)]
    lists *= not documents[0].keys() & {"resourceSpans", "conversations", "turns"}
    best = max(
        [*lists, documents], key=lambda rows: (len(main_roles(dict(flattened(rows[0])))), len(rows))
    )
    return best if best is documents else _rows_in(best)


# Tables as text.

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
    best = max(
        (
            (len(main_roles(cells)), len(cells), -line, mark, cells)
            for mark in DELIMITERS
            for line, cells in _cells(lines[:HEADINGS_WITHIN], mark)
        ),
        default=None,
    )
    if best is None:
        return Opened((), lambda _: iter(()), is_text=True)
    _, width, above, mark, cells = best
    is_headed = not any(map(_VALUE.match, cells))
    names = unique_names(cells if is_headed else [""] * width)
    first_line = is_headed - above

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        return _text_rows(file, names, within(names, wanted) or names[:1], first_line, mark)

    below = [cells for _, cells in _cells(lines[first_line - 1 :], mark) if len(cells) == width]
    rows = [{n: c or None for n, c in zip(names, cells, strict=True)} for cells in below]
    return Opened(rows[:SAMPLE_ROWS], raws, names, is_text=True, first_line=first_line)


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


class _Stream:
    """The chunks of a file as a stream, whose quotes are counted."""

    closed, rest, quotes = False, b"", 0

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks = chunks

    def read(self, size: int) -> bytes:
        self.rest = self.rest or next(self.chunks, b"")
        piece, self.rest = self.rest[:size], self.rest[size:]
        self.quotes += piece.count(b'"')
        return piece


def _text_rows(
    file: TraceFile, names: Sequence[str], used: Sequence[str], begin: int, delimiter: str
) -> Iterator[Raw]:
    """Yield the rows as columns of text; count those that have other columns.

    Raises TraceError for quotes that nothing closes, and for headings between the rows.
    """
    stream = _Stream(file.chunks())
    bad: list[int] = []

    def count(row: arrow_csv.InvalidRow) -> str:
        bad.append(row.number)
        if row.text.strip():
            file.lose(row.number)
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
        for batch in arrow_csv.open_csv(stream, *how):
            lines = np.setdiff1d(np.arange(begin, begin + len(batch) + len(bad)), bad)[: len(batch)]
            begin = int(lines[-1]) + 1 if len(lines) else begin
            again = pc.is_in(batch.column(0), pa.array(names)).to_numpy(zero_copy_only=False)
            if again.any():
                raise TraceError(
                    f"{file.at(int(lines[again.argmax()]))}: headings between the rows",
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
            f"{file.at(begin)}: a quote from here on that nothing closes",
            hint="Export the table again: it is cut off, or a quote in a cell is not doubled.",
        )


# Parquet.

STEP_BYTES = 2**31
"""Bytes that some rows may take beside four times the file's size: half a megabyte of Parquet can
hold columns of a hundred gigabytes."""


def parquet_file(file: TraceFile) -> Opened:
    """Return the columns of a Parquet file; its numbers are rows."""
    file.unit = "row"
    step = partial(_step, str(file.path), STEP_BYTES + 4 * file.path.stat().st_size)

    def tables(columns: list[str] | None, rows: int) -> Iterator[dict[str, pa.Array]]:
        with step():
            opened = parquet.ParquetFile(file.path)
            batches = opened.iter_batches(rows, columns=columns, use_threads=False)
        while True:
            with step():
                if (batch := next(batches, None)) is None:
                    return
                batch.validate(full=True)
                names, plain = unique_names(batch.schema.names), [*map(_plain, batch.columns)]
            yield dict(zip(names, plain, strict=True))

    first = next(tables(None, SAMPLE_ROWS), None)
    if not first:
        raise TraceError(f"{file.path}: no rows", hint="Is the file complete?")

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        used, begin = within(first, wanted), 1
        for columns in tables(None if any("#" in name for name in first) else used, ROWS):
            count = len(next(iter(columns.values())))
            yield Raw(np.arange(begin, begin + count), columns=columns)
            begin += count

    with step():
        rows = pa.table(first).to_pylist()
    return Opened(rows, raws, tuple(first))


@contextmanager
def bounded(place: str, most_bytes: int) -> Iterator[None]:
    """Raise TraceError for what takes more memory."""
    try:
        with at_most(most_bytes):
            yield
    except MemoryError:
        raise TraceError(
            f"{place}: some rows take more than {most_bytes >> 20:,} MiB of memory",
            hint="Write the file again, with the columns that are needed.",
        ) from None


@contextmanager
def _step(place: str, most_bytes: int) -> Iterator[None]:
    """Bound what is done here, and explain what Arrow raises: never in its words, which may quote
    cells."""
    try:
        with bounded(place, most_bytes):
            yield
    except (pa.ArrowException, EOFError, LookupError, OSError, ValueError) as error:
        what = f"a broken Parquet file ({type(error).__name__})"
        raise TraceError(f"{place}: {what}", hint="Copy the file again.") from None


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as numbers or text; times as dates with their zone, spans with their unit."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    kind, types = column.type, pa.types
    if types.is_duration(kind):
        counted = pc.cast(pc.cast(column, pa.int64()), pa.string())
        return pc.binary_join_element_wise(counted, kind.unit, "")
    if getattr(kind, "tz", None):
        return pc.cast(pc.cast(column, pa.timestamp(kind.unit, "UTC")), pa.string())
    if types.is_decimal(kind) or types.is_floating(kind):
        return pc.cast(column, pa.float64())
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.nulls(len(column))
    is_plain = types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)
    return column if is_plain or types.is_nested(kind) else pc.cast(column, pa.string())
