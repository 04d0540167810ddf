"""Files whose rows are no flat requests: generators that make flat rows of them.

Each takes the objects of a file and yields flat ones, by the keys of the canonical record or by the
roles of a table, which then take the same check as the rows of any table.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from tuner.errors import TraceError
from tuner.trace.files import TraceFile
from tuner.trace.record import MAX_TOKENS
from tuner.trace.rows import Numbered, Object, first
from tuner.trace.values import date_ms, number


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


# vLLM's spans. Whole numbers of 64 bits are text in OTLP/JSON, or numbers.

REQUEST_NAME = "llm_request"
"""vLLM's name for the span of a request; other spans are not counted."""

INSTANCE = ("service.instance.id", "host.name", "k8s.pod.name")
INPUT = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
OUTPUT = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")


def vllm_spans(rows: Numbered, file: TraceFile) -> Numbered:
    """Yield the requests of vLLM's spans, of which each sequence of n > 1 has its own."""
    requests: dict[str, dict[object, tuple[int, Object]]] = {}
    for place, (line, span, resource) in enumerate(_spans(rows, file)):
        if span.get("name") != REQUEST_NAME:
            continue
        row = _request(span, resource)
        span_id = str(span.get("spanId") or place)
        tokens = [number(_of(row, names)) or 0 for names in (INPUT, OUTPUT)]
        is_usable = all(0 < each <= MAX_TOKENS and each % 1 == 0 for each in tokens)
        same = requests.setdefault((is_usable and row["key"]) or span_id, {})
        if same:
            file.rows_read += 1
            file.drop("same_request", line)
        same.setdefault(span_id, (line, row))
    if not requests:
        raise TraceError(
            f"{file.path}: none of its spans is vLLM's of a request ({REQUEST_NAME})",
            hint="Start vllm serve with --otlp-traces-endpoint, or with --middleware "
            "tuner.capture.TraceRecorder.",
        )
    for same in requests.values():
        (line, row), *others = same.values()
        if others:
            spans = [row, *(span for _, span in others)]
            lengths = [int(number(_of(span, OUTPUT)) or 0) for span in spans]
            ends = [end for span in spans if (end := number(span["end"])) is not None]
            row |= {"n": len(spans), "output_lengths": lengths, "output_length": max(lengths)}
            row["end"] = max(ends, default=None)
        yield line, row


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
    """Return the attributes of a span, its times, and what it is known by."""
    attributes = _attributes(span)
    start_ms, end_ms = (_span_ms(span.get(f"{side}TimeUnixNano")) for side in ("start", "end"))
    instance, request = _of(resource, INSTANCE), attributes.get("gen_ai.request.id")
    events = span.get("events")
    return attributes | {
        "timestamp": start_ms,
        "end": end_ms,
        "replica": instance,
        "key": None if request is None else f"{request} {instance} {start_ms}",
        "events": [*map(_attributes, events)] if isinstance(events, list) else None,
    }


def _span_ms(nanoseconds: Any) -> Any:  # noqa: ANN401 - what is no time stays what it is
    """Return ms, to the microsecond, divided as integers first; 0 is an unknown time."""
    ns = number(nanoseconds)
    return round(ns // 1000 / 1000, 3) if ns else None if ns == 0 else nanoseconds
