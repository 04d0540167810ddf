"""Requests as production saw them: a trace, loaded, cut and written."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tuner.errors import TraceError, UsageError
from tuner.system.files import whole_file
from tuner.trace.columns import DECIMALS_MS, Columns, columns_of_table, lines_of, table_of
from tuner.trace.record import FIELDS, SCHEDULE, Field, Status, TraceHeader, header_line
from tuner.trace.values import date_ms, date_of

__all__ = ["Status", "Trace", "TraceHeader", "TraceRequest", "load", "write"]

LENGTHS = ("input_length", "output_length")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Times are seconds from the trace's origin; lengths are tokens."""

    row: int
    """Position among the rows of the whole trace, in order of arrival. It seeds the prompt, so that
    a cut of the trace sends the same prompts as the whole."""
    arrival_s: float
    input_length: int
    """0 where a request that was never served does not say."""
    output_length: int
    """Generated tokens; of the longest sequence if n > 1."""
    status: Status = "ok"
    n: int = 1
    output_lengths: tuple[int, ...] = ()
    max_tokens: int | None = None
    hash_ids: tuple[int, ...] = ()
    request_id: str | None = None
    session_id: str | None = None
    turn: int | None = None
    parent_id: str | None = None
    e2e_s: float | None = None
    """As production saw it: from arrival to the last token, or to the abort."""
    ttft_s: float | None = None
    queue_s: float | None = None
    priority: int | None = None
    replica: int | None = None
    holds_place: bool = False
    """It is one of those in flight that a schedule asks for; its session is its place."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace in memory, in order of arrival.

    ``table`` has a column for each key of the canonical record that any request has, in ms and
    tokens; null is absent.
    """

    header: TraceHeader
    table: pa.Table
    warnings: tuple[str, ...] = ()
    """What a reader should know of how the file was read."""

    @staticmethod
    def of(header: TraceHeader, requests: Sequence[TraceRequest]) -> "Trace":
        """Return a trace of these requests, which are in order of arrival."""
        return Trace(header, table_of(requests))

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def requests(self) -> tuple[TraceRequest, ...]:
        """The requests one by one."""
        held = {
            field.attribute: _python(field, self.table.column(field.key).to_pylist())
            for field in FIELDS
            if field.key in self.table.column_names
        }
        held["row"] = self.rows.tolist()
        held["holds_place"] = [self.header.source == SCHEDULE] * len(self)
        rows = zip(*held.values(), strict=True)
        return tuple(TraceRequest(**dict(zip(held, row, strict=True))) for row in rows)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Each request's position in the whole trace."""
        places = np.arange(len(self))
        if "row" not in self.table.column_names:
            return places
        rows = self.table.column("row").fill_null(-1).to_numpy().astype(np.int64)
        return np.where(rows < 0, places, rows)

    @cached_property
    def columns(self) -> Columns:
        """What decides over the traffic, as arrays."""
        return columns_of_table(self.table, block_size=self.header.block_size)

    @cached_property
    def digest(self) -> str:
        """``sha256:…`` of the canonical rows: the same for one traffic in any format."""
        table = self.table
        for key in {*LENGTHS} & {*table.column_names}:
            table = _with(table, key, table.column(key).fill_null(0))
        result = hashlib.sha256(f"block_size {self.header.block_size}\n".encode())
        for lines in lines_of(table):
            result.update(lines)
        return f"sha256:{result.hexdigest()}"

    def lines(self) -> Iterator[bytes]:
        """Yield the canonical form, some thousand lines at a time."""
        yield header_line(self.header)
        yield from lines_of(self.table)

    def cut(self, start_s: float, length_s: float) -> "Trace":
        """Return the requests that arrive in [start_s, start_s + length_s), from ``start_s`` on.

        Raises TraceError where there is none.
        """
        arrivals_us = np.rint(self.columns.arrival_s * 1e6)
        first_us, end_us = round(start_s * 1e6), round((start_s + length_s) * 1e6)
        chosen = (arrivals_us >= first_us) & (arrivals_us < end_us)
        part = self._part(f"cut {start_s:g}s+{length_s:g}s", chosen)
        begin_ms = date_ms(self.header.time_origin)
        origin = None if begin_ms is None else date_of(begin_ms + start_s * 1000)
        header = replace(part.header, time_origin=origin)
        return Trace(header, moved(part.table, -start_s * 1000), self.warnings)

    def of_replica(self, replica: int) -> "Trace":
        """Return what one of the recorded servers got. Raises TraceError where it got nothing."""
        return self._part(f"replica {replica}", self.columns.replica == replica)

    def spread(self, tick_ms: float, seed: int) -> "Trace":
        """Return the requests with arrivals moved within the ticks of a coarse clock, evenly."""
        moves_ms = tick_ms * np.random.default_rng(seed).random(len(self))
        note = f"spread evenly within ticks of {tick_ms:g} ms, seed {seed}"
        header = replace(self.header, notes=(*self.header.notes, note))
        table, _ = sorted_by_arrival(moved(self.table, moves_ms), absolute=False)
        return Trace(header, table, self.warnings)

    def _part(self, note: str, chosen: NDArray[np.bool_]) -> "Trace":
        """Return some of the requests as a trace of their own, with their rows in this one.

        Raises TraceError where there is none.
        """
        if not chosen.any():
            first_s, last_s = self.columns.arrival_s[[0, -1]]
            runs = f"The trace runs from {first_s:.1f}s to {last_s:.1f}s"
            known = [number for number in np.unique(self.columns.replica).tolist() if number >= 0]
            raise TraceError(f"{note}: no request", hint=f"{runs}, with the replicas {known[:20]}.")
        places = np.flatnonzero(chosen)
        rows = self.rows[places]
        column = pa.array(rows, pa.int32(), mask=rows == np.arange(len(rows)))
        table = _with(self.table.take(pa.array(places)), "row", column)
        count, notes = len(places), (*self.header.notes, note)
        header = replace(self.header, rows_read=count, rows_kept=count, dropped={}, notes=notes)
        return Trace(header, table, self.warnings)


