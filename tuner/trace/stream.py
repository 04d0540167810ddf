"""Trace files of any size: looked through, imported, cut, without holding them in memory."""

import random
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from tuner.errors import TraceError
from tuner.trace.columns import Columns, columns_of_rows
from tuner.trace.formats import canonical
from tuner.trace.formats.reading.record import Row, Tally
from tuner.trace.formats.reading.source import Source, TimeUnit, TraceHeader
from tuner.trace.formats.registry import open_trace
from tuner.trace.trace import (
    DECIMALS_MS,
    Trace,
    TraceRequest,
    counted,
    digest,
    microseconds,
    reading_warnings,
    request_of,
    whole_ms,
)

ROWS_A_TELL = 2**16
ROWS_A_BATCH = 2**12
COPY_BYTES = 2**20
UNKNOWN_ROW = -1

Tell = Callable[[float], None]
"""Is told the share of the work that is done, now and then."""


@dataclass(frozen=True, slots=True)
class Input:
    """A trace file and how to read it."""

    path: Path
    format_name: str | None = None
    time_unit: TimeUnit | None = None
    allow_text: bool = False

    def open(self) -> tuple[Source, Tally]:
        return open_trace(
            self.path,
            format_name=self.format_name,
            time_unit=self.time_unit,
            allow_text=self.allow_text,
        )


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


class Draft:
    """The rows in canonical form, put down while they are first read: one reading less.

    It holds unless a row that comes later turns out to be the first arrival.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._origin_ms = 0.0
        self._begun = False
        self._holds = True

    def through(self, rows: Iterable[Row], *, absolute: bool) -> Iterator[Row]:
        """Yield the rows, and put them down."""
        iterator = iter(rows)
        while batch := list(islice(iterator, ROWS_A_BATCH)):
            if self._holds:
                self._add(batch, absolute=absolute)
            yield from batch

    def copy(self, out: BinaryIO, *, origin_ms: float) -> bool:
        """Write the rows, if they count from this origin."""
        if not self._holds or self._origin_ms != origin_ms:
            return False
        self._file.seek(0)
        shutil.copyfileobj(self._file, out, COPY_BYTES)
        return True

    def _add(self, batch: list[Row], *, absolute: bool) -> None:
        if absolute:
            if not self._begun:
                self._origin_ms, self._begun = batch[0].timestamp, True
            stamps_ms = np.fromiter(map(attrgetter("timestamp"), batch), np.float64, len(batch))
            since_ms = np.round(stamps_ms - self._origin_ms, DECIMALS_MS)
            self._holds = bool(since_ms.min() >= 0)
            batch = [
                msgspec.structs.replace(row, timestamp=int(ms) if ms.is_integer() else ms)
                for row, ms in zip(batch, since_ms.tolist(), strict=True)
            ]
        self._file.write(canonical.row_lines(batch))


def scan(file: Input, tell: Tell, *, draft: Draft | None = None) -> Scan:
    """Read all rows once. Raises TraceError for a file that cannot be read as a trace."""
    source, tally = file.open()
    rows = telling(source.rows, tally, tell)
    columns, origin_ms = columns_of_rows(
        rows if draft is None else draft.through(rows, absolute=source.absolute),
        block_size=source.header.block_size,
        absolute=source.absolute,
    )
    dated = source.absolute and not source.undated
    header = counted(source.header, tally, origin_ms=origin_ms if dated else None)
    return Scan(header, columns, origin_ms, reading_warnings(source.header, tally))


def convert(  # noqa: PLR0913 - what was read, where to, and how
    file: Input,
    scanned: Scan,
    out: BinaryIO,
    tell: Tell,
    *,
    spread: TickSpread | None,
    draft: Draft,
) -> None:
    """Write a scanned file in canonical form, its rows in its own order."""
    header = scanned.header
    if spread is not None:
        note = f"spread evenly within ticks of {spread.tick_ms:g} ms, seed {spread.seed}"
        header = replace(header, notes=(*header.notes, note))
    out.write(canonical.header_line(header))
    if spread is None and draft.copy(out, origin_ms=scanned.origin_ms):
        return
    source, tally = file.open()
    rows = telling(source.rows, tally, tell)
    if source.absolute or spread is not None:
        rows = _moved(rows, scanned.origin_ms, spread)
    while batch := list(islice(rows, ROWS_A_BATCH)):
        out.write(canonical.row_lines(batch))
    _check_unchanged(file.path, scanned, tally)


def excerpt(file: Input, scanned: Scan, tell: Tell, *, start_s: float, length_s: float) -> Trace:
    """Return the requests that arrive in [start_s, start_s + length_s), with their row numbers.

    Raises TraceError when there are none.
    """
    source, tally = file.open()
    first_us, end_us = microseconds(start_s), microseconds(start_s + length_s)
    arrivals_us = array("q")
    inside: list[tuple[int, TraceRequest]] = []
    for index, row in enumerate(telling(source.rows, tally, tell)):
        arrivals_us.append(round((row.timestamp - scanned.origin_ms) * 1000))
        if first_us <= arrivals_us[-1] < end_us:
            inside.append((index, request_of(row, UNKNOWN_ROW, origin_ms=scanned.origin_ms)))
    _check_unchanged(file.path, scanned, tally)
    if not inside:
        first_s, last_s = scanned.columns.arrival_s[[0, -1]]
        raise TraceError(
            f"{file.path}: no request arrives in {start_s:g}s+{length_s:g}s",
            hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
        )
    position = np.empty(len(arrivals_us), np.int64)
    order = np.argsort(np.frombuffer(arrivals_us, np.int64), kind="stable")
    position[order] = np.arange(len(order))
    requests = tuple(
        replace(request, row=int(position[index])) if request.row == UNKNOWN_ROW else request
        for index, request in sorted(inside, key=lambda one: int(position[one[0]]))
    )
    return Trace(scanned.header, requests, digest(requests, scanned.header.block_size))


def _moved(rows: Iterable[Row], origin_ms: float, spread: TickSpread | None) -> Iterator[Row]:
    """Yield the rows with stamps from the origin, each a random part of a tick later."""
    rng = random.Random(spread.seed if spread else 0)  # noqa: S311 - a replay, no secret
    tick_ms = spread.tick_ms if spread else 0.0
    for row in rows:
        stamp_ms = row.timestamp - origin_ms + (tick_ms * rng.random() if tick_ms else 0.0)
        yield msgspec.structs.replace(row, timestamp=whole_ms(stamp_ms))


def telling(rows: Iterable[Row], tally: Tally, tell: Tell) -> Iterator[Row]:
    """Yield the rows, and tell how much of the file was read by then."""
    iterator = iter(rows)
    while batch := tuple(islice(iterator, ROWS_A_TELL)):
        yield from batch
        tell(tally.bytes_read / max(1, tally.bytes_total))


def _check_unchanged(path: Path, scanned: Scan, tally: Tally) -> None:
    if tally.rows_kept != len(scanned.columns):
        raise TraceError(
            f"{path}: changed while it was read", hint="Wait until nothing writes to it any more."
        )
