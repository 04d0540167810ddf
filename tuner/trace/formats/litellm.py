"""LiteLLM proxy: rows of its spend logs (JSON, or CSV of the table), and its logging payloads.

Dates have no zone and are UTC. A client's request that was tried again is several rows of one
trace. ``response_time`` is not used: of a stream it is the time to the first token.
"""

from collections.abc import Iterator

from tuner.trace.formats.reading.exports import entries, first_keys
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, usable
from tuner.trace.formats.reading.otlp import Names
from tuner.trace.formats.reading.record import Reason
from tuner.trace.formats.reading.same_request import Fragment, final_attempts
from tuner.trace.formats.reading.scalars import (
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
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "litellm"
DESCRIPTION = "LiteLLM's spend logs (JSON, CSV) and standard logging payloads"
MARK = "call_type, startTime, prompt_tokens"

KEYS = frozenset({"call_type", "startTime", "prompt_tokens", "completion_tokens"})
GENERATING = frozenset(
    {
        *("completion", "acompletion", "text_completion", "atext_completion"),
        *("responses", "aresponses", "anthropic_messages", "generate_content"),
        *("agenerate_content", "generate_content_stream", "agenerate_content_stream"),
        *("pass_through_endpoint", "allm_passthrough_route", "llm_passthrough_route"),
    }
)


def sniff(head: bytes) -> bool:
    return first_keys(head) >= KEYS


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")
    header = TraceHeader(source=NAME, missing=("prefixes", "queue"))
    return Source(header, final_attempts(_found(lines), lines.tally), absolute=True)


def _found(lines: TraceFile) -> Iterator[Fragment]:
    names = Names()
    for number, entry in entries(lines, KEYS):
        row = usable(_fields(entry, names), number, lines)
        if row is None:
            continue
        if row.output_lengths:
            lines.tally.note(SPLIT)
        trace = first(entry, ("trace_id", "session_id"))
        group = first(entry, ("model_group", "model"))
        yield Fragment(row, number, None if trace is None else (str(trace), str(group)))


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
