"""Tables in Parquet and Arrow files: their columns by dotted paths, times as whole nanoseconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc, parquet

from tuner.errors import TraceError
from tuner.system.memory import at_most
from tuner.trace.formats.columnar.batch import ROWS
from tuner.trace.tables.plan import Shape
from tuner.trace.tables.shape import SAMPLE_ROWS

MARKS = (b"PAR1", b"ARROW1")
BREAKS = (
    pa.ArrowException,
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RecursionError,
    ValueError,
)
"""What Arrow raises of files that hold something else than they say, also where it makes values of
what it read: text that is none, times beyond all calendars, structs without end."""


STEP_BYTES = 2 << 30
"""What some rows may take while they are read, beside four times their file's size: a file of half
a megabyte can hold columns of a hundred gigabytes."""


class ArrowFile:
    """A Parquet or an Arrow file, read some rows at a time. Raises TraceError for a broken one, and
    for one that unpacks to more than the memory should hold."""

    def __init__(self, path: Path, read: Callable[[int], object] = lambda _: None) -> None:
        self.path, self.read = path, read
        self._most_bytes = STEP_BYTES + 4 * path.stat().st_size
        first = next(self._blocks(None, SAMPLE_ROWS), None)
        if first is None:
            raise TraceError(f"{path}: no rows", hint="Is the file complete?")
        with self._step():
            columns = [column.to_pylist() for column in first.values()]
        self.shape = Shape(tuple(first), tuple(zip(*columns, strict=True)))

    def blocks(self, wanted: set[int]) -> Iterator[dict[int, Any]]:
        """Yield the columns of these places, some rows at a time."""
        headings = self.shape.headings
        top = sorted({headings[place].partition(".")[0] for place in wanted})
        for flat in self._blocks(top, ROWS):
            with self._step():
                block = {place: flat[headings[place]] for place in wanted}
            yield block

    def cells(self, block: dict[int, Any], rows: Any) -> dict[int, list[Any]]:  # noqa: ANN401 - Arrow's
        """Return the values of some rows of a block."""
        with self._step():
            return {place: column.take(rows).to_pylist() for place, column in block.items()}

    def _blocks(self, columns: list[str] | None, rows: int) -> Iterator[dict[str, Any]]:
        """Yield so many rows at a time, each block unpacked in a step of its own."""
        batches = self._batches(columns, rows)
        while True:
            with self._step():
                batch = next(batches, None)
                flat = None if batch is None else _flat(batch)
            if flat is None:
                return
            yield flat

    def _batches(self, columns: list[str] | None, rows: int) -> Iterator[Any]:
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            if file.read(4) == MARKS[0]:
                whole = parquet.ParquetFile(self.path)
                total = max(1, whole.metadata.num_rows)
                for batch in whole.iter_batches(rows, columns=columns, use_threads=False):
                    self.read(size * len(batch) // total)
                    yield batch
                return
        with ipc.open_file(self.path) as whole:
            for number in range(whole.num_record_batches):
                batch = whole.get_batch(number)
                self.read(size // whole.num_record_batches)
                for begin in range(0, len(batch), rows):
                    yield batch.slice(begin, rows).select(columns or batch.schema.names)

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Bound what is done here, and explain what Arrow raises."""
        try:
            with at_most(self._most_bytes):
                yield
        except MemoryError:
            raise TraceError(
                f"{self.path}: some of its rows unpack to more than {self._most_bytes >> 20:,} MiB",
                hint="Write it again, with the columns that are needed.",
            ) from None
        except BREAKS as problem:
            reason = str(problem).partition("\n")[0][:200]
            raise TraceError(
                f"{self.path}: a broken Parquet or Arrow file: {reason}",
                hint="Copy the file again.",
            ) from None


def _flat(batch: Any) -> dict[str, Any]:  # noqa: ANN401 - Arrow's
    """Return columns by their dotted paths, as numbers, text and flags only."""
    found: dict[str, Any] = {}

    def add(path: str, column: Any) -> None:  # noqa: ANN401
        kind = column.type
        if pa.types.is_struct(kind):
            for place in range(kind.num_fields):
                name = kind.field(place).name
                add(f"{path}.{name}", pc.struct_field(column, [place]))
            return
        found[path] = _plain(column)

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        add(name, column)
    return found


def _plain(column: Any) -> Any:  # noqa: ANN401, PLR0911 - Arrow's, and one kind after another
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_timestamp(kind):
        return pc.cast(pc.cast(column, pa.timestamp("ns", kind.tz)), pa.int64())
    if pa.types.is_date32(kind) or pa.types.is_time(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_date64(kind):
        return pc.cast(pc.cast(column, pa.timestamp("ns")), pa.int64())
    if pa.types.is_duration(kind):
        return pc.cast(pc.cast(column, pa.duration("ns")), pa.int64())
    if pa.types.is_decimal(kind):
        return pc.cast(column, pa.float64())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_integer(kind):
        return pc.cast(column, pa.int64())
    return column
