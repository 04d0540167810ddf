"""vLLM's own spans (``--otlp-traces-endpoint``) as the OpenTelemetry collector writes them.

One span ``llm_request`` a sequence, at its end. A request of n sequences is n spans of one id and
one start. A request that did not finish has no span at all.
"""

from collections.abc import Iterator

from tuner.errors import TraceError
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import usable
from tuner.trace.formats.reading.otlp import (
    INSTANCE,
    REQUEST_NAME,
    Names,
    is_otlp,
    raw_spans,
    request_of,
)
from tuner.trace.formats.reading.same_request import Fragment, merged
from tuner.trace.formats.reading.scalars import first
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "vllm-otlp"
DESCRIPTION = "vLLM's spans, OTLP/JSON"
MARK = "resourceSpans with llm_request"

MARKS = (b'"llm_request"', b'"vllm.', b'"gen_ai.latency.')


def sniff(head: bytes) -> bool:
    return is_otlp(head) and any(mark in head for mark in MARKS)


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="in ns")
    header = TraceHeader(
        source=NAME,
        time_resolution_ms=0.001,
        missing=("aborts", "errors", "prefixes", "sessions", "model"),
    )
    return Source(header, merged(_found(lines), lines.tally), absolute=True)


def _found(lines: TraceFile) -> Iterator[Fragment]:
    names, spans = Names(), 0
    for span in raw_spans(lines):
        spans += 1
        if span.name != REQUEST_NAME:
            continue
        row = usable(request_of(span, names), span.line, lines)
        if row is None:
            continue
        request = span.attributes.get("gen_ai.request.id")
        instance = first(span.resource, INSTANCE)
        key = None if request is None else (str(request), str(instance), row.timestamp)
        yield Fragment(row, span.line, key, span.id("spanId"))
    if not lines.tally.rows_read:
        raise TraceError(
            f"{lines.place}: none of its {spans:,} spans is a request's",
            hint="vLLM sends one a request with --otlp-traces-endpoint; is it sampled away?",
        )
