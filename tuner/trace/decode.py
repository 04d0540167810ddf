"""Files as raw columns: unpacked, split into rows, and nothing read into any cell yet.

JSON lines, JSON documents, CSV and its like, Parquet and Arrow files. Whatever the file is, ``Raw``
gives its cells by dotted paths, with the number of the line that each row came from.
"""

import bz2
import codecs
import csv
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv
from pyarrow import ipc, parquet

from tuner.errors import TraceError
from tuner.system.memory import at_most
from tuner.trace.record import REASONS, Reason
from tuner.trace.values import Cells, as_object, is_empty

CHUNK_BYTES = 2**22
SAMPLE_BYTES = 2**22
"""Of a file whose first rows show how it is read."""

SAMPLE_ROWS = 1000
MAX_LINE_BYTES = 64 * 2**20
"""A collector's batch of spans, or a page of an API, is one line of some MiB."""

MAX_DOCUMENT_BYTES = 128 * 2**20
UNPACKING_BYTES = 2**29
"""Memory that unpacking a chunk may take: xz takes what the file says, up to 4 GiB."""

STEP_BYTES = 2**31
"""Bytes that some rows of a Parquet file may take beside four times its size: half a megabyte of it
can hold columns of a hundred gigabytes."""

MOST_COLUMNS = 2000
ROWS = 2**16
ARROW_MARKS = (b"PAR1", b"ARROW1")
SIGNATURES = {
    b"PK\x03\x04": ("a zip archive, or a spreadsheet", "Unpack it, or export it as CSV."),
    b"SQLite format 3": ("an SQLite database", "Export the table as CSV first."),
    b"version https://git-lfs": ("a pointer of Git LFS, not the file", "Fetch it: git lfs pull."),
    b"<": ("a page of HTML or XML, not a trace", "Download the raw file itself."),
}

