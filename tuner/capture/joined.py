"""One trace out of the files of one recording: of several processes, and of what each rotated."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tuner.errors import TraceError, UsageError
from tuner.trace.formats import canonical
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.header import TraceHeader
from tuner.trace.formats.reading.record import Row
from tuner.trace.trace import counted


def joined(paths: Sequence[Path]) -> tuple[TraceHeader, Iterator[Row]]:
    """Return the header of all, and their rows on its clock, a file at a time. Every file is read
    twice.

    Raises TraceError for files that are not parts of one recording: without a time of origin, or of
    different sources or block sizes. Raises UsageError for a file that is named twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a file is named twice", hint="Name each file of the recording once.")
    headers = [_counted(path) for path in paths]
    origins = [_origin(path, header) for path, header in zip(paths, headers, strict=True)]
    first, origin = headers[0], min(origins)
    for path, header in zip(paths, headers, strict=True):
        for field in ("source", "block_size"):
            theirs, ours = getattr(header, field), getattr(first, field)
            if theirs != ours:
                raise TraceError(
                    f"{path}: its {field} is {theirs}, that of {paths[0]} is {ours}",
                    hint="Join the files of one recording only.",
                )
    dropped = sum((Counter(header.dropped) for header in headers), Counter[str]())
    header = replace(
        first,
        time_origin=origin.isoformat(),
        rows_read=sum(header.rows_read for header in headers),
        rows_kept=sum(header.rows_kept for header in headers),
        dropped=dict(dropped),
        missing=tuple(dict.fromkeys(name for header in headers for name in header.missing)),
        notes=tuple(dict.fromkeys(note for header in headers for note in header.notes)),
    )
    shifts_ms = [1000 * (one - origin).total_seconds() for one in origins]
    return header, _rows(paths, shifts_ms)


def _counted(path: Path) -> TraceHeader:
    source, tally = open_trace(path, format_name=canonical.NAME)
    for _ in source.rows:
        pass
    return counted(source.header, tally, origin_ms=None)


def _rows(paths: Sequence[Path], shifts_ms: Sequence[float]) -> Iterator[Row]:
    for path, shift_ms in zip(paths, shifts_ms, strict=True):
        for row in open_trace(path, format_name=canonical.NAME)[0].rows:
            yield msgspec.structs.replace(row, timestamp=round(row.timestamp + shift_ms, 3))


def _origin(path: Path, header: TraceHeader) -> datetime:
    try:
        origin = datetime.fromisoformat(header.time_origin or "")
    except ValueError:
        raise TraceError(
            f"{path}: no time_origin in its header", hint="Join the files of a recording only."
        ) from None
    return origin if origin.tzinfo else origin.replace(tzinfo=UTC)
