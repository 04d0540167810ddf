"""Whole blocks of lines read by columns with Arrow, and its columns as arrays.

What Arrow cannot read exactly as it stands, and whatever a check of ours would drop, goes row by
row instead: then counts and reasons are those of a slow reading.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json

from tuner.trace.formats.columnar.batch import ABSENT, Floats, Ints, Lists, Names
from tuner.trace.formats.reading.byte_chunks import line_ends

SMALL_BYTES = 2**16
"""A block that cannot be read whole is tried again in parts of this size."""

NOTHING = [
    "",
    r"\N",
    "NULL",
    "null",
    "Null",
    "NaN",
    "nan",
    "NaT",
    "None",
    "none",
    "N/A",
    "-",
    "<NA>",
]
"""Cells without a value; a table's other spellings of that go row by row."""

_LINE_END, _RETURN, _OPEN, _CLOSE = b"\n\r{}"

LONGEST_NUMBER = 1000
"""Digits of a number that a reading row by row surely takes for one."""

_LONG_NUMBER = re.compile(rb"\d{%d}" % LONGEST_NUMBER)

BREAKS = (pa.ArrowException, UnicodeDecodeError, OverflowError)
"""Errors of Arrow for what it cannot read."""


def json_table(block: bytes, types: Mapping[str, pa.DataType], *, strict: bool) -> Any | None:  # noqa: ANN401 - Arrow's
    """Return the objects of a block, one a line, by their keys; None where they are not so.

    ``strict``: None too where an object has another key; else such keys are read as they are.
    """
    lines, longest = _objects_in(block)
    if not lines or not _is_utf8(block) or b"NaN" in block or b"Inf" in block:
        return None  # Arrow reads NaN and Infinity, which are no JSON
    if not strict and longest > LONGEST_NUMBER and _LONG_NUMBER.search(block):
        return None  # which Arrow reads as text where nobody asks for it
    how = json.ParseOptions(
        explicit_schema=pa.schema(list(types.items())),
        unexpected_field_behavior="error" if strict else "infer",
    )
    try:
        table = json.read_json(pa.BufferReader(block), _json_options(block), how)
    except BREAKS:
        return None
    return table if len(table) == lines else None


def _objects_in(block: bytes) -> tuple[int, int]:
    """Return (number of lines, bytes of the longest) if each begins and ends as an object does;
    else (0, 0)."""
    if not block.startswith(b"{") or not block.endswith((b"}", b"}\r")):
        return 0, 0
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text == _LINE_END)
    closing = text[ends - 1]
    closing = np.where(closing == _RETURN, text[ends - 2], closing)
    whole = bool((text[ends + 1] == _OPEN).all() and (closing == _CLOSE).all())
    if not whole:
        return 0, 0
    return len(ends) + 1, int(np.diff(ends, prepend=-1, append=len(text)).max())


def _json_options(block: bytes) -> Any:  # noqa: ANN401 - Arrow's
    return json.ReadOptions(use_threads=False, block_size=len(block) + 1)


def csv_table(
    block: bytes,
    *,
    columns: int,
    delimiter: str,
    types: Mapping[int, pa.DataType],
) -> Any | None:  # noqa: ANN401 - Arrow's
    """Return some columns of the lines of a block by their numbers; None where they are not so."""
    if b'"' in block and not quotes_close(block):
        return None
    lines = line_ends(block) + (not block.endswith(b"\n"))
    names = [str(place) for place in range(columns)]
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
            csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
            csv.ConvertOptions(
                include_columns=[str(place) for place in types],
                column_types={str(place): kind for place, kind in types.items()},
                null_values=NOTHING,
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
                timestamp_parsers=[csv.ISO8601],
            ),
        )
    except BREAKS:
        return None
    return table if len(table) == lines else None


def quotes_close(block: bytes) -> bool:
    """Whether each line has its quotes in pairs, so that no cell runs over its end."""
    return all(line.count(b'"') % 2 == 0 for line in block.split(b"\n"))


def _is_utf8(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def parts(first: int, block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield a block in parts of whole lines, each with the number of its first line."""
    begin, number = 0, first
    while begin < len(block):
        end = block.find(b"\n", begin + SMALL_BYTES)
        part = block[begin : end if end >= 0 else len(block)]
        yield number, part
        begin += len(part) + 1
        number += part.count(b"\n") + 1


def floats(column: Any) -> Floats:  # noqa: ANN401 - Arrow's
    """Return a column of numbers, NaN where it has none."""
    whole = _one(column)
    return np.asarray(pc.cast(whole, pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def ints(column: Any) -> Ints:  # noqa: ANN401 - Arrow's
    """Return a column of whole numbers, ABSENT where it has none."""
    whole = _one(column)
    if whole.null_count:
        whole = pc.fill_null(pc.cast(whole, pa.int64()), ABSENT)
    return np.asarray(whole.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)


def names(column: Any) -> Names:  # noqa: ANN401 - Arrow's
    """Return a column of names as codes, -1 where it has none."""
    coded = _one(column).dictionary_encode()
    codes = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
    return np.asarray(codes, np.int32), coded.dictionary.to_pylist()


def lists(column: Any) -> Lists:  # noqa: ANN401 - Arrow's
    """Return a column of lists of whole numbers; a row without one has none in it.

    Raises pa.ArrowInvalid for a null in a list.
    """
    whole = _one(column)
    values = whole.flatten()
    if values.null_count:
        raise pa.ArrowInvalid("null in a list")
    sizes = pc.fill_null(pc.list_value_length(whole), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return offsets, np.asarray(values.to_numpy(zero_copy_only=False), np.int64)


def _one(column: Any) -> Any:  # noqa: ANN401 - Arrow's
    """Return a column of a table as one array."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
