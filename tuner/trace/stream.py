"""Trace files of any size: looked through, imported, cut, without holding them in memory."""

import math
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tuner.errors import TraceError
from tuner.system import interruption
from tuner.trace.columns import Columns, columns_of_batches
from tuner.trace.formats.columnar.batch import ABSENT, ROWS, Batch, Ints, merged
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader, header_line
from tuner.trace.formats.reading.record import Tally
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TableOptions
from tuner.trace.trace import (
    DECIMALS_MS,
    Trace,
    counted,
    cut_header,
    digest,
    microseconds,
    reading_warnings,
    request_of,
)

COPY_BYTES = 2**20

MOST_ROWS = 10**8
"""Rows that are read at most: a day of more than a thousand requests a second. Packed, a billion
equal rows take half a megabyte, and each that is read takes up to 50 bytes of memory."""

Tell = Callable[[Tally], None]
"""Is told now and then how far the reading is."""


@dataclass(frozen=True, slots=True)
class Input:
    """A trace file and how to read it."""

    path: Path
    format_name: str | None = None
    time_unit: TimeUnit | None = None
    allow_text: bool = False
    asked: TableOptions = field(default_factory=TableOptions)
    """What the user says of a table."""

    name: str | None = None
    """What messages call the file, if not by its path."""

    @property
    def place(self) -> str:
        return self.name or str(self.path)

    def open(self) -> tuple[Source, Tally]:
        return open_trace(
            self.path,
            format_name=self.format_name,
            time_unit=self.time_unit,
            allow_text=self.allow_text,
            asked=self.asked,
            place=self.place,
        )


def stdin_input() -> Path:
    """Return a file that holds all of standard input until the process ends, for it is read twice.

    Raises TraceError where there is no room for it.
    """
    descriptor, name = tempfile.mkstemp(prefix="tuner-stdin-")
    path = Path(name)
    interruption.ends_with_us(partial(path.unlink, missing_ok=True))
    with os.fdopen(descriptor, "wb") as file:
        try:
            shutil.copyfileobj(sys.stdin.buffer, file, COPY_BYTES)
        except OSError as problem:
            raise TraceError(
                f"stdin: cannot be kept in {path.parent}: {problem.strerror}",
                hint="Free some space, or name another folder with TMPDIR.",
            ) from None
    return path


@dataclass(frozen=True, slots=True)
class TickSpread:
    """Arrivals moved within the grid's ticks, where the clock had put them all at one time."""

    tick_ms: float
    seed: int


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of one pass over a file."""

    header: TraceHeader
    columns: Columns
    origin_ms: float
    """What the stamps of the file count from."""

    warnings: tuple[str, ...]
    source: Source
    index: "_Index"
    status: tuple[int, int, int]
    """What the file system said of the file before it was read."""


class Draft:
    """The rows in canonical form, put down while they are first read: one reading less.

    It holds unless a row that comes later turns out to be the first arrival.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._origin_ms: float | None = None
        self._holds = True

    def through(self, batches: Iterable[Batch], *, absolute: bool) -> Iterator[Batch]:
        """Yield the rows, and put them down."""
        for batch in batches:
            if self._holds:
                self._add(batch, absolute=absolute)
            yield batch

    def copy(self, out: BinaryIO, *, origin_ms: float) -> bool:
        """Write the rows, if they count from this origin."""
        if not self._holds or (self._origin_ms or 0.0) != origin_ms:
            return False
        self._file.seek(0)
        shutil.copyfileobj(self._file, out, COPY_BYTES)
        return True

    def _add(self, batch: Batch, *, absolute: bool) -> None:
        if absolute:
            stamps_ms = batch.times["timestamp"]
            if self._origin_ms is None:
                self._origin_ms = float(stamps_ms[0])
            since_ms = np.round(stamps_ms - self._origin_ms, DECIMALS_MS)
            self._holds = bool(since_ms.min() >= 0)
            batch = batch.moved(since_ms)
        if self._holds:
            self._file.write(_lines_of(batch))


class HeldPart:
    """The rows of a known part, held while all are first read: one reading less.

    They are those of the part unless a row that comes later turns out to be the first arrival.
    """

    def __init__(self, start_s: float, length_s: float) -> None:
        self._begin_ms, self._end_ms = start_s * 1000 - 1, (start_s + length_s) * 1000 + 1
        self._origin_ms: float | None = None
        self._inside: list[Batch] = []

    def through(self, batches: Iterable[Batch], *, absolute: bool) -> Iterator[Batch]:
        """Yield the rows, and hold those of the part."""
        for batch in batches:
            stamps_ms = batch.times["timestamp"]
            if self._origin_ms is None:
                self._origin_ms = float(stamps_ms.min()) if absolute else 0.0
            since_ms = stamps_ms - self._origin_ms
            inside = (since_ms >= self._begin_ms) & (since_ms <= self._end_ms)
            if inside.any():
                self._inside.append(batch.take(inside))
            yield batch

    def rows(self, origin_ms: float) -> Sequence[Batch] | None:
        """Return them, if they count from this origin."""
        return self._inside if self._origin_ms == origin_ms else None


