"""One trace out of the files of one recording: of several processes, and of what each rotated."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tuner.errors import TraceError, UsageError
from tuner.trace.trace import Trace, load, moved, sorted_by_arrival
from tuner.trace.values import date_ms


def join(paths: Sequence[Path]) -> Trace:
    """Return the requests of all files on one clock, in order of arrival.

    Raises TraceError for files that are not parts of one recording: without a time of origin, or of
    different sources or block sizes. Raises UsageError for a file that is named twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("a file is named twice", hint="Name each file of the recording once.")
    traces = [load(path) for path in paths]
    headers = [trace.header for trace in traces]
    first, cure = headers[0], "Join the files of one recording only."
    begins_ms = [date_ms(header.time_origin) for header in headers]
    known_ms = [one for one in begins_ms if one is not None]
    tables = []
    for path, trace, begin_ms in zip(paths, traces, begins_ms, strict=True):
        for field in ("source", "block_size"):
            theirs, ours = getattr(trace.header, field), getattr(first, field)
            if theirs != ours:
                raise TraceError(
                    f"{path}: its {field} is {theirs}, that of {paths[0]} is {ours}", hint=cure
                )
        if begin_ms is None:
            raise TraceError(f"{path}: no time_origin in its header", hint=cure)
        tables.append(moved(trace.table, begin_ms - min(known_ms)))
    whole = pa.concat_tables(tables, promote_options="default")
    whole = whole.drop_columns([name for name in ("row",) if name in whole.column_names])
    table, _ = sorted_by_arrival(whole, absolute=False)
    header = replace(
        first,
        time_origin=headers[begins_ms.index(min(known_ms))].time_origin,
        rows_read=sum(header.rows_read for header in headers),
        rows_kept=len(table),
        dropped=dict(sum((Counter(header.dropped) for header in headers), Counter[str]())),
        missing=tuple(dict.fromkeys(name for header in headers for name in header.missing)),
        notes=tuple(dict.fromkeys(note for header in headers for note in header.notes)),
    )
    return Trace(header, table)
