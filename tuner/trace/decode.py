"""Find the rows of a file, whatever it is: JSON lines, documents, tables as text, Parquet, Arrow.

Nothing is read into any cell yet.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from tuner.errors import TraceError
from tuner.trace.arrow_files import arrow_file
from tuner.trace.files import ARROW_MARKS, TraceFile
from tuner.trace.raw import MOST_COLUMNS, ROWS, SAMPLE_ROWS, Object, Opened, Raw, Tally, flattened
from tuner.trace.text_table import text_table


def opened(file: TraceFile, *, delimiter: str | None = None, named: Sequence[str] = ()) -> Opened:
    """Find the rows of a file. ``named`` are headings that the user names.

    Raises TraceError for a file that has none.
    """
    head = file.head
    if head.startswith(ARROW_MARKS):
        return arrow_file(file)
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
    return text_table(file, delimiter, named)


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
