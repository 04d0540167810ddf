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
    begins_ms = [date_ms(header.time_origin) or 0.0 for header in headers]
    for path, header, begin_ms in zip(paths, headers, begins_ms, strict=True):
        if not begin_ms:
            raise TraceError(f"{path}: no time_origin in its header", hint=cure)
        theirs, ours = (f"{each.source}, block_size {each.block_size}" for each in (header, first))
        if theirs != ours:
            raise TraceError(f"{path}: is of {theirs}, {paths[0]} of {ours}", hint=cure)
    begin_ms = min(begins_ms)
    whole = pa.concat_tables(
        (moved(each.table, at - begin_ms) for each, at in zip(traces, begins_ms, strict=True)),
        promote_options="default",
    )
    whole = whole.select([name for name in whole.column_names if name != "row"])
    table, _ = sorted_by_arrival(whole, absolute=False)
    header = replace(
        first,
        time_origin=headers[begins_ms.index(begin_ms)].time_origin,
        rows_read=sum(header.rows_read for header in headers),
        rows_kept=len(table),
        dropped=dict(sum((Counter(header.dropped) for header in headers), Counter[str]())),
        missing=tuple({name: None for header in headers for name in header.missing}),
        notes=tuple({note: None for header in headers for note in header.notes}),
    )
    return Trace(header, table)
