"""Reads a table by its plan: clean blocks by columns, rows that have something to say one by
one."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuner.errors import TraceError
from tuner.system.printable import printable
from tuner.trace.formats.columnar.arrow import SMALL_BYTES, parts, quotes_close
from tuner.trace.formats.columnar.batch import ROWS, Batch, merged
from tuner.trace.formats.reading.exports import records
from tuner.trace.formats.reading.json_rows import objects
from tuner.trace.formats.reading.record import Row
from tuner.trace.formats.reading.source import Source, columnar
from tuner.trace.formats.reading.trace_file import TableOptions, TraceFile
from tuner.trace.tables.arrow_files import ArrowFile
from tuner.trace.tables.columns import Columnar
from tuner.trace.tables.nested import at, holds_text
from tuner.trace.tables.order import TimesInOrder
from tuner.trace.tables.plan import Refusal, Shape, TablePlan, header_of, refused
from tuner.trace.tables.rows import Converter, Dropped
from tuner.trace.tables.shape import FOOTER, TYPES, is_drawn, planned, rows_of_document


class TableReader:
    """Reads one table; knows the names that it met, so that a second reading names them alike."""

    def __init__(self, lines: TraceFile, shape: Shape, plan: TablePlan) -> None:
        self.lines, self.shape, self.plan = lines, shape, plan
        self.converter = Converter(plan)
        self.columnar = Columnar(shape, plan, self.converter)
        self.order = TimesInOrder(plan, lines.place, unit="row" if shape.whole else "line")

    def batches(self) -> Iterator[Batch]:
        """Yield the rows; count those that are dropped. Raises TraceError for a broken document."""
        if self.shape.whole or not self._is_by_lines():
            yield from self._of_objects()
            return
        for block_number, (first, block) in enumerate(self._blocks()):
            for batch in self._read(first, block):
                yield self.order.checked(replace(batch, block=block_number), first)
        self.say_unknown()

    def again(self, only: Collection[int]) -> Iterator[Batch]:
        """Yield the rows of some blocks once more, and count nothing."""
        self.lines = self.lines.again()
        needed = islice(self._blocks(), max(only, default=-1) + 1)
        for block_number, (first, block) in enumerate(needed):
            if block_number in only:
                for batch in self._read(first, block):
                    yield replace(batch, block=block_number)

    def _is_by_lines(self) -> bool:
        return bool(self.shape.delimiter) or not self.lines.spans_lines()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield whole rows: a cell in quotes may run over line ends."""
        held, held_first = b"", 0
        for first, block in self.lines.blocks():
            if held:
                block, first = held + b"\n" + block, held_first  # noqa: PLW2901 - with what was left
                held = b""
            is_short = len(block) < self.lines.longest * 2
            if self.shape.delimiter and is_short and b'"' in block and block.count(b'"') % 2:
                cut = _cut(block)
                held, held_first = block[cut + 1 :], first + block.count(b"\n", 0, cut) + (cut >= 0)
                block = block[: max(cut, 0)]  # noqa: PLW2901
            if block:
                yield first, block
        if held:
            yield held_first, held

    def _read(self, first: int, block: bytes, *, small: bool = False) -> Iterator[Batch]:
        begin = self.shape.first_line
        while self.shape.delimiter and first < begin and block:
            _, _, block = block.partition(b"\n")
            first += 1
        if not block:
            return
        found = self.columnar.batch(block)
        if found is not None:
            yield from self._checked(first, block, *found)
        elif not small and len(block) > SMALL_BYTES and self.columnar.can and _quotes_close(block):
            for place, part in parts(first, block):
                yield from self._read(place, part, small=True)
        else:
            numbered = enumerate(block.split(b"\n"), first)
            yield from _batched(row for _, row in self._rows(numbered))

    def _checked(
        self, first: int, block: bytes, batch: Batch, dirty: NDArray[np.bool_]
    ) -> Iterator[Batch]:
        """Yield the rows of a block; those that have something to say are read one by one."""
        lines = block.split(b"\n") if dirty.any() else []
        odd = ((first + at, lines[at]) for at in np.flatnonzero(dirty).tolist())
        yield from self.joined(first, batch, dirty, list(self._rows(odd)))

    def joined(
        self,
        first: int,
        batch: Batch | None,
        dirty: NDArray[np.bool_],
        slow: Sequence[tuple[int, Row]],
    ) -> Iterator[Batch]:
        """Yield the clean rows of a block and those read one by one, in the order of the file."""
        kept = int((~dirty).sum())
        self.lines.tally.rows_read += kept
        self.lines.tally.rows_kept += kept
        if batch is not None and kept == len(batch):
            yield batch
        elif batch is None or not kept:
            yield from _batched(row for _, row in slow)
        elif not slow:
            yield batch.take(~dirty)
        else:
            places = [*np.flatnonzero(~dirty).tolist(), *(place - first for place, _ in slow)]
            order = np.argsort(np.array(places, np.int64), kind="stable")
            yield merged([batch.take(~dirty), Batch.of([row for _, row in slow])], order)

    def _rows(self, numbered: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Row]]:
        """Yield (line number, row) of some lines, read one by one."""
        if not self.shape.delimiter:
            stripped = ((place, line.strip()) for place, line in numbered)
            yield from self._of_json((place, line) for place, line in stripped if line)
            return
        own, width = [*self.shape.headings[: self.shape.width]], self.shape.width
        bare = ((place, line.removesuffix(b"\r")) for place, line in numbered)
        counted = ((place, line) for place, line in bare if self._counts(place, line))
        for place, cells in records(counted, self.shape.delimiter, errors="surrogateescape"):
            if cells is not None and self.shape.shift == -1 and len(cells) == width + 1:
                del cells[-1]
            if cells == own or (cells and all(TYPES.fullmatch(cell) for cell in cells)):
                continue  # of another table behind the first
            if cells is not None and sorted(cells) == sorted(own) and self.shape.headed:
                raise TraceError(
                    f"{self.lines.place}:{place}: headings in another order than above",
                    hint="Cut the file there, and import each part by itself.",
                )
            if cells is None or len(cells) != width:
                at_end = place == self.lines.unterminated
                self.lines.tally.lose("truncated" if at_end else "malformed", place)
                continue
            yield from self.converted(self.shape.with_inside(cells, self.columnar.wanted), place)

    def _counts(self, number: int, line: bytes) -> bool:
        """Whether a line is part of a row: not blank, not drawn, not too long."""
        bare = line.strip()
        if len(line) > self.lines.longest:
            self.lines.too_long(number)
            return False
        return bool(bare) and not (
            is_drawn(bare, self.shape.delimiter.encode()) or FOOTER.fullmatch(bare)
        )

    def _of_objects(self) -> Iterator[Batch]:
        if self.shape.whole:
            try:
                document = msgspec.json.decode(self.lines.document())
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise TraceError(
                    f"{self.lines.place}: {error}",
                    hint="Export it again: it is cut off, or not JSON in UTF-8.",
                ) from error
            found = enumerate(rows_of_document(document), 1)
            each = (self.converted(self._cells(one), place) for place, one in found)
            numbered: Iterator[tuple[int, Row]] = (row for some in each for row in some)
        else:
            numbered = self._of_json(iter(self.lines))
        while some := list(islice(numbered, ROWS)):
            yield self.order.checked(Batch.of([row for _, row in some]), some[0][0])
        self.say_unknown()

    def _of_json(self, stream: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Row]]:
        for place, found in objects(self.lines, stream):
            yield from self.converted(self._cells(found), place)

    def _cells(self, found: dict[str, Any]) -> list[Any]:
        return [at(found, heading) for heading in self.shape.headings]

    def converted(self, cells: Sequence[Any], number: int) -> Iterator[tuple[int, Row]]:
        for place in self.plan.text:
            if holds_text(cells[place]):
                self.lines.refuse_text(number, self.shape.headings[place])
        tally = self.lines.tally
        tally.rows_read += 1
        row = self.converter.row(cells)
        if isinstance(row, Dropped):
            tally.drop(row.reason, number, row.heading)
        else:
            tally.rows_kept += 1
            yield number, row

    def say_unknown(self) -> None:
        """Note a status that is not understood, once all rows are read."""
        if (status := self.converter.unknown_status) is not None:
            self.lines.tally.note(
                f"status {printable(status)!r} is not known: such requests count as served"
            )


