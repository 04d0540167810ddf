"""Azure's inference traces of three years, CSV: they differ in how dates are written.

2023 (Patel et al., "Splitwise", ISCA 2024): ``2023-11-16 18:17:03.9799600,4808,10``, no zone, seven
digits, CRLF, no final line end. 2024 (Stojkovic et al., "DynamoLLM", HPCA 2025):
``2024-05-12 00:00:00.001163+00:00,1452,3``, with a zone; some rows lack the fraction. 2025 (Qiu et
al., "ModServe", SoCC 2025): ``2024-10-15T12:00:00.269Z,2,1452,30``, the second column counts
images. Their tokens are in the prompt's; the replay sends as many text tokens, and no image encoder
works. Dates without a zone are taken for UTC.
"""

from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile
from tuner.trace.formats.table import Known, known_table, text_table
from tuner.trace.tables.cells import Counts
from tuner.trace.tables.clocks import ColumnClock, parse

IMAGES = "numimages"
MISSING = ("aborts", "errors", "ends", "prefixes", "sessions")


class Layout:
    """One year's format."""

    def __init__(self, name: str, description: str, *, zoned: bool, images: bool = False) -> None:
        self.NAME, self.DESCRIPTION = name, description
        self.MARK = f"TIMESTAMP,{'NumImages,' if images else ''}ContextTokens,GeneratedTokens"
        self.zoned, self.images = zoned, images
        self.columns: Known = {
            "timestamp": ("TIMESTAMP", ColumnClock(None, zoned=zoned)),
            "input_length": ("ContextTokens", Counts()),
            "output_length": ("GeneratedTokens", Counts()),
        }
        if images:
            self.columns = {**self.columns, "num_images": ("NumImages", Counts())}

    def sniff(self, head: bytes) -> bool:
        """Return whether a file that begins so has this year's columns, in any order, and dates."""
        found = text_table(head, self.columns)
        if found is None:
            return False
        shape, plan = found
        if self.images or IMAGES in {heading.lower() for heading in shape.headings}:
            return self.images
        place = plan.columns["timestamp"].place
        dates = (parse(row[place], "ymd") for row in shape.sample)
        zoned = next((date[1] for date in dates if date is not None), False)
        return zoned == self.zoned

    def read(self, lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
        lines.refuse_unit(time_unit, the_stamps_are="dates")
        header = TraceHeader(
            source=self.NAME, time_resolution_ms=1 if self.images else 0.001, missing=MISSING
        )
        return known_table(lines, header, self.columns)


FORMATS = (
    Layout("azure2023", "Azure LLM inference traces of 2023, CSV", zoned=False),
    Layout("azure2024", "Azure LLM inference traces of 2024, CSV", zoned=True),
    Layout(
        "azure_lmm2025",
        "Azure traces of 2025 of requests with images, CSV",
        zoned=True,
        images=True,
    ),
)
