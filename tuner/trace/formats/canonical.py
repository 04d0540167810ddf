"""tuner's own format: a header line, then one row a line; a superset of Mooncake's rows."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tuner.errors import TraceError, UsageError
from tuner.trace.formats.reading.header import VERSION, TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import TEXT_KEYS, check_text, opening
from tuner.trace.formats.reading.json_values import spans_lines
from tuner.trace.formats.reading.record import (
    FIELDS,
    Row,
    Tally,
    diagnose,
    has_duplicate_key,
    problem,
)
from tuner.trace.formats.reading.source import Source, columnar
from tuner.trace.formats.reading.trace_file import HEAD_BYTES, TraceFile

NAME = "canonical"
DESCRIPTION = "tuner's own: a header line, then one JSON object a line, in ms"
MARK = 'a first line with "tuner_trace"'

HEADER_KEYS = {"tuner_trace", "time_unit"} | {
    field.name for field in dataclasses.fields(TraceHeader)
}
MAX_UNKNOWN_KEYS = 20
MAX_SHAPES = 1000

_decode = msgspec.json.Decoder().decode


def sniff(head: bytes) -> bool:
    return "tuner_trace" in opening(head)


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    """See Format. Raises UsageError too for any unit but ms."""
    if time_unit is not None and time_unit != "ms":
        raise UsageError(
            f"{lines.place}: the canonical format is in ms", hint="Leave out --time-unit."
        )
    first = next(iter(lines.again()), (0, b""))
    if b'"tuner_trace"' not in first[1]:
        return source(lines, TraceHeader())
    return source(lines, _header(first[1], lines), headed=first[0])


def source(
    lines: TraceFile,
    header: TraceHeader,
    *,
    time_unit: TimeUnit | None = "ms",
    headed: int = 0,
) -> Source:
    """Return the source of canonical rows, read by columns where each is a line.

    Without ``time_unit`` stamps must be whole numbers. ``headed``: the line of the header, if any.
    """

    def row_by_row(stream: Iterable[tuple[int, bytes]], lines: TraceFile) -> Iterator[Row]:
        below = ((number, line) for number, line in stream if number != headed)
        return rows(below, lines, block_size=header.block_size, time_unit=time_unit)

    if time_unit == "s" or spans_lines(lines.head(HEAD_BYTES)):
        return Source(header, row_by_row(lines, lines))
    from tuner.trace.formats.columnar.canonical_rows import CanonicalReader  # noqa: PLC0415 - slow to load

    reader = CanonicalReader(
        lines,
        row_by_row,
        block_size=header.block_size,
        whole_stamps=time_unit is None,
        headed=headed,
    )
    return columnar(header, reader.batches(), again=reader.again)


def rows(
    stream: Iterable[tuple[int, bytes]],
    lines: TraceFile,
    *,
    block_size: int,
    time_unit: TimeUnit | None = "ms",
) -> Iterator[Row]:
    """Yield the rows that can be used; count the others.

    Without ``time_unit`` stamps must be whole numbers. Raises TraceError where one is not.
    """
    tally = lines.tally
    shapes: dict[tuple[str, ...], frozenset[str]] = {}
    for number, line in stream:
        tally.rows_read += 1
        try:
            parsed = _decode(line)
            row = _convert(parsed)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _drop(line, number, lines)
            continue
        # Every key has a colon: as many colons as keys, and no key stands twice.
        if line.count(b":") != len(parsed) and has_duplicate_key(line):
            tally.drop("duplicate_key", number)
            continue
        if reason := problem(row, block_size):
            tally.drop(reason, number)
            continue
        shape = tuple(parsed)
        if (unknown := shapes.get(shape)) is None:
            unknown = frozenset(shape) - FIELDS
            if len(shapes) < MAX_SHAPES:
                shapes[shape] = unknown
        if unknown:
            if unknown & TEXT_KEYS:
                check_text(parsed, number, lines)
            _count_unknown(unknown, tally)
        if time_unit != "ms":
            row = _in_ms(row, time_unit, lines, number)
        tally.rows_kept += 1
        yield row


def _header(line: bytes, lines: TraceFile) -> TraceHeader:
    hint = "Compare the first line with docs/traces.md."
    try:
        parsed = _decode(line)
        header = msgspec.convert(parsed, TraceHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{lines.place}:1: header: {error}", hint=hint) from error
    if has_duplicate_key(line):
        raise TraceError(f"{lines.place}:1: header: a key stands twice", hint=hint)
    version = parsed.get("tuner_trace")
    if version != VERSION:
        raise TraceError(
            f"{lines.place}:1: tuner_trace is {version!r}, this tuner reads {VERSION}",
            hint="Write the trace with this version of tuner, or use a newer tuner.",
        )
    if parsed.get("time_unit", "ms") != "ms":
        raise TraceError(
            f"{lines.place}:1: time_unit is {parsed['time_unit']!r}; the canonical format is in ms",
            hint="Multiply the stamps; or drop the header and import with --time-unit s.",
        )
    for key in sorted(parsed.keys() - HEADER_KEYS):
        lines.tally.unknown_keys[f"{key} in the header"] = 1
    return header


def _convert(parsed: Any) -> Row:  # noqa: ANN401 - whatever the line holds
    try:
        return msgspec.convert(parsed, Row)
    except msgspec.ValidationError:
        if not isinstance(parsed, dict) or None not in parsed.values():
            raise
        # Null is absent, also where the field has a default that is not null.
        known = {key: value for key, value in parsed.items() if value is not None}
        return msgspec.convert(known, Row)


def _drop(line: bytes, number: int, lines: TraceFile) -> None:
    if line.lstrip().startswith(b"{") and b'"tuner_trace"' in line:
        raise TraceError(
            f"{lines.place}:{number}: a second header: two traces with two origins in one file",
            hint="Split the file at this line and use the parts one by one.",
        )
    reason = diagnose(line)
    if number == lines.unterminated and reason in ("malformed", "encoding"):
        reason = "truncated"
    lines.tally.drop(reason, number)


def _count_unknown(keys: frozenset[str], tally: Tally) -> None:
    for key in keys:
        name = key if key in tally.unknown_keys else key[:40]
        if name not in tally.unknown_keys and len(tally.unknown_keys) >= MAX_UNKNOWN_KEYS:
            name = "(other keys)"
        tally.unknown_keys[name] = tally.unknown_keys.get(name, 0) + 1


def _in_ms(row: Row, time_unit: TimeUnit | None, lines: TraceFile, number: int) -> Row:
    if time_unit == "s":
        return msgspec.structs.replace(row, timestamp=row.timestamp * 1000)
    if isinstance(row.timestamp, float):
        raise TraceError(
            f"{lines.place}:{number}: timestamp {row.timestamp} may be s or ms",
            hint="tuner trace import --time-unit s (GuideLLM, vLLM) or --time-unit ms (aiperf).",
        )
    return row
