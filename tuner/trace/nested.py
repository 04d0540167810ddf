"""Files whose rows are no flat requests: generators that make flat rows of them.

Each takes the objects of a file and yields flat ones, by the keys of the canonical record or by the
roles of a table, which then take the same check as the rows of any table.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from tuner.errors import TraceError
from tuner.trace.files import TraceFile
from tuner.trace.rows import Numbered, Object, first
from tuner.trace.values import date_ms, error_in, is_empty, number, status_of, words


def _of(row: Object, keys: Iterable[str]) -> Any:  # noqa: ANN401 - any JSON
    """Return what stands under the first of the keys that is not empty."""
    return first(map(row.get, keys))


def _ms(value: Any, more: float = 0) -> Any:  # noqa: ANN401 - as it is, if no number
    """Return ms, to the microsecond, of a number of seconds and more of them."""
    result = number(value)
    return value if result is None else round((result + more) * 1000, 3)


def tracelab(rows: Numbered, _: TraceFile) -> Numbered:
    """Yield TraceLab's rounds: from the last of the inputs to the last that the model wrote."""
    for line, row in rows:
        events = [event for event in row.get("timing_events") or () if isinstance(event, dict)]
        inputs: list[float] = []
        outputs: list[float] = []
        for event in events:
            if (at_ms := date_ms(event.get("timestamp"))) is not None:
                is_input = event.get("event_type") in ("user_message", "tool_result")
                (inputs if is_input else outputs).append(at_ms / 1000)
        begin_s = max(inputs, default=min(outputs, default=None))
        yield line, {**row, "timestamp": begin_s, "end": max(outputs, default=None)}


def llmservingsim(rows: Numbered, _: TraceFile) -> Numbered:
    """Yield LLMServingSim's records. ``arrival_time`` is s since 1970, ``*_ts`` are s of another
    clock; the request that was queued soonest after it arrived aligns the two."""
    held = [
        (line, row, {key: number(row.get(key)) or math.nan for key in CLOCKS}) for line, row in rows
    ]
    gaps_s = (at["queued_ts"] - at["arrival_time"] for *_, at in held)
    ahead_s = min((gap_s for gap_s in gaps_s if not math.isnan(gap_s)), default=0.0)
    for line, row, at in held:
        begin_s = at["arrival_time"] + ahead_s
        yield (
            line,
            row
            | {
                "timestamp": _ms(row.get("arrival_time")),
                "e2e_ms": _ms(at["last_token_ts"], -begin_s),
                "ttft_ms": _ms(at["first_token_ts"], -begin_s),
                "queue_ms": _ms(at["scheduled_ts"], -at["queued_ts"]),
            },
        )


CLOCKS = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def vllm_bench(rows: Numbered, file: TraceFile) -> Numbered:
    """Yield the requests of results of ``vllm bench serve``: documents with a list for each column.

    Stamps are s of a monotonic clock. With ``--max-concurrency`` a request waits in the client for
    ``queue_times`` before it is sent, so that it was due so much earlier.
    """
    (line, result), *more = rows
    if more:
        raise TraceError(
            f"{file.at(more[0][0])}: a second result",
            hint="One result a file: --append-result writes several, one a line; split them.",
        )
    lists = ((key, result.get(key)) for key in BENCH)
    sizes = {key: len(cells) for key, cells in lists if isinstance(cells, list) and cells}
    if len({*sizes.values()}) != 1 or not {*BENCH[:3]} <= sizes.keys():
        raise TraceError(
            f"{file.path}: not a detailed result, or not all of one: entries: {sizes}",
            hint="Run vllm bench serve with --save-result --save-detailed; old versions of vLLM, "
            "and SGLang, never write start_times.",
        )
    for cells in zip(*(result[key] for key in sizes), strict=True):
        held = dict(zip(sizes, cells, strict=True))
        queue_s, status = number(held.get("queue_times")) or 0, error_in(held.get("errors"))
        ttft_s, lasted_s, gaps = (held.get(key) for key in ("ttfts", "latencies", "itls"))
        if is_empty(lasted_s) and isinstance(gaps, list) and not is_empty(ttft_s):
            lasted_s = math.fsum(filter(None, map(number, [ttft_s, *gaps])))
        result = {
            "timestamp": _ms(held["start_times"], -queue_s),
            "input_length": held["input_lens"],
            "output_length": held["output_lens"],
            "status": status,
        }
        if status == "ok":
            result |= {"e2e_ms": _ms(lasted_s, queue_s), "ttft_ms": _ms(ttft_s, queue_s)}
        yield line, result


BENCH = (
    *("start_times", "input_lens", "output_lens"),
    *("ttfts", "itls", "latencies", "queue_times", "errors"),
)

# Spans of OpenTelemetry, in every spelling. Whole numbers of 64 bits are text there, or numbers.

REQUEST_NAME = "llm_request"
"""vLLM's name for the span of a request."""

