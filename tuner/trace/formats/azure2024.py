"""Azure LLM inference traces of 2024 (Stojkovic et al., "DynamoLLM", HPCA 2025), CSV.

``2024-05-12 00:00:00.001163+00:00,1452,3``: with a zone; some rows lack the fraction.
"""

from tuner.trace.formats.azure2023 import MISSING
from tuner.trace.formats.reading.azure import Layout
from tuner.trace.formats.reading.lines import Lines
from tuner.trace.formats.reading.source import Source, TimeUnit, TraceHeader

NAME = "azure2024"
DESCRIPTION = "Azure LLM inference traces of 2024, CSV"

LAYOUT = Layout(
    b"TIMESTAMP,ContextTokens,GeneratedTokens",
    minute=rb"\d{4}-\d\d-\d\d \d\d:\d\d",
    zone=rb"[+-]\d\d:\d\d",
)


def sniff(head: bytes) -> bool:
    return LAYOUT.begins(head)


def read(lines: Lines, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")
    header = TraceHeader(source=NAME, time_resolution_ms=0.001, missing=MISSING)
    return Source(header, LAYOUT.rows(lines), absolute=True)
