"""Tables in Parquet files: columns by dotted paths, times as text with their zone."""

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
from tuner.trace.raw import ROWS, SAMPLE_ROWS, Opened, Raw, flattened, unique_names

STEP_BYTES = 2**31
"""Bytes that some rows may take beside four times the file's size: half a megabyte of Parquet can
hold columns of a hundred gigabytes."""


def parquet_file(file: TraceFile) -> Opened:
    """Return the columns of a Parquet file, by dotted paths; its numbers are rows."""
    file.tally.unit = "row"
    size = file.path.stat().st_size
    most_bytes = STEP_BYTES + 4 * size

    def tables(columns: list[str] | None, rows: int) -> Iterator[dict[str, pa.Array]]:
        with _step(file.path, most_bytes):
            whole = parquet.ParquetFile(file.path)
            batches = whole.iter_batches(rows, columns=columns, use_threads=False)
        while True:
            with _step(file.path, most_bytes):
                if (batch := next(batches, None)) is None:
                    return
                batch.validate(full=True)
                table = pa.Table.from_batches([batch])
                while any(pa.types.is_struct(kind) for kind in table.schema.types):
                    table = table.flatten()
                names = unique_names(table.column_names)
                result = {
                    name: _plain(column.combine_chunks())
                    for name, column in zip(names, table.columns, strict=True)
                }
            yield result

    first = next(tables(None, SAMPLE_ROWS), None)
    if not first:
        raise TraceError(f"{file.tally.place}: no rows", hint="Is the file complete?")
    with _step(file.path, most_bytes):
        sample = pa.table(first).to_pylist()

    def raws(wanted: Sequence[str]) -> Iterator[Raw]:
        tops = {path.partition(".")[0] for path in first}
        used = [top for top in tops if any(f"{path}.".startswith(f"{top}.") for path in wanted)]
        is_plain = not any("#" in name for name in first)
        begin = 1
        for columns in tables(used if is_plain else None, ROWS):
            count = len(next(iter(columns.values())))
            file.tally.bytes_read = size
            yield Raw(np.arange(begin, begin + count), columns=columns)
            begin += count

    rows = [row | dict(flattened(row)) for row in sample]
    return Opened(rows, raws, tuple(first))


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


TARGETS = (
    (pa.string(), "date32 time large_string string_view"),
    (pa.float64(), "decimal floating"),
    (pa.int64(), "integer"),
)
"""Types of columns, and the kinds that become them."""


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as numbers or text; times as dates with their zone."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        zone = "UTC" if getattr(kind, "tz", None) else None
        return pc.cast(pc.cast(column, pa.timestamp("ns", zone)), pa.string())
    if pa.types.is_duration(kind):
        return pc.cast(pc.cast(column, pa.duration("ns")), pa.int64())
    for target, names in TARGETS:
        if any(getattr(pa.types, f"is_{name}")(kind) for name in names.split()):
            return pc.cast(column, target)
    return column
