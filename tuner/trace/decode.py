"""Locate the rows of a file, whatever it is: JSON lines, JSON documents, tables.

No cell is read yet.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from tuner.errors import TraceError
from tuner.trace.files import PARQUET, Tally, TraceFile
from tuner.trace.headings import main_roles
from tuner.trace.raw import ROWS, SAMPLE_ROWS, Object, Opened, Raw, flattened
from tuner.trace.tables import parquet_file, text_table

PREFIX = rb"(?m)^[^{\"\n]{1,200}(?=\{\")"
"""What stands before the JSON of a line in logs of containers: a time, a name, a stream."""

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def opened(file: TraceFile) -> Opened:
    """Locate the rows of a file. Raises TraceError for a file that has none."""
    start = file.head.lstrip()
    if start.startswith(PARQUET):
        return parquet_file(file)
    if re.match(rb"\{|\[[\[{\s\]]", start):
        return _document(file) if _is_document(file, start) else _json_lines(file)
    lines = [line for line in start.split(b"\n", 50)[:50] if line.strip()]
    if sum(line.startswith(b'{"') for line in lines) * 3 >= len(lines):
        return _json_lines(file)  # among lines that a program writes of itself
    if sum(re.match(PREFIX, line) is not None for line in lines) * 2 > len(lines):
        file.tally.note("what stands before the JSON of each line is left out")
        return _json_lines(file, PREFIX)
    return text_table(file)


def _is_document(file: TraceFile, start: bytes) -> bool:
    """Return whether the file is JSON, but not a row a line."""
    first, more, rest = start.partition(b"\n")
    if first.startswith(b"[") or first.rstrip().endswith((b"{", b"[", b",", b":")):
        return True
    return not more or (file.is_whole and not rest.strip())


def _json_lines(file: TraceFile, prefix: bytes = b"") -> Opened:
    def bare(text: bytes) -> bytes:
        return re.sub(prefix, b"", text) if prefix else text

    lines = bare(file.head).split(b"\n", 4 * SAMPLE_ROWS)
    lines = lines if file.is_whole else lines[:-1]  # which breaks off
    first = [row for line in lines if (row := _row(line)) is not None][:SAMPLE_ROWS]

    def raws(_: Sequence[str]) -> Iterator[Raw]:
        for number, block in file.blocks():
            yield _of_lines(number, bare(block), file.tally)

    return Opened([dict(flattened(row)) for row in first], raws, objects=first)


def _of_lines(first: int, block: bytes, tally: Tally) -> Raw:
    """Return the rows of some lines; count those that are none."""
    try:
        rows = msgspec.json.Decoder().decode_lines(block)
    except BROKEN:
        rows = []
    are_rows = len(rows) == block.count(b"\n") + 1 and {*map(type, rows)} == {dict}
    marks = block.count(b'":') + block.count(b'" :')
    if are_rows and marks == sum(map(len, rows)):  # no key stands twice
        return Raw(np.arange(first, first + len(rows)), rows)
    kept: dict[int, Object] = {}
    for number, line in enumerate(block.split(b"\n"), first):
        if (row := _row(line)) is not None:
            kept[number] = row
        elif line.strip():
            tally.lose("malformed", number)
    return Raw(np.array([*kept], np.int64), [*kept.values()])


def _row(line: bytes) -> Object | None:
    """Return the object that a line is; None where it is none, or a key stands twice in it."""
    try:
        result = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def _unique(pairs: list[tuple[str, object]]) -> Object:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError
    return result


def _no_number(name: str) -> None:
    raise ValueError(name)


def _document(file: TraceFile) -> Opened:
    """Return the rows of one JSON document: an array, a page of an API, or objects over lines."""
    text = file.document().strip()
    if b'"start_times"' in text:  # of vLLM's benchmark, whose JSON has NaN
        text = re.sub(rb"-?\b(?:NaN|Infinity)\b", b"null", text)
    if not text.startswith(b"["):
        text = b"[" + re.sub(rb"\}\s*\n\s*\{", b"},{", text) + b"]"
    try:
        rows = _rows_in(msgspec.json.decode(text))
    except BROKEN as error:
        byte = re.search(r"byte (\d+)", str(error))
        line = text.count(b"\n", 0, int(byte[1]) if byte else 0) + 1
        raise TraceError(
            f"{file.tally.place}:{line}: not valid JSON from here on",
            hint="Export it again: it is cut off, or not JSON in UTF-8.",
        ) from None
    file.tally.unit = "row" if len(rows) > 1 or b"\n" in text else "line"
    kept = {number: row for number, row in enumerate(rows, 1) if isinstance(row, dict)}

    def raws(_: Sequence[str]) -> Iterator[Raw]:
        for number in range(1, len(rows) + 1):
            if number not in kept:
                file.tally.lose("malformed", number)
        numbers = np.array([*kept], np.int64)
        for begin in range(0, len(kept), ROWS):
            some = numbers[begin : begin + ROWS]
            yield Raw(some, [kept[number] for number in some.tolist()])

    first = [*kept.values()][:SAMPLE_ROWS]
    return Opened([dict(flattened(row)) for row in first], raws, objects=first)


def _rows_in(documents: list[Any]) -> list[Any]:
    """Return the rows of a document: a list of objects within it, or what it is itself."""
    if len(documents) != 1 or not isinstance(documents[0], dict):
        return documents
    lists = [held for _, held in flattened(documents[0]) if isinstance(held, list)]
    lists = [rows for rows in lists if rows and isinstance(rows[0], dict)]
    if not lists or documents[0].keys() & {"resourceSpans", "conversations", "turns"}:
        return documents

    def roles(rows: list[Any]) -> int:
        return len(main_roles(path for path, _ in flattened(rows[0])))

    most = max(lists, key=lambda rows: (roles(rows), len(rows)))
    return documents if roles(most) < roles(documents) else _rows_in(most)