Object = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """The count of rows read, kept and dropped: rows_read = rows_kept + the sum of dropped."""

    place: str
    """The file, for messages."""

    unit: str = "line"
    """What numbers count: lines of text, or rows of a document or a Parquet file."""

    allow_text: bool = False
    """Rows that hold text are read without it; otherwise they refuse the file."""

    bytes_total: int = 0
    bytes_read: int = 0
    rows_read: int = 0
    rows_kept: int = 0
    dropped: dict[Reason, int] = field(default_factory=dict)
    first: dict[Reason, str] = field(default_factory=dict)
    """Where each reason first showed."""

    unknown_keys: dict[str, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    """What the reading assumed, in order."""

    def at(self, number: int) -> str:
        """Return the name of a row in messages."""
        return f"{self.place}:{number}" if self.unit == "line" else f"{self.place}: row {number}"

    def note(self, text: str) -> None:
        self.notes[text] = None

    def drop(self, reason: Reason, number: int, column: str = "", *, count: int = 1) -> None:
        """Count rows that cannot be used; they are counted as read elsewhere."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.first.setdefault(reason, self.at(number) + (f", column {column}" if column else ""))

    def lose(self, reason: Reason, number: int) -> None:
        """Count a row that was read and cannot be used."""
        self.rows_read += 1
        self.drop(reason, number)

    def warnings(self) -> list[str]:
        """Return a line for each reason that cost rows, and one for the unknown keys."""
        most = sorted(self.dropped.items(), key=lambda item: -item[1])
        found = [
            f"{count:,} of {self.rows_read:,} rows dropped ({reason}: {REASONS[reason]}), "
            f"first at {self.first[reason]}"
            for reason, count in most
        ]
        if self.unknown_keys:
            names = ", ".join(f"{key} ({count:,})" for key, count in self.unknown_keys.items())
            found.append(f"unknown keys ignored: {names}")
        return found


@dataclass(frozen=True)
class Raw:
    """Some rows of a file: objects of JSON, or columns of text or of Arrow's types."""

    lines: NDArray[np.int64]
    """The number of each row's line."""

    objects: Sequence[Object] | None = None
    columns: Mapping[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def cells(self, paths: Sequence[str]) -> Cells | None:
        """Return the cells at the first of these paths that says anything, row by row.

        None where no row has any of them.
        """
        each = [cells for path in paths if (cells := self._at(path)) is not None]
        if len(each) < 2:
            return each[0] if each else None
        lists = [cells if isinstance(cells, list) else cells.to_pylist() for cells in each]
        return [next((one for one in row if not is_empty(one)), None) for row in zip(*lists)]  # noqa: B905

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys that any object has."""
        return frozenset(chain.from_iterable(self.objects or ()))

    def _at(self, path: str) -> Cells | None:
        if self.objects is not None and path in self.keys:
            held = [row.get(path) for row in self.objects]
            return [*map(only, held)] if list in {*map(type, held)} else held
        if self.objects is not None:
            within = any(path.startswith(f"{key}.") for key in self.keys)
            return [at(row, path) for row in self.objects] if within else None
        by_name = {name.lower(): name for name in self.columns}
        if (name := by_name.get(path.lower())) is not None:
            return self.columns[name]
        for name, column in self.columns.items():
            if path.startswith(f"{name}."):  # within cells that hold JSON
                rest = path[len(name) + 1 :]
                inner = (as_object(cell) for cell in column.to_pylist())
                return [None if one is None else at(one, rest) for one in inner]
        return None


def at(found: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what stands at a dotted path, whose parts may have dots themselves."""
    if path in found:
        return only(found[path])
    for key, held in found.items():
        if path.startswith(f"{key}.") and (inner := as_object(held)) is not None:
            return at(inner, path[len(key) + 1 :])
    return None


def only(held: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the only value of a list, as search engines give the fields of a row."""
    if type(held) is list and len(held) == 1 and not isinstance(held[0], dict | list):
        return held[0]
    return held


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


class TraceFile:
    """A file of any size: its first bytes, and its lines in blocks, unpacked and as UTF-8."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally = path, tally

    @cached_property
    def head(self) -> bytes:
        """The first bytes. Raises TraceError for what cannot be a trace."""
        place = self.tally.place
        try:
            if self.path.exists() and not self.path.is_file():
                raise TraceError(f"{place}: not a regular file", hint="Write it to a file first.")
            with self.path.open("rb") as file:
                mark = file.read(32)
            self.tally.bytes_total = self.path.stat().st_size
            found = b""
            for piece in _chunks(self.path, lambda _: None):
                found += piece
                if len(found) > SAMPLE_BYTES:
                    break
        except OSError as error:
            what = (error.strerror or str(error)).lower()
            raise TraceError(f"{place}: {what}", hint="Shipped traces are in traces/.") from error
        for signature, (what, cure) in SIGNATURES.items():
            if mark.startswith(signature):
                raise TraceError(f"{place}: {what}", hint=cure)
        if not found.strip():
            raise TraceError(f"{place}: empty", hint="Capture or import a trace first.")
        if not found.startswith(ARROW_MARKS) and b"\x00" in found.partition(b"\n")[0]:
            raise TraceError(f"{place}: binary, not text", hint="A trace is UTF-8 text or Parquet.")
        return found

    @property
    def is_whole(self) -> bool:
        """Whether the head is all there is."""
        return len(self.head) <= SAMPLE_BYTES

    @cached_property
    def encoding(self) -> str | None:
        """The encoding of a table that is not in UTF-8: that of spreadsheets in the west."""
        text = self.head.decode(errors="replace").rstrip("\ufffd")  # the head may break off
        is_western = "\ufffd" in text and text.replace("\ufffd", "").isascii()
        return "cp1252" if is_western and not text.lstrip().startswith(("{", "[")) else None

    def chunks(self) -> Iterator[bytes]:
        """Yield the file as UTF-8, and count its bytes in the tally."""

        def count(size: int) -> None:
            self.tally.bytes_read += size

        return _chunks(self.path, count, self.encoding)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the first line, whole lines); count lines that are too long."""
        number, rest, skipping = 1, b"", False
        for chunk in self.chunks():
            if skipping:
                _, end, chunk = chunk.partition(b"\n")  # noqa: PLW2901 - what is left of it
                skipping = not end
            end_at = chunk.rfind(b"\n")
            if end_at >= 0:
                whole = rest + chunk[:end_at]
                yield number, whole
                number += whole.count(b"\n") + 1
                rest = b""
            rest += chunk[end_at + 1 :]
            if len(rest) > MAX_LINE_BYTES:
                self.tally.lose("line_too_long", number)
                number, rest, skipping = number + 1, b"", True
        if rest.strip():
            yield number, rest

    def document(self) -> bytes:
        """Return all of the file. Raises TraceError where that is too much."""
        parts: list[bytes] = []
        for piece in self.chunks():
            parts.append(piece)
            if sum(map(len, parts)) > MAX_DOCUMENT_BYTES:
                raise TraceError(
                    f"{self.tally.place}: a JSON document of more than "
                    f"{MAX_DOCUMENT_BYTES >> 20} MiB",
                    hint="Write one request a line: jq -c '.[]' FILE > rows.jsonl",
                )
        return b"".join(parts)


def _chunks(
    path: Path, count: Callable[[int], None], encoding: str | None = None
) -> Iterator[bytes]:
    """Yield what a file holds, unpacked, as UTF-8, without a mark, with plain line ends."""
    with ExitStack() as closing:
        file = closing.enter_context(path.open("rb"))
        stream = closing.enter_context(_unpacked(file))
        pieces = _pieces(stream, file, path, count)
        first = b""
        while len(first) < 2**16 and (piece := next(pieces, b"")):
            first += piece
        if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            encoding = "utf-16"
        old_mac = b"\r" in first and b"\n" not in first
        decoder = codecs.getincrementaldecoder(encoding or "utf-8")("replace")
        for at_piece, piece in enumerate(_with(first, pieces)):
            text = decoder.decode(piece).encode() if encoding else piece
            text = text.removeprefix(codecs.BOM_UTF8) if at_piece == 0 else text
            yield text.replace(b"\r", b"\n") if old_mac else text


def _with(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _unpacked(file: BinaryIO) -> BinaryIO:
    """Return the stream that the file holds, by its first bytes."""
    mark = file.read(6)
    file.seek(0)
    if mark.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if mark.startswith(b"BZh"):
        return cast("BinaryIO", bz2.BZ2File(file))
    if mark == b"\xfd7zXZ\x00":
        return cast("BinaryIO", lzma.LZMAFile(file))
    arrows = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
    if codec := arrows.get(mark[:4]):
        return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(file, "r"), codec))
    return file


def _pieces(
    stream: BinaryIO, file: BinaryIO, path: Path, count: Callable[[int], None]
) -> Iterator[bytes]:
    taken = told = 0
    while True:
        try:
            with at_most(UNPACKING_BYTES):
                piece = stream.read(CHUNK_BYTES)
        except MemoryError:
            raise TraceError(
                f"{path}: unpacking it takes more than {UNPACKING_BYTES >> 20} MiB",
                hint="Pack it again with the packer's usual settings.",
            ) from None
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as problem:
            if isinstance(problem, OSError) and problem.errno is not None:
                raise
            raise TraceError(
                f"{path}: packed data breaks off or is damaged after {taken:,} bytes",
                hint="Copy or download the file again.",
            ) from None
        if not piece:
            return
        taken += len(piece)
        if not file.closed:
            count(file.tell() - told)
            told = file.tell()
        yield piece


@dataclass(frozen=True)
class Opened:
    """A file whose rows are found: its headings, its first rows, and all of them as raw columns."""

    headings: tuple[str, ...]
    """Dotted paths, of JSON and of columns that hold others. Each names one column."""

    sample: tuple[tuple[Any, ...], ...]
    """The first rows, by the headings; None for what is not there."""

    raws: Callable[[Sequence[str]], Iterator[Raw]]
    """Yields all rows, with the columns in which these paths stand."""

    objects: Sequence[Object] = ()
    """The first rows, of JSON."""

    is_text: bool = False
    """Cells are parted by a delimiter, so that the headings are cells as well."""

    naive: frozenset[str] = frozenset()
    """Columns of times without a zone that are numbers by now."""

    first_line: int = 1

    def with_inside(self) -> "Opened":
        """Return the same with columns for what cells hold as JSON objects."""
        held = [dict(zip(self.headings, cells, strict=True)) for cells in self.sample]
        rows = [dict(flattened(row)) for row in held]
        paths = dict.fromkeys(path for row in rows for path in row if path not in self.headings)
        inside = tuple(paths)[:MOST_COLUMNS]
        sample = tuple(
            (*cells, *map(row.get, inside)) for cells, row in zip(self.sample, rows, strict=True)
        )
        headings = (*self.headings, *inside)
        return Opened(headings, sample, self.raws, (), self.is_text, self.naive, self.first_line)


def opened(file: TraceFile, *, delimiter: str | None = None, named: Sequence[str] = ()) -> Opened:
    """Find the rows of a file. ``named`` are headings that the user names.

    Raises TraceError for a file that has none.
    """
    head = file.head
    if head.startswith(ARROW_MARKS):
        return _arrow_file(file)
    start = head.lstrip()
    if start.startswith((b"{", b"[{", b"[ ", b"[\n", b"[]", b"[\r")):
        return _document(file) if _is_document(file, start) else _json_lines(file, b"")
    lines = head.split(b"\n", 50)[:50]
    if sum(line.startswith(b'{"') for line in lines) * 3 >= len(lines):
        return _json_lines(file, b"")  # among lines that a program writes of itself
    for prefix in PREFIXES:
        if sum(re.match(prefix, line) is not None for line in lines if line.strip()) * 2 > len(
            lines
        ):
            file.tally.note("what stands before the JSON of each line is left out")
            return _json_lines(file, prefix)
    return _text_table(file, delimiter, named)


PREFIXES = (
    rb"[^{\"\n|]{1,200}\| *(?=\{\")",  # docker compose logs
    rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) std(?:out|err) F (?=\{\")",  # Kubernetes' files
    rb"\[(?:pod|[\w.-]+)/[\w./-]+\] (?=\{\")",  # kubectl logs --prefix
    rb"[^{\"\n]{1,200}?(?=\{\")",  # a time, a host, a program
)
"""What stands before the JSON of a line, as containers' logs have it."""


def _is_document(file: TraceFile, start: bytes) -> bool:
    """Whether the file is JSON, but not a row a line."""
    first, more, rest = start.partition(b"\n")
    if first.startswith(b"[") or first.rstrip().endswith((b"{", b"[", b",", b":")):
        return True
    return not more or (file.is_whole and not rest.strip())


_decode = msgspec.json.Decoder().decode
_decode_lines = msgspec.json.Decoder().decode_lines
BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _json_lines(file: TraceFile, prefix: bytes) -> Opened:
    def bare(block: bytes) -> bytes:
        return re.sub(rb"(?m)^" + prefix, b"", block) if prefix else block

    lines = bare(file.head).split(b"\n", 4 * SAMPLE_ROWS)
    lines = lines if file.is_whole else lines[:-1]  # which breaks off
    first = [row for line in lines if (row := _row(line)) is not None][:SAMPLE_ROWS]
    page = next((key for row in first[:1] for key in PAGES if _is_page(row.get(key))), None)

    def raws(_: Sequence[str]) -> Iterator[Raw]:
        for number, block in file.blocks():
            raw = _of_lines(number, bare(block), file.tally)
            yield raw if page is None else _of_pages(raw, page)

    return _of_objects([one for row in first for one in row[page]] if page else first, raws)


PAGES = ("data", "observations")
"""Keys under which the answers of an API have their rows, an answer a line."""


def _is_page(held: object) -> bool:
    return isinstance(held, list) and any(isinstance(one, dict) for one in held)


def _of_pages(raw: Raw, page: str) -> Raw:
    held = [
        (line, row.get(page))
        for line, row in zip(raw.lines.tolist(), raw.objects or (), strict=True)
    ]
    rows = [
        (line, one)
        for line, some in held
        if isinstance(some, list)
        for one in some
        if isinstance(one, dict)
    ]
    return Raw(np.array([line for line, _ in rows], np.int64), [one for _, one in rows])


def _row(line: bytes) -> Object | None:
    """Return the object that a line is; None where it is none, or a key stands twice in it."""
    try:
        found = _decode(line)
        if not isinstance(found, dict):
            return None
        marks = line.count(b'":') + line.count(b'" :')
        return None if marks != _keys(found) and _has_duplicate_key(line) else found
    except BROKEN:
        return None


def _of_lines(first: int, block: bytes, tally: Tally) -> Raw:
    """Return the rows of some lines; count those that are none."""
    try:
        rows = _decode_lines(block)
    except BROKEN:
        rows = []
    if len(rows) == block.count(b"\n") + 1 and {*map(type, rows)} == {dict}:
        marks = block.count(b'":') + block.count(b'" :')
        if marks == sum(map(len, rows)) or marks == sum(map(_keys, rows)):
            return Raw(np.arange(first, first + len(rows)), rows)
    kept: list[Object] = []
    numbers: list[int] = []
    for number, line in enumerate(block.split(b"\n"), first):
        if not line.strip():
            continue
        row = _row(line)
        if row is None:
            tally.lose("malformed", number)
        else:
            kept.append(row)
            numbers.append(number)
    return Raw(np.array(numbers, np.int64), kept)


def _keys(value: Any) -> int:  # noqa: ANN401 - any JSON
    """Return how many keys all objects within have."""
    if type(value) is dict:
        return len(value) + sum(_keys(one) for one in value.values() if type(one) in (dict, list))
    return sum(_keys(one) for one in value if type(one) in (dict, list))


def _has_duplicate_key(line: bytes) -> bool:
    def unique(pairs: list[tuple[str, object]]) -> Object:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise KeyError
        return found

    try:
        json.loads(line, object_pairs_hook=unique)
    except KeyError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _document(file: TraceFile) -> Opened:
    """Return the rows of one JSON document: an array, pages of an API, or objects over lines."""
    text = file.document()
    if b'"start_times"' in text:  # of vLLM's benchmark, whose JSON has NaN
        text = re.sub(rb"-?\b(?:NaN|Infinity)\b", b"null", text)
    try:
        if text.lstrip().startswith(b"["):
            parts: list[Any] = msgspec.json.decode(text, type=list[msgspec.Raw])
            first = [_decode(part) for part in parts[:SAMPLE_ROWS]]
        else:
            text = re.sub(rb"\}\s*\n\s*\{", b"},{", text)  # objects one behind the other
            parts = _rows_in(_decode(b"[" + text + b"]"))
            first = parts[:SAMPLE_ROWS]
    except BROKEN as error:
        byte = re.search(r"byte (\d+)", str(error))
        line = text.count(b"\n", 0, int(byte[1]) if byte else 0) + 1
        raise TraceError(
            f"{file.tally.place}:{line}: not valid JSON from here on",
            hint="Export it again: it is cut off, or not JSON in UTF-8.",
        ) from None
    file.tally.unit = "row" if len(parts) > 1 or b"\n" in text.strip() else "line"
    inside = _rows_in(first)
    if inside is not first:  # an array of one page
        parts = first = inside

    def raws(_: Sequence[str]) -> Iterator[Raw]:
        for begin in range(0, len(parts), ROWS):
            some = parts[begin : begin + ROWS]
            rows = [_decode(one) if isinstance(one, msgspec.Raw) else one for one in some]
            numbers = np.arange(begin + 1, begin + len(rows) + 1)
            is_row = [isinstance(one, dict) for one in rows]
            for number in numbers[~np.array(is_row)].tolist():
                file.tally.lose("malformed", number)
            yield Raw(numbers[is_row], [one for one in rows if isinstance(one, dict)])

    return _of_objects([one for one in first if isinstance(one, dict)], raws)


def _rows_in(documents: list[Any]) -> list[Any]:
    """Return the rows of a document: a list of objects within it, or what it is itself."""
    if len(documents) != 1 or not isinstance(documents[0], dict):
        return documents
    lists = [held for _, held in flattened(documents[0]) if _is_page(held)]
    if not lists or documents[0].keys() & {"resourceSpans", "conversations", "turns"}:
        return documents
    first = {id(rows): next(one for one in rows if isinstance(one, dict)) for rows in lists}
    most = max(lists, key=lambda rows: (_main_roles(first[id(rows)]), len(rows)))
    is_row = _main_roles(first[id(most)]) < _main_roles(documents[0])
    return documents if is_row else _rows_in(most)


def _main_roles(row: Object) -> int:
    from tuner.trace.headings import main_roles  # noqa: PLC0415 - what headings mean is no matter here

    return len(main_roles(path for path, _ in flattened(row)))


def _of_objects(first: Sequence[Object], raws: Callable[[Sequence[str]], Iterator[Raw]]) -> Opened:
    rows = [dict(flattened(one)) for one in first]
    headings = tuple(dict.fromkeys(key for row in rows for key in row))[:MOST_COLUMNS]
    sample = tuple(tuple(map(row.get, headings)) for row in rows)
    return Opened(headings, sample, raws, first)


# Tables as text.

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


def _text_table(file: TraceFile, delimiter: str | None, named: Sequence[str]) -> Opened:
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
    names = _unique(shape.headings)
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


def _unique(headings: Sequence[str]) -> tuple[str, ...]:
    """Return headings of which each names one column."""
    names: dict[str, None] = {}
    for place, heading in enumerate(headings, 1):
        name = heading or f"#{place}"
        names[f"{name}#{place}" if name in names else name] = None
    return tuple(names)


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


# Parquet and Arrow files.


def _arrow_file(file: TraceFile) -> Opened:  # noqa: C901 - three steps within
    """Return the columns of a Parquet or Arrow file, by dotted paths; its numbers are rows."""
    file.tally.unit = "row"
    size = file.path.stat().st_size

    def batches(columns: list[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
        if file.head.startswith(b"PAR1"):
            whole = parquet.ParquetFile(file.path)
            yield from whole.iter_batches(rows, columns=columns, use_threads=False)
            return
        with ipc.open_file(file.path) as whole:
            for number in range(whole.num_record_batches):
                batch = whole.get_batch(number)
                for begin in range(0, len(batch), rows):
                    some = batch.slice(begin, rows)
                    yield some if columns is None else some.select(columns)

    def leaves(columns: list[str] | None, rows: int) -> Iterator[dict[str, tuple[pa.Array, bool]]]:
        each = batches(columns, rows)
        while True:
            with _step(file.path, STEP_BYTES + 4 * size):
                batch = next(each, None)
                held = None if batch is None else [*_leaves(batch)]
            if held is None:
                return
            names = _unique([path for path, _, _ in held])
            yield {
                name: (column, is_naive)
                for name, (_, column, is_naive) in zip(names, held, strict=True)
            }

    first = next(leaves(None, SAMPLE_ROWS), None)
    if not first:
        raise TraceError(f"{file.tally.place}: no rows", hint="Is the file complete?")
    with _step(file.path, STEP_BYTES + 4 * size):
        sample = tuple(zip(*(column.to_pylist() for column, _ in first.values()), strict=True))
        schema = next(batches(None, 1)).schema.names

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        tops = [
            name
            for name in schema
            if any(one == name or one.startswith(f"{name}.") for one in wanted)
        ]
        begin = 1
        is_plain = len({*first}) == len(first) and not any("#" in name for name in first)
        for held in leaves(tops if is_plain else None, ROWS):
            columns = {path: column for path, (column, _) in held.items()}
            count = len(next(iter(columns.values())))
            file.tally.bytes_read = size
            yield Raw(np.arange(begin, begin + count), columns=columns)
            begin += count

    naive = frozenset(path for path, (_, is_naive) in first.items() if is_naive)
    return Opened(tuple(first), sample, raws, naive=naive)


@contextmanager
def _step(path: Path, most_bytes: int) -> Iterator[None]:
    """Bound what is done here, and explain what Arrow raises: never in its words, which may quote
    cells."""
    try:
        with at_most(most_bytes):
            yield
    except MemoryError:
        raise TraceError(
            f"{path}: some of its rows unpack to more than {most_bytes >> 20:,} MiB",
            hint="Write it again, with the columns that are needed.",
        ) from None
    except (pa.ArrowException, EOFError, LookupError, OSError, OverflowError, ValueError) as error:
        raise TraceError(
            f"{path}: a broken Parquet or Arrow file ({type(error).__name__})",
            hint="Copy the file again.",
        ) from None


def _leaves(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array, bool]]:
    """Yield (path, column, whether it is of times without a zone) of all columns and structs."""
    batch.validate(full=True)
    todo = list(zip(batch.schema.names, batch.columns, strict=True))
    while todo:
        path, column = todo.pop(0)
        if isinstance(column, pa.DictionaryArray):
            column = column.dictionary_decode()
        kind = column.type
        if pa.types.is_struct(kind):
            inner = [
                (f"{path}.{one.name}", pc.struct_field(column, [place]))
                for place, one in enumerate(kind)
            ]
            todo = [*inner, *todo]
            continue
        is_naive = pa.types.is_date64(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
        yield path, _plain(column), is_naive


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as numbers or text: times as whole nanoseconds."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        return pc.cast(pc.cast(column, pa.timestamp("ns", zone)), pa.int64())
    if pa.types.is_duration(kind):
        return pc.cast(pc.cast(column, pa.duration("ns")), pa.int64())
    for is_kind, target in (
        (pa.types.is_date32, pa.string()),
        (pa.types.is_time, pa.string()),
        (pa.types.is_large_string, pa.string()),
        (pa.types.is_string_view, pa.string()),
        (pa.types.is_decimal, pa.float64()),
        (pa.types.is_integer, pa.int64()),
        (pa.types.is_floating, pa.float64()),
    ):
        if is_kind(kind):
            return pc.cast(column, target)
    return column


def first_rows(opened_file: Opened, paths: Sequence[str]) -> list[Any]:
    """Return the first cells at the first of these paths that is there."""
    by_name = {heading.lower(): place for place, heading in enumerate(opened_file.headings)}
    place = next((by_name[path.lower()] for path in paths if path.lower() in by_name), None)
    return [] if place is None else [row[place] for row in islice(opened_file.sample, 100)]
