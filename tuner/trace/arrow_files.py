"""Tables in Parquet and Arrow files: columns by dotted paths, times as whole nanoseconds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc, parquet

from tuner.errors import TraceError
from tuner.system.memory import at_most
from tuner.trace.files import TraceFile
from tuner.trace.raw import ROWS, SAMPLE_ROWS, Opened, Raw, unique_names

STEP_BYTES = 2**31
"""Bytes that some rows of a Parquet file may take beside four times its size: half a megabyte of it
can hold columns of a hundred gigabytes."""


def arrow_file(file: TraceFile) -> Opened:  # noqa: C901 - three steps within
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
            names = unique_names([path for path, _, _ in held])
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
