"""Spans of OpenTelemetry as OTLP/JSON, and the requests in them, in every spelling.

A line, or a document, is one ExportTraceServiceRequest: what the collector's file exporter writes.
Whole numbers of 64 bits are text there, or numbers; ids are taken as they are.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from tuner.trace.formats.reading.json_rows import Fields, broken, is_text
from tuner.trace.formats.reading.scalars import (
    Pseudonyms,
    between_ms,
    epoch_ms,
    failed_tokens,
    first,
    flag,
    inner,
    is_absent,
    is_number,
    seconds_ms,
    sequences,
    status_of,
    token_sum,
    tokens,
)
from tuner.trace.formats.reading.trace_file import TraceFile

MAX_BATCH_BYTES = 64 * 2**20
"""The collector's batches have thousands of spans, of 2 kB each."""

REQUEST_NAME = "llm_request"
"""vLLM's name for the span of a request."""

PROMPT = (
    *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    *("llm.token_count.prompt", "llm.usage.prompt_tokens", "ai.usage.inputTokens"),
)
OUTPUT = (
    *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    *("llm.token_count.completion", "llm.usage.completion_tokens", "ai.usage.outputTokens"),
)
CACHED = (
    *("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    *("gen_ai.usage.cached_input_tokens", "llm.token_count.prompt_details.cache_read"),
)
MODEL = (
    *("gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
    "langfuse.observation.model.name",
)
SESSION = ("gen_ai.conversation.id", "session.id", "langfuse.session.id")
N = ("gen_ai.request.choice.count", "gen_ai.request.n")
STREAM = ("gen_ai.request.stream", "llm.is_streaming")
FIRST_TOKEN_S = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
PARAMETERS = ("llm.invocation_parameters", "langfuse.observation.model.parameters")
CODE = ("http.response.status_code", "http.status_code", "error.type")
INSTANCE = ("service.instance.id", "host.name", "k8s.pod.name")

TEXT = (
    *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"),
    *("gen_ai.prompt", "gen_ai.completion", "gen_ai.content.prompt", "gen_ai.content.completion"),
    *("llm.input_messages", "llm.output_messages", "llm.prompts", "llm.completions"),
    *("input.value", "output.value", "traceloop.entity.input", "traceloop.entity.output"),
    *("gen_ai.event.content", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
    *("langfuse.observation.input", "langfuse.observation.output"),
    *("langfuse.trace.input", "langfuse.trace.output"),
    *("ai.prompt", "ai.prompt.messages", "ai.response.text", "ai.response.object"),
    *("ai.response.toolCalls", "ai.response.reasoning", "ai.toolCall.args", "ai.toolCall.result"),
    *("mlflow.spanInputs", "mlflow.spanOutputs", "all_messages_events", "final_result"),
    *("pydantic_ai.all_messages", "request_data", "response_data", "embedding.text"),
    *("llm.prompt_template.variables", "retrieval.documents"),
)
LISTED = tuple(f"{key}.{digit}" for key in TEXT for digit in range(10))
"""Lists are flattened: ``gen_ai.prompt.0.content``."""

EXPORT = re.compile(rb'\s*\[?\s*\{\s*"resource(?:Spans|Metrics|Logs)"')

_UNSET = ("", "0", 0, None)


class _Scope(msgspec.Struct, gc=False):
    spans: list[msgspec.Raw] | None = None


class _Resource(msgspec.Struct, gc=False):
    resource: dict[str, Any] | None = None
    scopeSpans: list[_Scope] | None = None  # noqa: N815 - as OTLP spells it


class _Export(msgspec.Struct, gc=False):
    resourceSpans: list[_Resource] | None = None  # noqa: N815


@dataclass(frozen=True, slots=True)
class RawSpan:
    """One span, its attributes by name."""

    line: int
    span: dict[str, Any]
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def name(self) -> object:
        return self.span.get("name")

    @property
    def is_server(self) -> bool:
        return self.span.get("kind") in (2, "SPAN_KIND_SERVER")

    def id(self, key: str) -> str:
        value = self.span.get(key)
        return value if isinstance(value, str) and value.strip("0") else ""


@dataclass(slots=True)
class Names:
    """The pseudonyms of one file."""

    replica: Pseudonyms = field(default_factory=Pseudonyms)
    session: Pseudonyms = field(default_factory=Pseudonyms)
    model: Pseudonyms = field(default_factory=Pseudonyms)


_export = msgspec.json.Decoder(_Export).decode
_decode = msgspec.json.Decoder().decode


def is_otlp(head: bytes) -> bool:
    """Whether there are spans; metrics and logs may stand in one file with them."""
    return EXPORT.match(head) is not None and b'"resourceSpans"' in head


def raw_spans(lines: TraceFile) -> Iterator[RawSpan]:
    """Yield all spans; count lines that are none as rows that were dropped.

    Raises TraceError for a span that holds text, unless that was allowed.
    """
    lines.longest = MAX_BATCH_BYTES
    for number, line in lines:
        try:
            export = _export(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            lines.tally.lose(broken(line, number, lines), number)
            continue
        for of_resource in export.resourceSpans or ():
            resource = _attributes((of_resource.resource or {}).get("attributes"))
            for scope in of_resource.scopeSpans or ():
                for raw in scope.spans or ():
                    yield from _span(raw, number, resource, lines)


def request_of(found: RawSpan, names: Names) -> Fields:
    """Return a span's request by canonical names; where the request failed, counts may be
    missing."""
    attributes, resource = found.attributes, found.resource
    start_ms, end_ms = (_ms(found.span.get(f"{side}TimeUnixNano")) for side in ("start", "end"))
    parameters = inner(first(attributes, PARAMETERS))
    status = _status(found)
    prompt, output = tokens_of(attributes)
    counts: Fields = {
        "input_length": prompt,
        **sequences(first(attributes, N) or parameters.get("n"), output),
    }
    if status in ("error", "rejected"):
        counts = {
            "input_length": failed_tokens(counts["input_length"]),
            "output_length": failed_tokens(counts["output_length"]),
        }
    reasons = attributes.get("gen_ai.response.finish_reasons")
    return {
        "timestamp": start_ms,
        **counts,
        "status": status,
        "e2e_ms": between_ms(start_ms, end_ms),
        "ttft_ms": _ttft_ms(attributes, start_ms),
        "queue_ms": seconds_ms(attributes.get("gen_ai.latency.time_in_queue")),
        "max_tokens": tokens(
            first(attributes, ("gen_ai.request.max_tokens",)) or parameters.get("max_tokens")
        ),
        "cached_tokens": tokens(first(attributes, CACHED)),
        "finish_reason": _word(reasons[0] if isinstance(reasons, list) and reasons else reasons),
        "stream": flag(first(attributes, STREAM)),
        "session_id": names.session.named("s", first(attributes, SESSION)),
        "model": names.model.named("m", first(attributes, MODEL)),
        "replica": names.replica.of(first(resource, INSTANCE)) if found.is_server else None,
    }


def tokens_of(attributes: dict[str, Any]) -> tuple[object, object]:
    """Return the tokens of the prompt and of the output, in whatever spelling; None if unknown."""
    prompt, output = (tokens(first(attributes, keys)) for keys in (PROMPT, OUTPUT))
    if prompt is None and output is None:
        told = inner(attributes.get("langfuse.observation.usage_details"))
        prompt, output = token_sum(told, "input"), token_sum(told, "output")
    return prompt, output


def _ttft_ms(attributes: dict[str, Any], start_ms: object) -> object:
    told = first(attributes, FIRST_TOKEN_S)
    if told is not None:
        return seconds_ms(told)
    date = first(attributes, ("langfuse.observation.completion_start_time",))
    return between_ms(start_ms, epoch_ms(date.strip('"') if isinstance(date, str) else date))


def _span(
    raw: msgspec.Raw, number: int, resource: dict[str, Any], lines: TraceFile
) -> Iterator[RawSpan]:
    try:
        span = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        span = None
    if not isinstance(span, dict):
        lines.tally.lose("malformed", number)
        return
    found = RawSpan(number, span, _attributes(span.get("attributes")), resource)
    events = span.get("events")
    _check_text(found.attributes, number, lines)
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict):
            _check_text(_attributes(event.get("attributes")), number, lines, event=True)
    yield found


def _check_text(
    attributes: dict[str, Any], number: int, lines: TraceFile, *, event: bool = False
) -> None:
    for key, value in attributes.items():
        is_one = _names_text(key) or (event and key in ("content", "body"))
        if is_one and isinstance(value, str | list | dict) and is_text(value):
            lines.refuse_text(number, key)


@lru_cache(maxsize=4096)
def _names_text(key: str) -> bool:
    return key in TEXT or key.startswith(LISTED)


def _attributes(pairs: object) -> dict[str, Any]:
    found = {}
    for pair in pairs if isinstance(pairs, list) else ():
        if isinstance(pair, dict) and isinstance(key := pair.get("key"), str):
            found[key] = _value(pair.get("value"))
    return found


def _value(value: object) -> Any:  # noqa: ANN401 - whatever it holds
    if not isinstance(value, dict) or not value:
        return None
    kind, held = next(iter(value.items()))
    if kind == "arrayValue" and isinstance(held, dict):
        elements: Iterable[Any] = held.get("values") or ()
        return [_value(one) for one in elements] if isinstance(elements, list) else []
    if kind == "intValue":
        return tokens(held)
    return held


def _ms(nanoseconds: Any) -> Any:  # noqa: ANN401 - what is no time stays what it is
    """Return ms, to the microsecond; 0 is how OTLP says that a time is unknown."""
    if nanoseconds in _UNSET:
        return None
    whole = tokens(nanoseconds)
    return round(whole // 1000 / 1000, 3) if is_number(whole) else nanoseconds


def _status(found: RawSpan) -> str:
    status = found.span.get("status")
    code = status.get("code") if isinstance(status, dict) else None
    kind = found.attributes.get("error.type")
    if code not in (2, "STATUS_CODE_ERROR") and is_absent(kind):
        return "ok"
    number = tokens(first(found.attributes, CODE))
    if isinstance(number, int) and status_of(number) != "ok":
        return status_of(number)
    gone = any(word in str(kind).lower() for word in ("cancel", "disconnect"))
    return "aborted" if gone else "error"


def _word(value: object) -> str | None:
    """Return a short word such as ``stop``; nothing that could be text."""
    if isinstance(value, str) and len(value) <= 32 and value.replace("_", "").isalnum():
        return value
    return None
