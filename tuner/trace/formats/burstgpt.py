"""BurstGPT's traces (Wang et al., KDD 2025), CSV, in both layouts.

The first two releases have ``5,ChatGPT,472,18,490,Conversation log``; the third has two columns
more, in between: ``19440110.0,1722ac82-…,43,GPT-4,906,446,1352,Conversation log``. Stamps are s
since the midnight before the first day. A response of no tokens is a request that failed, says the
source.
"""

from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import SAMPLE_BYTES, TraceFile
from tuner.trace.formats.table import Known, known_table, text_table
from tuner.trace.tables.cells import Counts, Spans
from tuner.trace.tables.clocks import ColumnClock

NAME = "burstgpt"
DESCRIPTION = "BurstGPT's traces, releases 1 to 3, CSV"
MARK = "Timestamp,…,Model,Request tokens,Response tokens"

COLUMNS: Known = {
    "timestamp": ("Timestamp", ColumnClock("s", dated=False)),
    "input_length": ("Request tokens", Counts()),
    "output_length": ("Response tokens", Counts()),
    "model": ("Model", None),
}
LATER: Known = {
    **COLUMNS,
    "duration": ("Elapsed time", Spans("s")),
    "session_id": ("Session ID", None),
}


def sniff(head: bytes) -> bool:
    return text_table(head, COLUMNS) is not None


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="in s")
    later = text_table(lines.head(SAMPLE_BYTES), LATER) is not None
    missing = ("aborts", "prefixes") if later else ("aborts", "prefixes", "ends", "sessions")
    header = TraceHeader(source=NAME, time_resolution_ms=1000, missing=missing)
    return known_table(lines, header, LATER if later else COLUMNS, dated=False, as_published=True)
