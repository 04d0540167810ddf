"""Azure LLM inference traces of 2023 (Patel et al., "Splitwise", ISCA 2024), CSV.

``2023-11-16 18:17:03.9799600,4808,10``: no zone, seven digits, CRLF, no final line end.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from tuner.errors import UsageError
from tuner.formats.lines import BOM, Lines
from tuner.formats.record import Reason, Row
from tuner.formats.source import Source, TimeUnit, TraceHeader

NAME = "azure2023"
DESCRIPTION = "Azure LLM inference traces of 2023, CSV"

COLUMNS = b"TIMESTAMP,ContextTokens,GeneratedTokens"
STAMP = rb"(\d{4}-\d\d-\d\d \d\d:\d\d):([0-5]\d(?:\.\d{1,9})?)"
COUNT = rb"([1-9]\d{0,8})"
ROW = re.compile(STAMP + b"," + COUNT + b"," + COUNT)
BAD_COUNTS: dict[bytes, Reason] = {
    rb"|(?i:null)": "no_tokens",
    rb"[+-]?(?i:nan|inf|infinity)": "not_finite",
    rb"-\d+": "negative",
    rb"0+": "zero_tokens",
    rb"\d{10,}": "out_of_range",
}
MAX_MINUTES = 10_000


def sniff(head: bytes) -> bool:
    columns, _, rest = head.removeprefix(BOM).strip().partition(b"\n")
    stamp = rest.partition(b",")[0].strip()
    return columns.strip() == COLUMNS and (not stamp or bool(re.fullmatch(STAMP, stamp)))


def read(lines: Lines, *, time_unit: TimeUnit | None) -> Source:
    if time_unit is not None:
        raise UsageError(f"{lines.path}: the stamps are dates", hint="Leave out --time-unit.")
    header = TraceHeader(
        source=NAME,
        time_resolution_ms=0.001,
        missing=("aborts", "errors", "ends", "prefixes", "sessions"),
    )
    return Source(header, rows(lines), absolute=True)


def rows(lines: Lines) -> Iterator[Row]:
    """Yield rows whose timestamp is ms since 1970, as if the dates were UTC."""
    tally = lines.tally
    minutes: dict[bytes, float] = {}
    for number, line in lines:
        if line == COLUMNS:
            continue
        tally.rows_read += 1
        row = _row(line, minutes)
        if isinstance(row, Row):
            tally.rows_kept += 1
            yield row
        elif row == "malformed" and number == lines.unterminated:
            tally.drop("truncated", number)
        else:
            tally.drop(row, number)


def _row(line: bytes, minutes: dict[bytes, float]) -> Row | Reason:
    match = ROW.fullmatch(line)
    if not match:
        return _diagnose(line)
    minute, second, prompt, output = match.groups()
    minute_ms = minutes.get(minute)
    if minute_ms is None:
        try:
            moment = datetime.fromisoformat(minute.decode()).replace(tzinfo=UTC)
        except ValueError:
            return "bad_timestamp"
        if len(minutes) >= MAX_MINUTES:
            minutes.clear()
        minute_ms = minutes[minute] = moment.timestamp() * 1000
    return Row(minute_ms + float(second) * 1000, int(prompt), int(output))


def _diagnose(line: bytes) -> Reason:
    stamp, *counts = (cell.strip() for cell in line.split(b","))
    if len(counts) != COLUMNS.count(b","):
        return "malformed"
    if not re.fullmatch(STAMP, stamp):
        return "bad_timestamp" if stamp else "no_timestamp"
    for count in counts:
        for pattern, reason in BAD_COUNTS.items():
            if re.fullmatch(pattern, count):
                return reason
    return "not_integer"
