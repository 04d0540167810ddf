"""OTLP/JSON for tests: spans by hand, in the form that the collector writes."""

from collections.abc import Mapping
from itertools import count
from typing import Any

SECOND = 1_000_000_000
START = 1_795_255_273 * SECOND

Attributes = Mapping[str, Any]

_NUMBERS = count(1)


def attribute(key: str, value: Any) -> dict[str, Any]:  # noqa: ANN401 - any kind of value
    return {"key": key, "value": _value(value)}


def _value(value: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": value}


def span(
    name: str = "llm_request",
    *,
    start_s: float = 0.0,
    length_s: float = 1.0,
    attributes: Attributes | None = None,
    **changes: Any,  # noqa: ANN401 - any field of a span
) -> dict[str, Any]:
    start = START + int(start_s * SECOND)
    return {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": f"{next(_NUMBERS):016x}",
        "name": name,
        "kind": 2,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + int(length_s * SECOND)),
        "attributes": [attribute(key, value) for key, value in (attributes or {}).items()],
        "status": {},
        **changes,
    }


def export(
    *spans: dict[str, Any], resource: Attributes | None = None, scope: str = "vllm.tracing.otel"
) -> dict[str, Any]:
    """Return one line of the collector's file."""
    instance = {"service.name": "vllm", "service.instance.id": "a", **(resource or {})}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [attribute(k, v) for k, v in instance.items()]},
                "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}],
            }
        ]
    }


def request(
    request_id: str = "cmpl-1", prompt: object = 200, output: object = 24, **others: object
) -> dict[str, Any]:
    """Return the attributes of vLLM's span."""
    return {
        "gen_ai.latency.time_to_first_token": 0.0525,
        "gen_ai.latency.time_in_queue": 0.002,
        "gen_ai.usage.prompt_tokens": prompt,
        "gen_ai.usage.completion_tokens": output,
        "gen_ai.request.id": request_id,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.n": 1,
        **{key.replace("__", "."): value for key, value in others.items()},
    }
