"""Spans of calls to language models in OpenTelemetry's gen_ai conventions, and their like.

OpenLLMetry's and OpenInference's spellings too. A client's span above a server's, a chain's above
a client's: of spans above one another only the lowest is a request.
"""

from collections.abc import Iterator
from typing import Literal

from tuner.errors import TraceError
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import usable
from tuner.trace.formats.reading.otlp import (
    INSTANCE,
    REQUEST_NAME,
    Names,
    RawSpan,
    is_otlp,
    raw_spans,
    request_of,
    tokens_of,
)
from tuner.trace.formats.reading.same_request import Fragment, Span, innermost, merged
from tuner.trace.formats.reading.scalars import SPLIT, first
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "otel-genai"
DESCRIPTION = "gen_ai spans of OpenTelemetry, OpenLLMetry and OpenInference, OTLP/JSON"
MARK = "resourceSpans"

GENERATING = frozenset(
    {"chat", "text_completion", "generate_content", "completion", "llm", "generation"}
)
OTHER_CALLS = frozenset({"embeddings", "embedding", "rerank", "reranker"})
LINKS = frozenset(
    {
        *("invoke_agent", "create_agent", "execute_tool", "invoke_workflow", "retrieval"),
        *("agent", "chain", "tool", "workflow", "task", "retriever", "guardrail", "evaluator"),
        *("span", "event"),
    }
)
"""These sum up what the requests beneath them used."""
CLIENTS = "times are the clients': with the network, and with what they tried again"

Kind = Literal["request", "other call", "link"]


def sniff(head: bytes) -> bool:
    return is_otlp(head)


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="in ns")
    header = TraceHeader(source=NAME, time_resolution_ms=0.001, missing=("prefixes",))
    found = innermost(_spans(lines), lines.tally)
    return Source(header, merged(found, lines.tally), absolute=True)


def kind_of(span: RawSpan) -> Kind:
    """Return whether a span is a request, or a call that generates nothing, or neither."""
    says = first(
        span.attributes,
        (
            *("gen_ai.operation.name", "openinference.span.kind", "langfuse.observation.type"),
            *("llm.request.type", "traceloop.span.kind"),
        ),
    )
    what = str(says).lower()
    if what in OTHER_CALLS:
        return "other call"
    if what in GENERATING or span.name == REQUEST_NAME:
        return "request"
    if what in LINKS:
        return "link"
    return "link" if tokens_of(span.attributes) == (None, None) else "request"


def _spans(lines: TraceFile) -> Iterator[Span]:
    names, spans = Names(), 0
    for span in raw_spans(lines):
        spans += 1
        kind = kind_of(span)
        found = None
        if kind == "request":
            found = _request(span, names, lines)
        elif kind == "other call":
            lines.tally.lose("not_generation", span.line)
        yield Span(
            span.id("traceId"), span.id("spanId"), span.id("parentSpanId"), found, span.is_server
        )
    if not lines.tally.rows_read:
        raise TraceError(
            f"{lines.place}: none of its {spans:,} spans is a request to a language model",
            hint="docs/traces.md lists the attributes by which one is known.",
        )


def _request(span: RawSpan, names: Names, lines: TraceFile) -> Fragment | None:
    row = usable(request_of(span, names), span.line, lines)
    if row is None:
        return None
    if not span.is_server:
        lines.tally.note(CLIENTS)
    if row.output_lengths:
        lines.tally.note(SPLIT)
    request = span.attributes.get("gen_ai.request.id")
    part = span.id("spanId")
    if request is None:
        return Fragment(row, span.line, (span.id("traceId"), part) if part else None, part)
    instance = first(span.resource, INSTANCE)
    return Fragment(row, span.line, (str(request), str(instance), row.timestamp), part)
