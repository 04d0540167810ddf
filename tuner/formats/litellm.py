"""LiteLLM proxy: rows of its spend logs (JSON, or CSV of the table), and its logging payloads.

Dates have no zone and are UTC. A client's request that was tried again is several rows of one
trace. ``response_time`` is not used: of a stream it is the time to the first token.
"""

import csv
from collections.abc import Iterator

from tuner.formats.json_rows import (
    MAX_PAGE_BYTES,
    Fields,
    Object,
    check_text,
    checked,
    first_of_page,
    objects,
    page_of,
)
from tuner.formats.lines import BOM, Lines
from tuner.formats.otlp import Names
from tuner.formats.record import Reason, Row
from tuner.formats.same_request import Found, final_attempts
from tuner.formats.scalars import (
    SPLIT,
    between_ms,
    epoch_ms,
    failed_tokens,
    first,
    flag,
    inner,
    is_absent,
    sequences,
    status_of,
    tokens,
)
from tuner.formats.source import Source, TimeUnit, TraceHeader

NAME = "litellm"
DESCRIPTION = "LiteLLM's spend logs (JSON, CSV) and standard logging payloads"

KEYS = {"call_type", "startTime", "prompt_tokens", "completion_tokens"}
GENERATING = frozenset(
    {
        *("completion", "acompletion", "text_completion", "atext_completion"),
        *("responses", "aresponses", "anthropic_messages", "generate_content"),
        *("agenerate_content", "generate_content_stream", "agenerate_content_stream"),
        *("pass_through_endpoint", "allm_passthrough_route", "llm_passthrough_route"),
    }
)


def sniff(head: bytes) -> bool:
    return (first_of_page(head).keys() or set(_columns(head))) >= KEYS


def read(lines: Lines, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")
    header = TraceHeader(source=NAME, missing=("prefixes", "queue"))
    return Source(header, final_attempts(_found(lines), lines.tally), absolute=True)


def _found(lines: Lines) -> Iterator[Found]:
    names = Names()
    for number, entry in _entries(lines):
        lines.tally.rows_read += 1
        row = checked(_fields(entry, names), block_size=1)
        if not isinstance(row, Row):
            lines.tally.drop(row, number)
            continue
        if row.output_lengths:
            lines.tally.note(SPLIT)
        trace = first(entry, ("trace_id", "session_id"))
        group = first(entry, ("model_group", "model"))
        yield Found(row, number, None if trace is None else (str(trace), str(group)))


def _entries(lines: Lines) -> Iterator[tuple[int, Object]]:
    with lines.path.open("rb") as file:
        is_csv = bool(_columns(file.read(2**16)))
    if is_csv:
        yield from _csv_objects(lines)
        return
    lines.longest = MAX_PAGE_BYTES
    for number, found in objects(lines):
        for entry in page_of(found):
            if isinstance(entry, dict):
                check_text(entry, number, lines)
                yield number, entry
            else:
                lines.tally.rows_read += 1
                lines.tally.drop("malformed", number)


def _fields(entry: Object, names: Names) -> Fields | Reason:
    kind = entry.get("call_type")
    if not is_absent(kind) and str(kind) not in GENERATING:
        return "not_generation"
    if flag(entry.get("cache_hit")):
        return "cache_hit"
    start_ms, end_ms, first_ms = (
        epoch_ms(entry.get(key)) for key in ("startTime", "endTime", "completionStartTime")
    )
    parameters, metadata = inner(entry.get("model_parameters")), inner(entry.get("metadata"))
    status = _status(entry, metadata)
    count = failed_tokens if status != "ok" else tokens
    streamed = first_ms is not None and first_ms != end_ms  # else LiteLLM writes the end there
    usage = inner(metadata.get("usage_object"))
    return {
        "timestamp": start_ms,
        "input_length": count(entry.get("prompt_tokens")),
        **sequences(parameters.get("n"), count(entry.get("completion_tokens"))),
        "status": status,
        "e2e_ms": between_ms(start_ms, end_ms),
        "ttft_ms": between_ms(start_ms, first_ms) if streamed else None,
        "max_tokens": tokens(
            first(parameters, ("max_tokens", "max_completion_tokens", "max_output_tokens"))
        ),
        "cached_tokens": tokens(inner(usage.get("prompt_tokens_details")).get("cached_tokens")),
        "stream": flag(first(entry, ("stream",)) or parameters.get("stream")),
        "session_id": names.session.named("s", entry.get("session_id")),
        "model": names.model.named("m", first(entry, ("model_group", "model"))),
        "replica": names.replica.of(first(entry, ("model_id", "api_base"))),
    }


def _status(entry: Object, metadata: Object) -> str:
    said = first(entry, ("status",)) or metadata.get("status")
    if is_absent(said) or str(said) == "success":
        return "ok"
    told = inner(entry.get("error_information")) or inner(metadata.get("error_information"))
    code = tokens(told.get("error_code"))
    found = status_of(code if isinstance(code, int) else None)
    return "error" if found == "ok" else found


def _columns(head: bytes) -> list[str]:
    """Return the columns of the table as CSV; none where it is not that."""
    line = head.removeprefix(BOM).lstrip().partition(b"\n")[0].strip()
    if line[:1] in (b"{", b"[") or len(line) > 10_000:
        return []
    found = [column.strip().strip('"') for column in line.decode(errors="replace").split(",")]
    return found if set(found) >= KEYS else []


def _csv_objects(lines: Lines) -> Iterator[tuple[int, Object]]:
    """Yield the table's rows as objects; text of several lines may stand in quotes."""
    last = 0

    def texts() -> Iterator[str]:
        nonlocal last
        for number, line in lines:
            last = number
            yield line.decode(errors="replace") + "\n"

    reader = csv.reader(texts())
    columns = [column.strip() for column in _cells(reader) or ()]
    while True:
        number = last + 1
        if (cells := _cells(reader)) is None:
            return
        if len(cells) != len(columns):
            lines.tally.rows_read += 1
            lines.tally.drop("malformed", number)
            continue
        entry = dict(zip(columns, cells, strict=True))
        check_text(entry, number, lines)
        yield number, entry


def _cells(reader: Iterator[list[str]]) -> list[str] | None:
    """Return the next row; none of its cells where it is broken, None at the end."""
    try:
        return next(reader, None)
    except csv.Error:  # a quote that nothing closes, a line end in the middle of a line
        return []
