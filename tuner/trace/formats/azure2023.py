"""Azure LLM inference traces of 2023 (Patel et al., "Splitwise", ISCA 2024), CSV.

``2023-11-16 18:17:03.9799600,4808,10``: no zone, seven digits, CRLF, no final line end.
"""

from tuner.trace.formats.reading.azure import Layout
from tuner.trace.formats.reading.lines import Lines
from tuner.trace.formats.reading.source import Source, TimeUnit, TraceHeader

NAME = "azure2023"
DESCRIPTION = "Azure LLM inference traces of 2023, CSV"

LAYOUT = Layout(
    b"TIMESTAMP,ContextTokens,GeneratedTokens", minute=rb"\d{4}-\d\d-\d\d \d\d:\d\d", zone=b""
)
MISSING = ("aborts", "errors", "ends", "prefixes", "sessions")


def sniff(head: bytes) -> bool:
    return LAYOUT.begins(head)


def read(lines: Lines, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")
    header = TraceHeader(source=NAME, time_resolution_ms=0.001, missing=MISSING)
    return Source(header, LAYOUT.rows(lines), absolute=True)
