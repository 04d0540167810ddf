"""Tables in Parquet files: columns by dotted paths, times as whole nanoseconds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from tuner.errors import TraceError
from tuner.system.memory import at_most
from tuner.trace.files import TraceFile
from tuner.trace.raw import ROWS, SAMPLE_ROWS, Opened, Raw, unique_names

STEP_BYTES = 2**31
"""Bytes that some rows may take beside four times the file's size: half a megabyte of Parquet can
hold columns of a hundred gigabytes."""


def parquet_file(file: TraceFile) -> Opened:
    """Return the columns of a Parquet file, by dotted paths; its numbers are rows."""
    file.tally.unit = "row"
    size = file.path.stat().st_size

    def tables(columns: list[str] | None, rows: int) -> Iterator[dict[str, pa.Array]]:
        batches: Iterator[pa.RecordBatch] | None = None
        while True:
            with _step(file.path, STEP_BYTES + 4 * size):
                if batches is None:
                    whole = parquet.ParquetFile(file.path)
                    batches = whole.iter_batches(rows, columns=columns, use_threads=False)
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)
                held = [*_leaves(zip(batch.schema.names, batch.columns, strict=True))]
                names = unique_names([path for path, _ in held])
                found = dict(zip(names, (column for _, column in held), strict=True))
            yield found

    first = next(tables(None, SAMPLE_ROWS), None)
    if not first:
        raise TraceError(f"{file.tally.place}: no rows", hint="Is the file complete?")
    naive = frozenset(name for name, column in first.items() if _is_naive(column.type))
    with _step(file.path, STEP_BYTES + 4 * size):
        cells = [_plain(column).to_pylist() for column in first.values()]

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        tops = {path.partition(".")[0] for path in first}
        used = [top for top in tops if any(f"{one}.".startswith(f"{top}.") for one in wanted)]
        is_plain = not any("#" in name for name in first)
        begin = 1
        for held in tables(used if is_plain else None, ROWS):
            with _step(file.path, STEP_BYTES + 4 * size):
                columns = {path: _plain(column) for path, column in held.items()}
            count = len(next(iter(columns.values())))
            file.tally.bytes_read = size
            yield Raw(np.arange(begin, begin + count), columns=columns)
            begin += count

    return Opened(tuple(first), tuple(zip(*cells, strict=True)), raws, naive=naive)


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
            f"{path}: a broken Parquet file ({type(error).__name__})", hint="Copy the file again."
        ) from None


def _leaves(columns: Iterator[tuple[str, pa.Array]]) -> Iterator[tuple[str, pa.Array]]:
    """Yield (path, column) of all columns, and of those within structs."""
    for path, column in columns:
        if pa.types.is_struct(column.type):
            names = (f"{path}.{one.name}" for one in column.type)
            yield from _leaves(zip(names, column.flatten(), strict=True))
        else:
            is_coded = isinstance(column, pa.DictionaryArray)
            yield path, column.dictionary_decode() if is_coded else column


def _is_naive(kind: pa.DataType) -> bool:
    is_stamp = pa.types.is_timestamp(kind) and kind.tz is None
    return bool(is_stamp or pa.types.is_date64(kind))


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as numbers or text: times as whole nanoseconds."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        zone = getattr(kind, "tz", None)
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
