"""Requests as production saw them: the trace, read, checked, cut and written."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tuner.system.files import whole_file
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader, header_line, row_line
from tuner.trace.formats.reading.record import Row, Status, Tally

__all__ = ["Status", "Trace", "TraceHeader", "TraceRequest", "digest", "load", "write"]

DECIMALS_S, DECIMALS_MS = 6, 3
"""Times are kept to the microsecond: finer than any clock that stamps requests."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Times are seconds from the trace's origin; lengths are tokens."""

    row: int
    """Position among the kept rows of the whole trace, in order of arrival. It seeds the prompt, so
    that a cut of the trace sends the same prompts as the whole."""

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
    """As production saw it: duration from arrival to the last token, or to the abort."""

    ttft_s: float | None = None
    queue_s: float | None = None
    finish_reason: str | None = None
    priority: int | None = None
    lora: str | None = None
    model: str | None = None
    request_class: str | None = None
    replica: int | None = None
    stream: bool | None = None
    cached_tokens: int | None = None
    num_images: int | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in memory: requests in arrival order."""

    header: TraceHeader
    requests: tuple[TraceRequest, ...]
    digest: str
    """``sha256:…`` of the canonical content of the requests."""

    warnings: tuple[str, ...] = ()

    @staticmethod
    def of(header: TraceHeader, requests: Iterable[TraceRequest]) -> "Trace":
        """Return a trace of these requests, which are in order of arrival."""
        kept = tuple(requests)
        return Trace(header, kept, digest(kept, header.block_size))


def load(path: Path, *, format_name: str | None = None, time_unit: TimeUnit | None = None) -> Trace:
    """Read a whole trace into memory, in order of arrival; requests of one time keep their order.

    Raises TraceError for a file that cannot be read as a trace; rows that cannot be used are
    counted in the header's ``dropped`` and named in the warnings.
    """
    from tuner.trace.formats.opening import open_trace  # noqa: PLC0415 - not for the types alone

    source, tally = open_trace(path, format_name=format_name, time_unit=time_unit)
    rows = list(source.rows)
    rows.sort(key=lambda row: row.timestamp)
    origin_ms = rows[0].timestamp if source.absolute else None
    requests = tuple(
        request_of(row, position, origin_ms=origin_ms or 0) for position, row in enumerate(rows)
    )
    header = counted(source.header, tally, origin_ms=None if source.undated else origin_ms)
    warnings = reading_warnings(source.header, tally)
    return Trace(header, requests, digest(requests, header.block_size), warnings)


def write(trace: Trace, path: Path, *, force: bool = False, mode: int = 0o666) -> None:
    """Write the canonical form, whole or not at all.

    Raises TargetError where the file cannot be written, or is there and ``force`` is not given.
    """
    with whole_file(path, force=force, mode=mode) as file:
        file.writelines(lines_of(trace))


def lines_of(trace: Trace) -> Iterator[bytes]:
    """Yield the lines of the canonical form."""
    yield header_line(trace.header)
    yield from _lines(trace.requests)


def cut_header(header: TraceHeader, rows: int, *, start_s: float, length_s: float) -> TraceHeader:
    """Return the header of so many rows in [start_s, start_s + length_s)."""
    return dataclasses.replace(
        header,
        time_origin=_later(header.time_origin, start_s),
        rows_read=rows,
        rows_kept=rows,
        dropped={},
        notes=(*header.notes, f"cut {start_s:g}s+{length_s:g}s"),
    )


def digest(requests: Iterable[TraceRequest], block_size: int) -> str:
    """Return ``sha256:…`` of the canonical rows: the same for one traffic in any format."""
    found = hashlib.sha256(f"block_size {block_size}\n".encode())
    for line in _lines(requests):
        found.update(line)
    return f"sha256:{found.hexdigest()}"


def request_of(row: Row, position: int, *, origin_ms: float = 0) -> TraceRequest:
    """Return a row as a request; ``position`` is its number unless the row has one of its own."""
    return TraceRequest(
        row=position if row.row is None else row.row,
        arrival_s=_seconds(row.timestamp - origin_ms),
        input_length=row.input_length or 0,
        output_length=row.output_length or 0,
        status=row.status,
        n=row.n,
        output_lengths=row.output_lengths,
        max_tokens=row.max_tokens,
        hash_ids=row.hash_ids,
        request_id=_text(row.request_id),
        session_id=_text(row.session_id),
        turn=row.turn,
        parent_id=_text(row.parent_id),
        e2e_s=None if row.e2e_ms is None else _seconds(row.e2e_ms),
        ttft_s=None if row.ttft_ms is None else _seconds(row.ttft_ms),
        queue_s=None if row.queue_ms is None else _seconds(row.queue_ms),
        finish_reason=row.finish_reason,
        priority=row.priority,
        lora=row.lora,
        model=row.model,
        request_class=row.request_class,
        replica=row.replica,
        stream=row.stream,
        cached_tokens=row.cached_tokens,
        num_images=row.num_images,
    )


def row_of(request: TraceRequest, position: int) -> Row:
    """Return the canonical row; the inverse of ``request_of``."""
    return Row(
        timestamp=whole_ms(request.arrival_s * 1000),
        input_length=request.input_length,
        output_length=request.output_length,
        status=request.status,
        n=request.n,
        output_lengths=request.output_lengths,
        max_tokens=request.max_tokens,
        hash_ids=request.hash_ids,
        request_id=request.request_id,
        session_id=request.session_id,
        turn=request.turn,
        parent_id=request.parent_id,
        e2e_ms=_ms(request.e2e_s),
        ttft_ms=_ms(request.ttft_s),
        queue_ms=_ms(request.queue_s),
        finish_reason=request.finish_reason,
        priority=request.priority,
        lora=request.lora,
        model=request.model,
        request_class=request.request_class,
        replica=request.replica,
        stream=request.stream,
        cached_tokens=request.cached_tokens,
        num_images=request.num_images,
        row=None if request.row == position else request.row,
    )


def counted(header: TraceHeader, tally: Tally, *, origin_ms: float | None) -> TraceHeader:
    """Return the header with what this reading found, on top of what earlier ones dropped.

    ``origin_ms`` is in ms since 1970, None where the header's own origin stands.
    """
    dropped = dict(header.dropped)
    for reason, count in tally.dropped.items():
        dropped[reason] = dropped.get(reason, 0) + count
    return dataclasses.replace(
        header,
        time_origin=header.time_origin if origin_ms is None else _date(origin_ms),
        rows_read=tally.rows_kept + sum(dropped.values()),
        rows_kept=tally.rows_kept,
        dropped=dropped,
        notes=tuple(dict.fromkeys((*header.notes, *tally.said, *tally.notes))),
    )


def reading_warnings(header: TraceHeader, tally: Tally) -> tuple[str, ...]:
    """Return what a reader should know of how the file was read."""
    found = [*tally.warnings(), *tally.notes]
    if header.rows_kept and header.rows_kept != tally.rows_read:
        found.append(
            f"the header counts {header.rows_kept:,} rows, the file has {tally.rows_read:,}: "
            f"it was cut off or edited"
        )
    return tuple(found)


def _lines(requests: Iterable[TraceRequest]) -> Iterator[bytes]:
    for position, request in enumerate(requests):
        yield row_line(row_of(request, position))


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)


def microseconds(seconds: float) -> int:
    """Return a time as a whole number, for comparing."""
    return round(seconds * 1e6)


def _seconds(ms: float) -> float:
    return round(ms / 1000, DECIMALS_S)


def _ms(seconds: float | None) -> int | float | None:
    return None if seconds is None else whole_ms(seconds * 1000)


def whole_ms(ms: float) -> int | float:
    """Return ms as they are written: to the microsecond, and without ``.0``."""
    ms = round(ms, DECIMALS_MS)
    return int(ms) if ms == int(ms) else ms


def _date(origin_ms: float) -> str:
    return (datetime(1970, 1, 1) + timedelta(milliseconds=origin_ms)).isoformat()  # noqa: DTZ001


def _later(time_origin: str | None, seconds: float) -> str | None:
    if time_origin is None:
        return None
    try:
        return (datetime.fromisoformat(time_origin) + timedelta(seconds=seconds)).isoformat()
    except (ValueError, OverflowError):
        return None
