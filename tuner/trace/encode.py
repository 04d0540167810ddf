"""Requests written as lines of the canonical form, whole columns at a time.

The bytes are those of ``record.row_line``: times to the microsecond and without ``.0``, nothing
that is absent or the default. A trace's digest is taken of them.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tuner.trace.record import FIELDS, Field

ROWS = 2**16
_FRACTIONS = pa.array([f".{part:03d}".rstrip("0").rstrip(".") for part in range(1000)])
_TRUTH = pa.array(["false", "true"])


def _type(field: Field) -> pa.DataType:
    kinds = {"time": pa.float64(), "flag": pa.bool_(), "name": pa.string(), "count": pa.int32()}
    return kinds.get(field.kind, pa.list_(pa.int64()))


TYPES: dict[str, pa.DataType] = {field.key: _type(field) for field in FIELDS}
"""The types of the columns of a trace."""


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
    if field.kind == "list":
        absent = pc.fill_null(pc.equal(pc.list_value_length(column), 0), fill_value=True)
        digits = pc.cast(column, pa.list_(pa.string()))
        values = ["[", pc.fill_null(pc.binary_join(digits, ","), ""), "]"]
    else:
        absent = pc.is_null(column)
        if field.default is not None:
            absent = pc.or_(absent, pc.fill_null(pc.equal(column, field.default), fill_value=True))
        values = [*_scalars(field, column)]
    if pc.all(absent).as_py():
        return []
    text = pc.binary_join_element_wise(f',"{field.key}":', *values, "")
    return [pc.if_else(absent, "", text)]


def _scalars(field: Field, column: pa.Array) -> Iterator[pa.Array]:
    if field.kind == "time":
        yield from _milliseconds(pc.fill_null(column, 0.0))
    elif field.kind == "name":
        coded = pc.fill_null(column, "").dictionary_encode()
        quoted = [msgspec.json.encode(name).decode() for name in coded.dictionary.to_pylist()]
        yield pa.array(quoted).take(coded.indices)
    elif field.kind == "flag":
        yield _TRUTH.take(pc.cast(pc.fill_null(column, fill_value=False), pa.int8()))
    else:
        yield pc.cast(pc.fill_null(column, 0), pa.string())


def _milliseconds(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return whole milliseconds and their fractions as text."""
    microseconds = np.rint(column.to_numpy() * 1000).astype(np.int64)
    whole = pc.cast(pa.array(microseconds // 1000), pa.string())
    return whole, _FRACTIONS.take(pa.array(microseconds % 1000))