TOKENS = words(
    "gen_ai.usage.input_tokens gen_ai.usage.prompt_tokens llm.token_count.prompt "
    "llm.usage.prompt_tokens ai.usage.inputTokens langfuse.observation.usage_details "
    "gen_ai.usage.output_tokens gen_ai.usage.completion_tokens llm.token_count.completion "
    "llm.usage.completion_tokens ai.usage.outputTokens"
)
"""Attributes that only a call of a model has."""

CODE = ("http.response.status_code", "http.status_code", "error.type")
INSTANCE = ("service.instance.id", "host.name", "k8s.pod.name")
KIND = words(
    "gen_ai.operation.name openinference.span.kind langfuse.observation.type llm.request.type "
    "traceloop.span.kind"
)
GENERATING = words("chat text_completion generate_content completion llm generation")
OTHER_CALLS = words("embeddings embedding rerank reranker")
LINKS = words(
    "invoke_agent create_agent execute_tool invoke_workflow retrieval agent chain tool workflow "
    "task retriever guardrail evaluator span event"
)
"""These sum up what the requests beneath them used."""

CLIENTS = "times are the clients': with the network, and with what they tried again"


def genai_spans(rows: Numbered, file: TraceFile) -> Numbered:
    """Yield spans of calls to language models, and those that link them."""
    spans = result = 0
    for line, span, resource in _spans(rows, file):
        spans += 1
        row = _request(span, resource)
        kind = str(_of(row, KIND)).lower()
        is_request = kind in GENERATING or span.get("name") == REQUEST_NAME
        if kind not in OTHER_CALLS | LINKS:
            is_request |= _of(row, TOKENS) is not None
        result += is_request or kind in OTHER_CALLS
        if is_request and not row["server"]:
            file.note(CLIENTS)
        reason = "not_generation" if kind in OTHER_CALLS else None if is_request else "link"
        yield line, row | {"reason": reason}
    if not result:
        raise TraceError(
            f"{file.path}: none of its {spans:,} spans is a request to a language model",
            hint="docs/traces.md lists the attributes by which one is known.",
        )


def _spans(rows: Numbered, file: TraceFile) -> Iterator[tuple[int, Object, Object]]:
    """Yield (line, span, attributes of its resource); count what is none."""
    for line, export in rows:
        for of_resource in _dicts(export.get("resourceSpans"), line, file):
            resource = _attributes(of_resource.get("resource"))
            for scope in _dicts(of_resource.get("scopeSpans"), line, file):
                for span in _dicts(scope.get("spans"), line, file):
                    yield line, span, resource


def _dicts(held: object, line: int, file: TraceFile) -> Iterator[Object]:
    for each in held if isinstance(held, list) else () if held is None else (None,):
        if isinstance(each, dict):
            yield each
        else:
            file.lose(line)


def _attributes(of: object) -> Object:
    """Return the attributes of a span, an event or a resource."""
    pairs = of.get("attributes") if isinstance(of, dict) else None
    return {
        pair["key"]: _value(pair.get("value"))
        for pair in (pairs if isinstance(pairs, list) else ())
        if isinstance(pair, dict) and isinstance(pair.get("key"), str)
    }


def _value(value: object) -> Any:  # noqa: ANN401 - whatever it holds
    kind, held = next(iter(value.items()), ("", None)) if isinstance(value, dict) else ("", None)
    if kind == "arrayValue" and isinstance(held, dict):
        elements = held.get("values")
        return [*map(_value, elements)] if isinstance(elements, list) else []
    return held


def _request(span: Object, resource: Object) -> Object:
    """Return the attributes of a span, its times, and what it is linked by."""
    attributes, events = _attributes(span), span.get("events")
    start_ms, end_ms = (_span_ms(span.get(f"{side}TimeUnixNano")) for side in ("start", "end"))
    is_server = span.get("kind") in (2, "SPAN_KIND_SERVER")
    instance, request = _of(resource, INSTANCE), attributes.get("gen_ai.request.id")
    return attributes | {
        "timestamp": start_ms,
        "end": end_ms,
        "status": _span_status(span, attributes),
        "replica": instance if is_server else None,
        "trace": span.get("traceId"),
        "span": span.get("spanId"),
        "parent": span.get("parentSpanId"),
        "server": is_server,
        "key": None if request is None else f"{request} {instance} {start_ms}",
        "events": [*map(_attributes, events)] if isinstance(events, list) else None,
    }


def _span_ms(nanoseconds: Any) -> Any:  # noqa: ANN401 - what is no time stays what it is
    """Return ms, to the microsecond, divided as integers first; 0 is an unknown time."""
    ns = number(nanoseconds)
    return round(ns // 1000 / 1000, 3) if ns else None if ns == 0 else nanoseconds


def _span_status(span: Object, attributes: Object) -> str:
    held, kind = span.get("status"), attributes.get("error.type")
    code = held.get("code") if isinstance(held, dict) else None
    if code not in (2, "STATUS_CODE_ERROR") and is_empty(kind):
        return "ok"
    http = number(_of(attributes, CODE))
    if http is not None and status_of(int(http)) != "ok":
        return status_of(int(http))
    gone = any(word in str(kind).lower() for word in ("cancel", "disconnect"))
    return "aborted" if gone else "error"