def load(path: Path) -> Trace:
    """Read a whole trace, in order of arrival; requests of one time keep their order.

    Raises TraceError for a file that cannot be read as a trace; rows that cannot be used are
    counted in the header's ``dropped`` and named in the warnings.
    """
    from tuner.trace.reading import read  # noqa: PLC0415 - it knows of traces

    return read(path)


def write(trace: Trace, path: Path, *, force: bool = False, mode: int = 0o666) -> None:
    """Write the canonical form, whole or not at all.

    Raises TargetError where the file cannot be written, or is there and ``force`` is not given.
    """
    with whole_file(path, force=force, mode=mode) as file:
        file.writelines(trace.lines())


def join(paths: Sequence[Path]) -> Trace:
    """Return one trace out of the files of one recording: of several processes, or of restarts.

    Raises TraceError for files that are not parts of one recording, UsageError for a file that is
    named twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a file is named twice", hint="Name each file of the recording once.")
    traces = [load(path) for path in paths]
    headers = [trace.header for trace in traces]
    kinds = [(header.source, header.block_size, header.missing) for header in headers]
    origins_ms = [date_ms(header.time_origin) or 0.0 for header in headers]
    for path, kind, origin_ms in zip(paths, kinds, origins_ms, strict=True):
        if kind != kinds[0] or not origin_ms:
            raise TraceError(
                f"{path}: no time_origin, or not the source, block_size and missing of {paths[0]}",
                hint="Join the files of one recording only.",
            )
    begin_ms = min(origins_ms)
    tables = [
        moved(trace.table, origin_ms - begin_ms)
        for trace, origin_ms in zip(traces, origins_ms, strict=True)
    ]
    joined = pa.concat_tables(tables, promote_options="default")
    joined = joined.select([name for name in joined.column_names if name != "row"])
    table, _ = sorted_by_arrival(joined, absolute=False)
    header = replace(
        headers[0],
        time_origin=date_of(begin_ms),
        rows_read=sum(each.rows_read for each in headers),
        rows_kept=len(table),
        dropped=dict(sum((Counter(each.dropped) for each in headers), Counter[str]())),
    )
    return Trace(header, table)


def sorted_by_arrival(table: pa.Table, *, absolute: bool) -> tuple[pa.Table, float]:
    """Return a table in order of arrival, and the first time in ms.

    Requests of one time keep their order. ``absolute``: times then count from the first.
    """
    stamps_ms = table.column("timestamp").to_numpy()
    if len(stamps_ms) and (stamps_ms[1:] < stamps_ms[:-1]).any():
        table = table.take(np.argsort(stamps_ms, kind="stable"))
    origin_ms = table.column("timestamp")[0].as_py() if absolute else 0.0
    return moved(table, -origin_ms), origin_ms


def moved(table: pa.Table, by_ms: float | NDArray[np.float64]) -> pa.Table:
    """Return a table whose arrivals are so much later."""
    stamps_ms = np.round(table.column("timestamp").to_numpy() + by_ms, DECIMALS_MS)
    return _with(table, "timestamp", pa.array(stamps_ms))


def _python(field: Field, values: list[Any]) -> list[Any]:
    """Return what requests hold of a column: seconds, tuples, and defaults for what is absent."""
    if field.kind == "time":
        return [each and round(each / 1000, 6) for each in values]
    if field.kind == "list":
        return [tuple(each or ()) for each in values]
    default = 0 if field.key in LENGTHS else field.default
    return values if default is None else [default if each is None else each for each in values]


def _with(table: pa.Table, key: str, column: pa.Array) -> pa.Table:
    """Return a table with this column."""
    if key not in table.column_names:
        return table.append_column(key, column)
    return table.set_column(table.column_names.index(key), key, column)
