"""Langfuse: observations as its API and its interface give them (camelCase), and as its exports do.

Dates without a zone are UTC. Of a generation above another only the lower one is a request.
"""

import re
from collections.abc import Iterator

from tuner.trace.formats.reading.exports import entries, first_keys
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, usable
from tuner.trace.formats.reading.otlp import Names
from tuner.trace.formats.reading.record import Reason
from tuner.trace.formats.reading.same_request import Fragment, Span, innermost, merged
from tuner.trace.formats.reading.scalars import (
    SPLIT,
    between_ms,
    epoch_ms,
    failed_tokens,
    first,
    flag,
    inner,
    sequences,
    status_of,
    token_sum,
    tokens,
)
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "langfuse"
DESCRIPTION = "Langfuse's observations, from its API or its exports"
MARK = "id, traceId, type, startTime"

API = frozenset({"id", "traceId", "type", "startTime"})
EXPORT = frozenset({"id", "trace_id", "type", "start_time"})

PROMPT = (
    *("promptTokens", "prompt_tokens", "inputTokens", "input_tokens"),
    *("inputUsage", "input_usage"),
)
OUTPUT = (
    *("completionTokens", "completion_tokens", "outputTokens", "output_tokens"),
    *("outputUsage", "output_usage"),
)
"""Counts beside the usage, or in it, as older versions and tables have them."""

START, END = ("startTime", "start_time"), ("endTime", "end_time")
FIRST_TOKEN = ("completionStartTime", "completion_start_time")
CODE = re.compile(r"\b(4\d\d|5\d\d)\b")


def sniff(head: bytes) -> bool:
    keys = first_keys(head)
    return keys >= API or keys >= EXPORT


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")
    header = TraceHeader(source=NAME, missing=("prefixes", "queue"))
    found = innermost(_spans(lines), lines.tally)
    return Source(header, merged(found, lines.tally), absolute=True)


def _spans(lines: TraceFile) -> Iterator[Span]:
    names = Names()
    for number, entry in entries(lines, API, EXPORT):
        yield Span(
            str(first(entry, ("traceId", "trace_id")) or ""),
            str(entry.get("id") or ""),
            str(first(entry, ("parentObservationId", "parent_observation_id")) or ""),
            _generation(entry, number, names, lines),
        )


def _generation(entry: Object, number: int, names: Names, lines: TraceFile) -> Fragment | None:
    row = usable(_fields(entry, names), number, lines)
    if row is None:
        return None
    if row.output_lengths:
        lines.tally.note(SPLIT)
    part = str(entry.get("id") or "")
    trace = first(entry, ("traceId", "trace_id"))
    return Fragment(row, number, (str(trace), part) if part else None, part)


def _fields(entry: Object, names: Names) -> Fields | Reason:
    if str(entry.get("type")).upper() != "GENERATION":
        return "not_generation"
    start_ms, end_ms, first_ms = (
        epoch_ms(first(entry, keys)) for keys in (START, END, FIRST_TOKEN)
    )
    parameters = inner(first(entry, ("modelParameters", "model_parameters")))
    usage = inner(first(entry, ("usageDetails", "usage_details")))
    old = inner(entry.get("usage"))
    if not usage and str(old.get("unit") or "TOKENS") == "TOKENS":
        usage = old
    prompt, output = token_sum(usage, "input"), token_sum(usage, "output")
    if prompt is None and output is None:
        prompt, output = (tokens(first({**entry, **usage}, keys)) for keys in (PROMPT, OUTPUT))
    status = _status(entry)
    if status != "ok":
        prompt, output = failed_tokens(prompt), failed_tokens(output)
    return {
        "timestamp": start_ms,
        "input_length": prompt,
        **sequences(parameters.get("n"), output),
        "status": status,
        "e2e_ms": between_ms(start_ms, end_ms),
        "ttft_ms": between_ms(start_ms, first_ms),
        "max_tokens": tokens(
            first(parameters, ("max_tokens", "maxTokens", "max_completion_tokens"))
        ),
        "cached_tokens": token_sum(usage, "input", "cache", "creation"),
        "stream": flag(parameters.get("stream")),
        "session_id": names.session.named("s", first(entry, ("sessionId", "session_id"))),
        "model": names.model.named(
            "m", first(entry, ("model", "providedModelName", "provided_model_name"))
        ),
    }


def _status(entry: Object) -> str:
    if entry.get("level") != "ERROR":
        return "ok"
    said = first(entry, ("statusMessage", "status_message"))
    code = CODE.search(said[:1000]) if isinstance(said, str) else None
    found = status_of(int(code[0])) if code else "error"
    return "error" if found == "ok" else found
