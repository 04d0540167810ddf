"""Azure's inference traces of three years, CSV: they differ in how dates are written.

2023 (Patel et al., "Splitwise", ISCA 2024): ``2023-11-16 18:17:03.9799600,4808,10``, no zone, seven
digits, CRLF, no final line end. 2024 (Stojkovic et al., "DynamoLLM", HPCA 2025):
``2024-05-12 00:00:00.001163+00:00,1452,3``, with a zone; some rows lack the fraction. 2025 (Qiu et
al., "ModServe", SoCC 2025): ``2024-10-15T12:00:00.269Z,2,1452,30``, the second column counts
images. Their tokens are in the prompt's; the replay sends as many text tokens, and no image encoder
works.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from tuner.trace.formats.reading import csv_rows
from tuner.trace.formats.reading.record import Reason, Row
from tuner.trace.formats.reading.source import Source, TimeUnit, TraceHeader
from tuner.trace.formats.reading.trace_file import TraceFile

MINUTE = rb"\d\d:\d\d"
SECOND = rb":([0-5]\d(?:\.\d{1,9})?)"
TOKENS = rb"([1-9]\d{0,8}),([1-9]\d{0,8})"
MAX_MINUTES = 10_000


STAMP = re.compile(
    rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:[0-5]\d(?:\.\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
NEEDED = {b"timestamp", b"contexttokens", b"generatedtokens"}
IMAGES = b"numimages"


MISSING = ("aborts", "errors", "ends", "prefixes", "sessions")


class Layout:
    """One year's format: its columns, and how its dates are written (minute, second, zone)."""

    def __init__(
        self, name: str, description: str, columns: bytes, *, day: bytes, zone: bytes
    ) -> None:
        self.NAME, self.DESCRIPTION = name, description
        self.columns = columns
        self.has_images = IMAGES in columns.lower()
        self.has_zone = bool(zone)
        self.needed = NEEDED | ({IMAGES} if self.has_images else set())
        images = csv_rows.COUNT + b"," if self.has_images else b"()"
        stamp = b"(" + day + MINUTE + b")" + SECOND + b"(" + zone + b")"
        self.row = re.compile(stamp + b"," + images + TOKENS)
        self.all_rows = re.compile(b"(?m)^" + self.row.pattern + rb"\r?$")

    def sniff(self, head: bytes) -> bool:
        """Return whether a file that begins so has this year's columns, in any order, and dates."""
        columns, rows = csv_rows.first_lines(head)
        headings = csv_rows.headings(columns)
        if not self.needed <= set(headings.names) or self.has_images != (IMAGES in headings.names):
            return False
        for row in rows:
            if stamp := STAMP.fullmatch((headings.cells(row) or {}).get(b"timestamp", b"")):
                return self.has_images or bool(stamp["zone"]) == self.has_zone
        return self.has_images or not self.has_zone

    def read(self, lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
        lines.refuse_unit(time_unit, the_stamps_are="dates")
        header = TraceHeader(
            source=self.NAME,
            time_resolution_ms=1 if self.has_images else 0.001,
            missing=MISSING,
        )
        return Source(header, self._rows(lines), absolute=True)

    def _rows(self, lines: TraceFile) -> Iterator[Row]:
        """Yield rows whose timestamp is ms since 1970; dates without a zone are taken for UTC."""
        columns = csv_rows.first_line(lines)
        headings = csv_rows.headings(columns)
        if not self.needed <= set(headings.names):
            columns, headings = self.columns, csv_rows.headings(self.columns)
        parser = _Parser(self, headings)
        return csv_rows.rows(lines, columns, parser.row, parser.rows)


class _Parser:
    """Reads rows; knows the minutes that it has met."""

    def __init__(self, layout: Layout, headings: csv_rows.Headings) -> None:
        self.layout = layout
        self.headings = headings
        self.as_published = headings == csv_rows.headings(layout.columns)
        self.minutes: dict[bytes, float] = {}

    def row(self, line: bytes) -> Row | Reason:
        if self.as_published and (match := self.layout.row.fullmatch(line)):
            try:
                return self._rows([match.groups()])[0]
            except ValueError:
                return "bad_timestamp"
        cells = self.headings.cells(line)
        return "malformed" if cells is None else self._row(cells)

    def rows(self, block: bytes) -> list[Row] | None:
        if not self.as_published:
            return None
        found = self.layout.all_rows.findall(block)
        if len(found) != block.count(b"\n") + 1:
            return None
        try:
            return self._rows(found)
        except ValueError:
            return None

    def _row(self, cells: dict[bytes, bytes]) -> Row | Reason:
        """Return a row of a table that another program has written anew."""
        stamp = STAMP.fullmatch(cells[b"timestamp"])
        if stamp is None or (
            not self.layout.has_images and bool(stamp["zone"]) != self.layout.has_zone
        ):
            return "bad_timestamp" if cells[b"timestamp"] else "no_timestamp"
        images = csv_rows.whole(cells[IMAGES]) if self.layout.has_images else None
        if images is None and self.layout.has_images:
            return "bad_field"
        counts = (cells[b"contexttokens"], cells[b"generatedtokens"])
        prompt, output = map(csv_rows.whole, counts)
        if not prompt or not output:
            return csv_rows.bad_count(counts)
        try:
            stamp_ms = _ms(stamp[0])
        except ValueError:
            return "bad_timestamp"
        return Row(stamp_ms, prompt, output, num_images=images)

    def _rows(self, found: Iterable[tuple[bytes, ...]]) -> list[Row]:
        """Return rows of the six groups. Raises ValueError where one has no such date."""
        rows = []
        last_minute, last_zone, last_ms = b"", b"", 0.0
        for minute, second, zone, images, prompt, output in found:
            if minute != last_minute or zone != last_zone:
                last_minute, last_zone = minute, zone
                last_ms = self._minute_ms(minute + zone)
            stamp_ms = last_ms + float(second) * 1000
            if images:
                row = Row(stamp_ms, int(prompt), int(output), num_images=int(images))
            else:
                row = Row(stamp_ms, int(prompt), int(output))
            rows.append(row)
        return rows

    def _minute_ms(self, minute: bytes) -> float:
        known_ms = self.minutes.get(minute)
        if known_ms is None:
            if len(self.minutes) >= MAX_MINUTES:
                self.minutes.clear()
            known_ms = self.minutes[minute] = _ms(minute)
        return known_ms


def _ms(minute: bytes) -> float:
    """Return ms since 1970. Raises ValueError for what is no date, or an earlier one."""
    moment = datetime.fromisoformat(minute.decode())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if moment.timestamp() < 0:
        raise ValueError(minute)
    return moment.timestamp() * 1000


FORMATS = (
    Layout(
        "azure2023",
        "Azure LLM inference traces of 2023, CSV",
        b"TIMESTAMP,ContextTokens,GeneratedTokens",
        day=rb"\d{4}-\d\d-\d\d ",
        zone=b"",
    ),
    Layout(
        "azure2024",
        "Azure LLM inference traces of 2024, CSV",
        b"TIMESTAMP,ContextTokens,GeneratedTokens",
        day=rb"\d{4}-\d\d-\d\d ",
        zone=rb"[+-]\d\d:\d\d",
    ),
    Layout(
        "azure_lmm2025",
        "Azure traces of 2025 of requests with images, CSV",
        b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
        day=rb"\d{4}-\d\d-\d\dT",
        zone=b"Z",
    ),
)
