"""Tables in Parquet and Arrow files: their columns by dotted paths, times as whole nanoseconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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
"""Errors that Arrow raises of files that hold something else than they say, also where it makes
values of what it read: text that is none, times beyond all calendars, structs without end."""


STEP_BYTES = 2 << 30
"""Bytes that some rows may take while they are read, beside four times their file's size: a file of
half a megabyte can hold columns of a hundred gigabytes."""


class _Leaf(NamedTuple):
    """A column that holds no others."""

    top: str
    """The name of the file's own column that it stands in."""

    path: str
    is_naive: bool
    """It holds times without a zone."""

    values: Any


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
            columns = [leaf.values.to_pylist() for leaf in first]
        self._tops = [leaf.top for leaf in first]
        self.shape = Shape(
            tuple(leaf.path for leaf in first),
            tuple(zip(*columns, strict=True)),
            naive=frozenset(place for place, leaf in enumerate(first) if leaf.is_naive),
        )

    def blocks(self, wanted: set[int]) -> Iterator[dict[int, Any]]:
        """Yield the columns of these places, some rows at a time. Raises TraceError, see the
        class."""
        headings = self.shape.headings
        differ = len({*headings}) == len(headings)  # otherwise their places alone tell them apart
        top = sorted({self._tops[place] for place in wanted}) if differ else None
        for leaves in self._blocks(top, ROWS):
            with self._step():
                by_path = {leaf.path: leaf.values for leaf in leaves}
                block = {
                    place: by_path[headings[place]] if differ else leaves[place].values
                    for place in wanted
                }
            yield block

    def cells(self, block: dict[int, Any], rows: Any) -> dict[int, list[Any]]:  # noqa: ANN401 - Arrow's
        """Return the values of some rows of a block."""
        with self._step():
            return {place: column.take(rows).to_pylist() for place, column in block.items()}

    def _blocks(self, columns: list[str] | None, rows: int) -> Iterator[list[_Leaf]]:
        """Yield so many rows at a time, each block unpacked in a step of its own."""
        batches = self._batches(columns, rows)
        while True:
            with self._step():
                batch = next(batches, None)
                leaves = None if batch is None else [*_leaves(batch)]
            if leaves is None:
                return
            yield leaves

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
                    some = batch.slice(begin, rows)
                    yield some if columns is None else some.select(columns)

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


def _leaves(batch: Any) -> Iterator[_Leaf]:  # noqa: ANN401 - Arrow's
    """Yield the columns of a batch and of its structs, as numbers, text and flags only."""

    def inside(top: str, path: str, column: Any) -> Iterator[_Leaf]:  # noqa: ANN401
        kind = column.type
        if not pa.types.is_struct(kind):
            yield _Leaf(top, path, _is_naive(kind), _plain(column))
            return
        for place in range(kind.num_fields):
            held = pc.struct_field(column, [place])
            yield from inside(top, f"{path}.{kind.field(place).name}", held)

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        yield from inside(name, name, column)


def _is_naive(kind: Any) -> bool:  # noqa: ANN401 - Arrow's
    """Whether a column is of times without a zone."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_date64(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)


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
