"""BurstGPT's traces (Wang et al., KDD 2025), CSV, in both layouts.

The first two releases have ``5,ChatGPT,472,18,490,Conversation log``; the third has two columns
more, in between: ``19440110.0,1722ac82-…,43,GPT-4,906,446,1352,Conversation log``. So cells are
found by their headings. Stamps are s since the midnight before the first day. A response of no
tokens is a request that failed, says the source.
"""

import math

from tuner.trace.formats.reading import csv_rows
from tuner.trace.formats.reading.record import MAX_MS, Reason, Row
from tuner.trace.formats.reading.scalars import Pseudonyms
from tuner.trace.formats.reading.source import Source, TimeUnit, TraceHeader
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "burstgpt"
DESCRIPTION = "BurstGPT's traces, releases 1 to 3, CSV"

STAMP, PROMPT, OUTPUT = b"timestamp", b"request tokens", b"response tokens"
SESSION, ELAPSED, MODEL = b"session id", b"elapsed time", b"model"


def sniff(head: bytes) -> bool:
    names = csv_rows.headings(csv_rows.first_lines(head)[0]).names
    return {STAMP, MODEL, PROMPT, OUTPUT} <= set(names)


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="in s")
    columns = csv_rows.first_line(lines)
    headings = csv_rows.headings(columns)
    missing = ["aborts", "prefixes"]
    missing += [] if ELAPSED in headings.names else ["ends", "sessions"]
    header = TraceHeader(source=NAME, time_resolution_ms=1000, missing=tuple(missing))
    found = csv_rows.rows(lines, columns, _Parser(headings).row)
    return Source(header, found, absolute=True, undated=True)


class _Parser:
    """Knows which heading stands where."""

    def __init__(self, headings: csv_rows.Headings) -> None:
        self.headings = headings
        self.sessions = Pseudonyms()

    def row(self, line: bytes) -> Row | Reason:
        cells = self.headings.cells(line)
        if cells is None:
            return "malformed"
        try:
            return self._row(cells)
        except UnicodeDecodeError:
            return "encoding"

    def _row(self, cell: dict[bytes, bytes]) -> Row | Reason:
        stamp_ms = _ms(cell.get(STAMP, b""))
        if not isinstance(stamp_ms, float):
            return stamp_ms
        counts = (cell.get(PROMPT, b""), cell.get(OUTPUT, b""))
        prompt_tokens, output_tokens = csv_rows.whole(counts[0]), csv_rows.whole(counts[1])
        if prompt_tokens is None or output_tokens is None:
            return csv_rows.bad_count(counts)
        e2e_ms = _ms(elapsed) if (elapsed := cell.get(ELAPSED)) else None
        if isinstance(e2e_ms, str):
            return "bad_field"
        if output_tokens and not prompt_tokens:
            return "zero_tokens"
        return Row(
            stamp_ms,
            prompt_tokens,
            output_tokens,
            status="ok" if output_tokens else "error",
            e2e_ms=e2e_ms,
            session_id=self.sessions.named("s", cell.get(SESSION, b"").decode()),
            model=cell.get(MODEL, b"").decode() or None,
        )


def _ms(cell: bytes) -> float | Reason:
    if not cell:
        return "no_timestamp"
    try:
        ms = float(cell) * 1000
    except ValueError:
        return "bad_timestamp"
    if not math.isfinite(ms):
        return "not_finite"
    if ms < 0:
        return "before_origin"
    return ms if ms <= MAX_MS else "out_of_range"