def of_arrow_file(lines: TraceFile, asked: TableOptions) -> Source:
    """Return the source of a table in a Parquet or Arrow file. Raises TraceError."""
    file = ArrowFile(lines.path)
    shape, plan = planned(file.shape, asked)
    if isinstance(plan, Refusal):
        raise refused(lines.place, shape, plan, asked)
    lines.tally.said += plan.said
    reader = _ArrowReader(lines, file, shape, plan)
    return columnar(
        header_of(plan), reader.batches(), again=reader.again, absolute=True, undated=not plan.dated
    )


class _ArrowReader:
    """Reads the rows of a Parquet or Arrow file; their numbers stand for lines."""

    def __init__(self, lines: TraceFile, file: ArrowFile, shape: Shape, plan: TablePlan) -> None:
        self.lines, self.file, self.shape, self.plan = lines, file, shape, plan
        self.reader = TableReader(lines, shape, plan)
        self.reader.order.unit = "row"
        used = self.reader.columnar.wanted
        paths = [shape.headings[place] for place in used if place >= shape.width]
        self.wanted = {
            place
            for place, heading in enumerate(shape.headings[: shape.width])
            if place in used or any(path.startswith(f"{heading}.") for path in paths)
        }

    def batches(self, only: Collection[int] | None = None) -> Iterator[Batch]:
        self.file.read = self.lines.counted
        first = 1
        for number, table in enumerate(self.file.blocks(self.wanted)):
            size = len(next(iter(table.values())))
            if only is None or number in only:
                for found in self._read(first, table, size):
                    batch = replace(found, block=number)
                    yield self.reader.order.checked(batch, first) if only is None else batch
            first += size
        self.reader.say_unknown()

    def again(self, only: Collection[int]) -> Iterator[Batch]:
        self.reader.lines = self.lines = self.lines.again()
        return self.batches(only)

    def _read(self, first: int, table: dict[int, Any], size: int) -> Iterator[Batch]:
        found = self.reader.columnar.of_table(table) if self.reader.columnar.can else None
        batch, dirty = found if found is not None else (None, np.ones(size, np.bool_))
        places = np.flatnonzero(dirty)
        cells, used = self.file.cells(table, places), self.reader.columnar.wanted
        slow = [
            one
            for number, place in enumerate(places.tolist())
            for row in [[cells[c][number] if c in cells else None for c in range(self.shape.width)]]
            for one in self.reader.converted(self.shape.with_inside(row, used), first + place)
        ]
        yield from self.reader.joined(first, batch, dirty, slow)


def _quotes_close(block: bytes) -> bool:
    return b'"' not in block or quotes_close(block)


def _cut(block: bytes) -> int:
    """Return the last line end of a block that stands outside of quotes; -1 for none."""
    end = len(block)
    is_open = True
    while is_open and end > 0:
        begin = block.rfind(b"\n", 0, end)
        is_open ^= block.count(b'"', max(begin, 0), end) % 2 == 1
        end = begin
    return end


def _batched(rows: Iterator[Row]) -> Iterator[Batch]:
    while some := list(islice(rows, ROWS)):
        yield Batch.of(some)