class _Index:
    """The times that each block of the file holds.

    By it a part is read without the rest, and the rest in order without being held.
    """

    def __init__(self) -> None:
        self.spans_ms: dict[int, tuple[float, float]] = {}

    def through(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            stamps_ms = batch.times["timestamp"]
            first_ms, last_ms = self.spans_ms.get(batch.block, (math.inf, -math.inf))
            self.spans_ms[batch.block] = (
                min(first_ms, float(stamps_ms.min())),
                max(last_ms, float(stamps_ms.max())),
            )
            yield batch

    def blocks(self, begin_ms: float, end_ms: float) -> frozenset[int]:
        """Return the blocks with a stamp from ``begin_ms`` to ``end_ms``."""
        return frozenset(
            block
            for block, (first_ms, last_ms) in self.spans_ms.items()
            if first_ms <= end_ms and last_ms >= begin_ms
        )

    def later_ms(self) -> dict[int, float]:
        """Return for each block the first of all times in those that follow it."""
        found: dict[int, float] = {}
        first_ms = math.inf
        for block in sorted(self.spans_ms, reverse=True):
            found[block] = first_ms
            first_ms = min(first_ms, self.spans_ms[block][0])
        return found


def scan(file: Input, tell: Tell, *, draft: Draft | HeldPart | None = None) -> Scan:
    """Read all rows once. Raises TraceError for a file that cannot be read as a trace."""
    source, tally = file.open()
    before = _status(file.path)
    index = _Index()
    batches = index.through(telling(source.by_columns(), tally, tell))
    columns, origin_ms = columns_of_batches(
        batches if draft is None else draft.through(batches, absolute=source.absolute),
        block_size=source.header.block_size,
        absolute=source.absolute,
    )
    dated = source.absolute and not source.undated
    header = counted(source.header, tally, origin_ms=origin_ms if dated else None)
    warnings = reading_warnings(source.header, tally)
    return Scan(header, columns, origin_ms, warnings, source, index, before)


def convert(  # noqa: PLR0913 - what was read, where to, and how
    file: Input,
    scanned: Scan,
    out: BinaryIO,
    tell: Tell,
    *,
    spread: TickSpread | None,
    draft: Draft,
) -> None:
    """Write a scanned file in canonical form, its rows in its own order.

    Raises TraceError when it has changed since the scan.
    """
    header = scanned.header
    if spread is not None:
        note = f"spread evenly within ticks of {spread.tick_ms:g} ms, seed {spread.seed}"
        header = replace(header, notes=(*header.notes, note))
    out.write(header_line(header))
    if spread is None and draft.copy(out, origin_ms=scanned.origin_ms):
        return
    source, tally = file.open()
    rng = random.Random(spread.seed if spread else 0)  # noqa: S311 - a replay, no secret
    for batch in telling(source.by_columns(), tally, tell):
        since_ms = batch.times["timestamp"] - scanned.origin_ms
        if spread is not None:
            since_ms = since_ms + [spread.tick_ms * rng.random() for _ in range(len(batch))]
        out.write(_lines_of(batch.moved(np.round(since_ms, DECIMALS_MS))))
    _check_unchanged(file, scanned)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a file in order of arrival, by columns: most of it is only written again."""

    header: TraceHeader
    batches: Sequence[Batch]

    def lines(self) -> Iterator[bytes]:
        """Yield the canonical form, in pieces."""
        yield header_line(self.header)
        yield from map(_lines_of, self.batches)

    def columns(self) -> Columns:
        found, _ = columns_of_batches(
            self.batches, block_size=self.header.block_size, absolute=False
        )
        return found

    def trace(self) -> Trace:
        """Return the same as requests, to be chosen one by one."""
        rows = (row for batch in self.batches for row in batch.rows())
        requests = tuple(request_of(row, position) for position, row in enumerate(rows))
        return Trace(self.header, requests, digest(requests, self.header.block_size))


def excerpt(  # noqa: PLR0913 - what was read, and which part of it
    file: Input,
    scanned: Scan,
    tell: Tell,
    *,
    start_s: float,
    length_s: float,
    held: HeldPart | None = None,
) -> Excerpt:
    """Return the requests that arrive in [start_s, start_s + length_s), with their row numbers.
    Their times stay.

    Of a file that is read by blocks, only blocks that hold such a time are read again, and none
    where the rows were held. Raises TraceError when there are none.
    """
    first_us, end_us = microseconds(start_s), microseconds(start_s + length_s)
    inside: list[Batch] = []
    rows: Iterable[Batch] | None = None if held is None else held.rows(scanned.origin_ms)
    if rows is None:
        rows = _again(file, scanned, tell, start_s * 1000, (start_s + length_s) * 1000)
    for batch in rows:
        arrivals_us = np.rint((batch.times["timestamp"] - scanned.origin_ms) * 1000)
        chosen = (arrivals_us >= first_us) & (arrivals_us < end_us)
        if chosen.any():
            inside.append(batch.moved(arrivals_us / 1000).take(chosen))
    _check_unchanged(file, scanned)
    if not inside:
        first_s, last_s = scanned.columns.arrival_s[[0, -1]]
        raise TraceError(
            f"{file.place}: no request arrives in {start_s:g}s+{length_s:g}s",
            hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
        )
    arrivals_s = scanned.columns.arrival_s
    before = int(np.searchsorted(np.rint(arrivals_s * 1e6), first_us))
    return Excerpt(scanned.header, [*_numbered(_by_arrival(inside), before)])


def since(part: Excerpt, *, start_s: float, length_s: float) -> Excerpt:
    """Return an excerpt of that time with ``start_s`` as its origin."""
    rows = sum(map(len, part.batches))
    moved = [
        batch.moved(np.round(batch.times["timestamp"] - start_s * 1000, DECIMALS_MS))
        for batch in part.batches
    ]
    return Excerpt(cut_header(part.header, rows, start_s=start_s, length_s=length_s), moved)


def in_order(file: Input, scanned: Scan, tell: Tell) -> Iterator[Batch]:
    """Yield a scanned file's rows in order of arrival, those of one time in their own order.

    Only rows that are out of order are held. Raises TraceError at the end when the file has changed
    since the scan.
    """
    later_ms = scanned.index.later_ms()
    held: list[Batch] = []
    again = _again(file, scanned, tell, -math.inf, math.inf)
    for block, batches in groupby(again, key=attrgetter("block")):
        found = _by_arrival([*held, *batches])
        ready = [batch.times["timestamp"] <= later_ms[block] for batch in found]
        held = [one.take(~yes) for one, yes in zip(found, ready, strict=True) if not yes.all()]
        yield from (one.take(yes) for one, yes in zip(found, ready, strict=True) if yes.any())
    _check_unchanged(file, scanned)


def _by_arrival(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Return the rows in order of arrival; those of one time keep their order."""
    stamps_ms = [batch.times["timestamp"] for batch in batches]
    each = [
        batch
        if (stamps[1:] >= stamps[:-1]).all()
        else batch.take(np.argsort(stamps, kind="stable"))
        for batch, stamps in zip(batches, stamps_ms, strict=True)
    ]
    if all(
        one.times["timestamp"][-1] <= after.times["timestamp"][0] for one, after in pairwise(each)
    ):
        return each
    whole = merged(batches, np.argsort(np.concatenate(stamps_ms), kind="stable"))
    return [
        whole.take(np.arange(at, min(at + ROWS, len(whole)))) for at in range(0, len(whole), ROWS)
    ]


def _numbered(batches: Iterable[Batch], before: int) -> Iterator[Batch]:
    """Yield the rows with their numbers in the whole trace, where they are others than here."""
    position = 0
    for batch in batches:
        places: Ints = np.arange(position, position + len(batch))
        position += len(batch)
        known = batch.counts.get("row")
        numbers = places + before
        if known is not None:
            numbers = np.where(known == ABSENT, numbers, known)
        counts = {**batch.counts, "row": np.where(numbers == places, ABSENT, numbers)}
        yield replace(batch, counts=counts)


def _again(
    file: Input, scanned: Scan, tell: Tell, begin_ms: float, end_ms: float
) -> Iterator[Batch]:
    """Yield the batches that may hold such times, from the origin on, read once more."""
    if scanned.source.again is None:
        source, tally = file.open()
        return telling(source.by_columns(), tally, tell)
    origin_ms = scanned.origin_ms
    return scanned.source.again(
        scanned.index.blocks(origin_ms + begin_ms - 1, origin_ms + end_ms + 1)
    )


def telling(batches: Iterable[Batch], tally: Tally, tell: Tell) -> Iterator[Batch]:
    """Yield the batches, and tell how much of the file was read by then. Raises TraceError for more
    rows than are held."""
    for batch in batches:
        if tally.rows_read > MOST_ROWS:
            raise TraceError(
                f"{tally.place}: more than {MOST_ROWS:,} rows", hint="Cut it: a day says enough."
            )
        yield batch
        tell(tally)


def _status(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_unchanged(file: Input, scanned: Scan) -> None:
    if _status(file.path) != scanned.status:
        raise TraceError(
            f"{file.place}: changed while it was read",
            hint="Wait until nothing writes to it any more.",
        )


def _lines_of(batch: Batch) -> bytes:
    from tuner.trace.formats.columnar.json_lines import lines_of  # noqa: PLC0415 - loads pyarrow

    return lines_of(batch)
