"""Requests as a table of canonical columns, as arrays of what decides over traffic, and as lines.

The bytes of lines are those of ``record.row_line``: times to the microsecond and without ``.0``,
nothing that is absent or the default. A trace's digest is taken of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tuner.trace.record import FIELDS, SERVED, Field

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROWS = 2**16
DECIMALS_MS = 3
"""Times are kept to the microsecond: finer than any clock that stamps requests."""

_KINDS = {"time": pa.float64(), "name": pa.string(), "count": pa.int32()}
TYPES = {field.key: _KINDS.get(field.kind, pa.list_(pa.int64())) for field in FIELDS}
"""The types of the columns of a trace."""

_FRACTIONS = pa.array([f".{part:03d}".rstrip("0").rstrip(".") for part in range(1000)])


@dataclass(frozen=True, slots=True)
class Columns:
    """One entry a request, in order of arrival."""

    arrival_s: Floats
    e2e_s: Floats
    """NaN where production did not record it."""
    queue_s: NDArray[np.float32]
    """From arrival to when it was first scheduled; NaN where production did not record it."""
    input_length: NDArray[np.int32]
    output_length: NDArray[np.int32]
    n: NDArray[np.int32]
    replica: NDArray[np.int32]
    """-1 where production did not record it."""
    served: NDArray[np.bool_]
    """Status ok or aborted: it held a slot. The others only arrived."""
    reused_tokens: int | None
    """Prompt tokens in full blocks that an earlier request had; None without any hash ids."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def of_served(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return the part of a column that is of requests which were served."""
        return column if self.served.all() else column[self.served]

    def tokens(self) -> Ints:
        """Return what each request asks of an engine: prompt tokens and all sequences' outputs."""
        result = self.n.astype(np.int64)  # and in place: ten million fit into a gigabyte
        result *= self.output_length
        result += self.input_length
        result *= self.served
        return result

    def take(self, chosen: NDArray[np.bool_]) -> "Columns":
        """Return some of the requests, without their reuse, which is of the whole."""
        names = [field.name for field in fields(self)[:-1]]
        arrays = {name: getattr(self, name)[chosen] for name in names}
        return Columns(**arrays, reused_tokens=None)


def columns_of(requests: Sequence[Any], *, block_size: int) -> Columns:
    """Return the columns of requests (``TraceRequest``), in order of arrival."""
    requests = sorted(requests, key=lambda item: item.arrival_s)
    columns = columns_of_table(table_of(requests), block_size=block_size)
    arrival_s = np.fromiter((request.arrival_s for request in requests), np.float64, len(requests))
    return replace(columns, arrival_s=arrival_s)  # to the last bit, and not to the microsecond


def columns_of_table(table: pa.Table, *, block_size: int) -> Columns:
    """Return the columns of a table with the keys of the canonical record."""
    size = len(table)

    def column(key: str, absent: float, kind: type[np.generic], per_unit: int = 1) -> NDArray[Any]:
        if key not in table.column_names:
            return np.broadcast_to(np.array(absent, kind), size)  # takes no memory
        cells = table.column(key)
        cells = cells.fill_null(absent) if cells.null_count else cells
        held: NDArray[Any] = np.asarray(cells.to_numpy())
        return (held if per_unit == 1 else held / per_unit).astype(kind, copy=False)

    served = np.broadcast_to(True, size)
    if "status" in table.column_names:
        status = table.column("status").fill_null("ok")
        served = pc.is_in(status, pa.array(SERVED)).to_numpy()
    input_length = column("input_length", 0, np.int32)
    return Columns(
        arrival_s=column("timestamp", 0.0, np.float64, 1000),
        e2e_s=column("e2e_ms", np.nan, np.float64, 1000),
        queue_s=column("queue_ms", np.nan, np.float32, 1000),
        input_length=input_length,
        output_length=column("output_length", 0, np.int32),
        n=column("n", 1, np.int32),
        replica=column("replica", -1, np.int32),
        served=served,
        reused_tokens=_reused_tokens(table, input_length, block_size),
    )


def _reused_tokens(table: pa.Table, input_length: NDArray[np.int32], block_size: int) -> int | None:
    """Return the tokens of all blocks that prompts fill, less those seen for the first time."""
    if "hash_ids" not in table.column_names:
        return None
    column = table.column("hash_ids")
    ids = pc.list_flatten(column).to_numpy()
    sizes = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    within = np.arange(len(ids)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    full = ids[within < np.repeat(input_length // block_size, sizes)]
    return (len(full) - len(np.unique(full))) * block_size if len(full) else None


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
