"""One trace out of the files of one recording: of several processes, and of their restarts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tuner.errors import TraceError, UsageError
from tuner.trace.trace import Trace, load, moved, sorted_by_arrival
from tuner.trace.values import date_ms, date_of


def join(paths: Sequence[Path]) -> Trace:
    """Return the requests of all files on one clock, in order of arrival.

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
        rows_read=sum(header.rows_read for header in headers),
        rows_kept=len(table),
        dropped=dict(sum((Counter(header.dropped) for header in headers), Counter[str]())),
    )
    return Trace(header, table)
