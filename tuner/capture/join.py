"""One trace out of the files of one recording: of several processes, and of what each rotated."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tuner.errors import TraceError, UsageError
from tuner.trace.trace import Trace, TraceHeader, load


def join(paths: Sequence[Path]) -> Trace:
    """Return the requests of all files on one clock, in order of arrival.

    Raises TraceError for files that are not parts of one recording: without a time of origin, or of
    different sources or block sizes. Raises UsageError for a file that is named twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a file is named twice", hint="Name each file of the recording once.")
    traces = [load(path) for path in paths]
    headers = [trace.header for trace in traces]
    begins = [_begin(path, header) for path, header in zip(paths, headers, strict=True)]
    first, origin = headers[0], min(begins)
    for path, header in zip(paths, headers, strict=True):
        for field in ("source", "block_size"):
            theirs, ours = getattr(header, field), getattr(first, field)
            if theirs != ours:
                raise TraceError(
                    f"{path}: its {field} is {theirs}, that of {paths[0]} is {ours}",
                    hint="Join the files of one recording only.",
                )
    requests = [
        replace(each, arrival_s=round(each.arrival_s + (begin - origin).total_seconds(), 6))
        for trace, begin in zip(traces, begins, strict=True)
        for each in trace.requests
    ]
    requests.sort(key=lambda each: each.arrival_s)
    header = replace(
        first,
        time_origin=origin.isoformat(),
        rows_read=sum(header.rows_read for header in headers),
        rows_kept=len(requests),
        dropped=dict(sum((Counter(header.dropped) for header in headers), Counter[str]())),
        missing=tuple(dict.fromkeys(name for header in headers for name in header.missing)),
        notes=tuple(dict.fromkeys(note for header in headers for note in header.notes)),
    )
    return Trace.of(header, [replace(each, row=row) for row, each in enumerate(requests)])


def _begin(path: Path, header: TraceHeader) -> datetime:
    try:
        begin = datetime.fromisoformat(header.time_origin or "")
    except ValueError:
        raise TraceError(
            f"{path}: no time_origin in its header", hint="Join the files of a recording only."
        ) from None
    return begin if begin.tzinfo else begin.replace(tzinfo=UTC)
