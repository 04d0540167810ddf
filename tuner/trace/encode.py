"""Requests as a table of canonical columns, and that table as lines of the canonical form.

The bytes are those of ``record.row_line``: times to the microsecond and without ``.0``, nothing
that is absent or the default. A trace's digest is taken of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tuner.trace.record import FIELDS, Field

ROWS = 2**16
DECIMALS_MS = 3
"""Times are kept to the microsecond: finer than any clock that stamps requests."""

_KINDS = {"time": pa.float64(), "name": pa.string(), "count": pa.int32()}
TYPES = {field.key: _KINDS.get(field.kind, pa.list_(pa.int64())) for field in FIELDS}
"""The types of the columns of a trace."""

_FRACTIONS = pa.array([f".{part:03d}".rstrip("0").rstrip(".") for part in range(1000)])


def table_of(requests: Sequence[Any]) -> pa.Table:
    """Return requests (``TraceRequest``) as a table of canonical columns."""
    held: dict[str, pa.Array] = {}
    for field in FIELDS:
        values = [getattr(request, field.attribute) for request in requests]
        if field.key == "row":
            values = [None if row == place else row for place, row in enumerate(values)]
        if field.key != "timestamp" and values.count(field.default) == len(values):
            continue
        if field.kind == "time":
            values = [each and round(each * 1000, DECIMALS_MS) for each in values]
        held[field.key] = pa.array(values, TYPES[field.key])
    return pa.table(held)


def lines_of(table: pa.Table) -> Iterator[bytes]:
    """Yield the lines of a table of canonical columns, some thousands at a time."""
    for batch in table.to_batches(max_chunksize=ROWS):
        parts = ["{"]
        for field in FIELDS:
            if field.key in table.column_names:
                parts += _json(field, batch.column(field.key))
        joined = pc.binary_join_element_wise(*parts, "}\n", "")
        offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :][: len(batch) + 1]
        yield joined.buffers()[2][int(offsets[0]) : int(offsets[-1])].to_pybytes()


def _json(field: Field, column: pa.Array) -> list[pa.Array | str]:
    """Return what stands for a field in each line: ``,"key":value``, or nothing."""
    if field.key == "timestamp":
        return ['"timestamp":', *_milliseconds(column)]
    absent = pc.is_null(column)
    if field.kind == "list":
        absent = pc.fill_null(pc.equal(pc.list_value_length(column), 0), fill_value=True)
        digits = pc.binary_join(pc.cast(column, pa.list_(pa.string())), ",")
        values = ["[", pc.fill_null(digits, ""), "]"]
    elif field.kind == "time":
        values = [*_milliseconds(pc.fill_null(column, 0.0))]
    elif field.kind == "name":
        coded = pc.fill_null(column, "").dictionary_encode()
        quoted = [msgspec.json.encode(name).decode() for name in coded.dictionary.to_pylist()]
        values = [pa.array(quoted).take(coded.indices)]
    else:
        values = [pc.fill_null(pc.cast(column, pa.string()), "")]
    if field.default not in (None, ()):
        absent = pc.or_(absent, pc.fill_null(pc.equal(column, field.default), fill_value=True))
    if pc.all(absent).as_py():
        return []
    text = pc.binary_join_element_wise(f',"{field.key}":', *values, "")
    return [pc.if_else(absent, "", text)]


def _milliseconds(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return whole milliseconds and their fractions as text."""
    microseconds = np.rint(column.to_numpy() * 1000).astype(np.int64)
    integers = pc.cast(pa.array(microseconds // 1000), pa.string())
    return integers, _FRACTIONS.take(pa.array(microseconds % 1000))
