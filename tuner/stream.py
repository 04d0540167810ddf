"""Trace files of any size: looked through, imported, cut, without holding them in memory."""

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from tuner.errors import TraceError
from tuner.formats import canonical, open_trace
from tuner.formats.record import Row, Tally
from tuner.formats.source import Source, TimeUnit, TraceHeader
from tuner.trace import (
    Trace,
    TraceRequest,
    counted,
    digest,
    microseconds,
    reading_warnings,
    request_of,
    whole_ms,
)
from tuner.traffic.columns import Columns, columns_of_rows

ROWS_A_TELL = 2**16
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
class Spread:
    """Arrivals moved within the grid's ticks, where the clock had put them all at one time."""

    tick_ms: float
    seed: int


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass over a file found."""

    header: TraceHeader
    columns: Columns
    origin_ms: float
    """What the stamps of the file count from."""

    warnings: tuple[str, ...]


def scan(file: Input, tell: Tell) -> Scan:
    """Read all rows once. Raises TraceError for a file that cannot be read as a trace."""
    source, tally = file.open()
    columns, origin_ms = columns_of_rows(
        telling(source.rows, tally, tell),
        block_size=source.header.block_size,
        absolute=source.absolute,
    )
    dated = source.absolute and not source.undated
    header = counted(source.header, tally, origin_ms=origin_ms if dated else None)
    return Scan(header, columns, origin_ms, reading_warnings(source.header, tally))


def convert(
    file: Input, scanned: Scan, out: BinaryIO, tell: Tell, *, spread: Spread | None
) -> None:
    """Write a scanned file in canonical form, its rows in its own order."""
    header = scanned.header
    if spread is not None:
        note = f"spread evenly within ticks of {spread.tick_ms:g} ms, seed {spread.seed}"
        header = replace(header, notes=(*header.notes, note))
    source, tally = file.open()
    rows = telling(source.rows, tally, tell)
    if source.absolute or spread is not None:
        rows = _moved(rows, scanned.origin_ms, spread)
    out.write(canonical.header_line(header))
    out.writelines(map(canonical.row_line, rows))
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


def _moved(rows: Iterable[Row], origin_ms: float, spread: Spread | None) -> Iterator[Row]:
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
