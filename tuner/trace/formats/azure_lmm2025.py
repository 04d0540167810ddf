"""Azure's traces of requests with images (Qiu et al., "ModServe", SoCC 2025), CSV.

``2024-10-15T12:00:00.269Z,2,1452,30``: the second column counts images. Their tokens are in the
prompt's; the replay sends as many text tokens, and no image encoder works.
"""

from tuner.trace.formats.azure2023 import MISSING
from tuner.trace.formats.reading.azure import Layout
from tuner.trace.formats.reading.lines import Lines
from tuner.trace.formats.reading.source import Source, TimeUnit, TraceHeader

NAME = "azure_lmm2025"
DESCRIPTION = "Azure traces of 2025 of requests with images, CSV"

LAYOUT = Layout(
    b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
    minute=rb"\d{4}-\d\d-\d\dT\d\d:\d\d",
    zone=b"Z",
)


def sniff(head: bytes) -> bool:
    return LAYOUT.begins(head)


def read(lines: Lines, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")
    header = TraceHeader(source=NAME, time_resolution_ms=1, missing=MISSING)
    return Source(header, LAYOUT.rows(lines), absolute=True)
