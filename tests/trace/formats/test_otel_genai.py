from pathlib import Path
from typing import Any

import pytest

from tests.support.spans import START, Attributes, attribute, export, request, span
from tests.support.traces import write_lines
from tuner.errors import TraceError, UsageError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row, Tally

START_MS = START / 1_000_000
CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.usage.input_tokens": 100,
    "gen_ai.usage.output_tokens": 20,
}


def read(path: Path, *lines: object, allow_text: bool = False) -> tuple[list[Row], Tally]:
    source, tally = open_trace(
        write_lines(path, *lines), format_name="otel-genai", allow_text=allow_text
    )
    return list(source.rows), tally


def client(attributes: Attributes = CHAT, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return span("chat m", attributes=attributes, **{"kind": 3, "spanId": "c1", **changes})


@pytest.mark.parametrize(
    ("prompt", "output", "also"),
    [
        ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", {}),
        (
            "gen_ai.usage.prompt_tokens",
            "gen_ai.usage.completion_tokens",
            {"llm.request.type": "chat"},
        ),
        ("llm.usage.prompt_tokens", "llm.usage.completion_tokens", {}),
        (
            "llm.token_count.prompt",
            "llm.token_count.completion",
            {"openinference.span.kind": "LLM"},
        ),
    ],
)
def test_every_spelling_is_read(
    tmp_path: Path, prompt: str, output: str, also: dict[str, str]
) -> None:
    (row,), _ = read(tmp_path / "t", export(client({prompt: 7, output: 3, **also})))
    assert (row.input_length, row.output_length) == (7, 3)


def test_what_else_a_span_says_is_kept_under_pseudonyms(tmp_path: Path) -> None:
    more = {
        "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.conversation.id": "alice@example.com",
        "gen_ai.request.model": "secret-model",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.25,
    }
    (row,), tally = read(tmp_path / "t", export(client({**CHAT, **more}, length_s=2.0)))
    assert row == Row(
        START_MS, 100, 20, e2e_ms=2000, ttft_ms=250, cached_tokens=64, session_id="s0",
        model="m0", stream=True, max_tokens=50, finish_reason="stop",
    )  # fmt: skip
    assert tally.notes == [
        "times are the clients': with the network, and with what they tried again"
    ]


def test_a_client_above_a_server_is_counted_once(tmp_path: Path) -> None:
    above = client({**CHAT, "gen_ai.conversation.id": "c"}, length_s=3.0)
    below = span(start_s=1, attributes=request(prompt=101, output=19), parentSpanId="c1")
    for order in ((above, below), (below, above)):
        rows, tally = read(tmp_path / "t", *map(export, order))
        assert [(row.input_length, row.session_id, row.replica) for row in rows] == [(101, "s0", 0)]
        assert (tally.rows_read, tally.dropped) == (2, {"same_request": 1})


def test_what_lies_between_client_and_server_may_be_a_gateway(tmp_path: Path) -> None:
    spans = [
        client(),
        span("POST", kind=3, spanId="h1", parentSpanId="c1"),
        span("POST /v1", kind=2, spanId="h2", parentSpanId="h1"),
        span(attributes=request(prompt=101), parentSpanId="h2"),
    ]
    rows, tally = read(tmp_path / "t", export(*spans))
    assert [row.input_length for row in rows] == [101]
    assert tally.dropped == {"same_request": 1}


def test_a_link_that_was_never_exported_is_made_up_for_by_time_and_counts(tmp_path: Path) -> None:
    below = span(start_s=0.5, length_s=0.25, attributes=request(prompt=100, output=20))
    rows, tally = read(tmp_path / "t", export(client(length_s=1.0), below))
    assert [row.replica for row in rows] == [0]
    assert tally.dropped == {"same_request": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"start_s": 5.0, "attributes": request(prompt=100, output=20)},
        {"start_s": 0.5, "length_s": 0.25, "attributes": request(prompt=99, output=20)},
    ],
)
def test_a_server_of_another_time_or_size_is_another_request(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    rows, _ = read(tmp_path / "t", export(client(), span(**other)))
    assert len(rows) == 2


def test_what_a_client_tried_twice_is_two_requests_to_the_server(tmp_path: Path) -> None:
    attempts = [
        span(start_s=i, attributes=request(f"cmpl-{i}"), parentSpanId="c1", spanId=f"s{i}")
        for i in range(2)
    ]
    rows, _ = read(tmp_path / "t", export(client(), *attempts))
    assert [row.replica for row in rows] == [0, 0]


def test_three_sequences_below_one_client_are_one_request(tmp_path: Path) -> None:
    below = [
        span(attributes=request(output=10 + i), parentSpanId="c1", spanId=f"s{i}") for i in range(3)
    ]
    (row,), tally = read(tmp_path / "t", export(client(), *below))
    assert (row.n, row.output_lengths) == (3, (10, 11, 12))
    assert tally.dropped == {"same_request": 3}


def test_a_sum_over_choices_is_split_evenly_and_that_is_noted(tmp_path: Path) -> None:
    (row,), tally = read(tmp_path / "t", export(client({**CHAT, "gen_ai.request.choice.count": 3})))
    assert (row.n, row.output_length, row.output_lengths) == (3, 7, (7, 7, 6))
    assert any("split evenly" in note for note in tally.notes)


def test_a_span_that_was_sent_twice_counts_once(tmp_path: Path) -> None:
    rows, tally = read(tmp_path / "t", export(client()), export(client()))
    assert [row.n for row in rows] == [1]
    assert tally.dropped == {"same_request": 1}


def test_a_client_that_was_sent_twice_is_above_its_server_both_times(tmp_path: Path) -> None:
    below = span(attributes=request(prompt=101), parentSpanId="c1")
    rows, tally = read(tmp_path / "t", export(client(), below), export(client(), below))
    assert [row.input_length for row in rows] == [101]
    assert tally.dropped == {"same_request": 3}


def test_agents_chains_and_tools_are_not_requests(tmp_path: Path) -> None:
    spans = [
        span("agent", spanId="a", attributes={**CHAT, "gen_ai.operation.name": "invoke_agent"}),
        span("tool", spanId="b", attributes={"gen_ai.operation.name": "execute_tool"}),
        span(
            "chain",
            spanId="c",
            attributes={"llm.token_count.prompt": 9, "openinference.span.kind": "CHAIN"},
        ),
        client(parentSpanId="a"),
    ]
    rows, tally = read(tmp_path / "t", export(*spans))
    assert (len(rows), tally.rows_read, tally.dropped) == (1, 1, {})


def test_embeddings_generate_nothing(tmp_path: Path) -> None:
    embedding = {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 5}
    rows, tally = read(tmp_path / "t", export(client(), client(embedding, spanId="e")))
    assert (len(rows), tally.dropped) == (1, {"not_generation": 1})


@pytest.mark.parametrize(
    ("attributes", "status"),
    [
        ({}, "error"),
        ({"error.type": "timeout"}, "error"),
        ({"error.type": "503"}, "rejected"),
        ({"error.type": "RateLimitError", "http.response.status_code": 429}, "rejected"),
        ({"http.response.status_code": 500}, "error"),
    ],
)
@pytest.mark.parametrize("code", [2, "STATUS_CODE_ERROR"])
def test_failures_are_kept_with_what_is_known_of_them(
    tmp_path: Path, attributes: Attributes, code: object, status: str
) -> None:
    failed = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": -1, **attributes}
    rows, tally = read(tmp_path / "t", export(client(failed, status={"code": code})))
    assert [(row.status, row.input_length) for row in rows] == [(status, None)]
    assert tally.dropped == {}


def test_a_client_that_went_away_is_an_abort(tmp_path: Path) -> None:
    attributes = {**CHAT, "error.type": "CancelledError"}
    (row,), _ = read(tmp_path / "t", export(client(attributes, status={"code": 2})))
    assert row.status == "aborted"


def test_a_stream_without_usage_is_counted(tmp_path: Path) -> None:
    no_usage = {"gen_ai.operation.name": "chat"}
    rows, tally = read(tmp_path / "t", export(client(), client(no_usage, spanId="e")))
    assert (len(rows), tally.dropped) == (1, {"no_tokens": 1})


def test_spans_that_stand_in_a_ring_end(tmp_path: Path) -> None:
    ring = [
        span("x", spanId="a", parentSpanId="b"),
        span("y", spanId="b", parentSpanId="a"),
        client(parentSpanId="a"),
    ]
    rows, _ = read(tmp_path / "t", export(*ring))
    assert len(rows) == 1


@pytest.mark.parametrize(
    "key",
    [
        *("gen_ai.input.messages", "gen_ai.prompt.0.content", "gen_ai.completion.0.content"),
        *("llm.input_messages.0.message.content", "input.value", "traceloop.entity.output"),
    ],
)
def test_text_is_refused_and_read_over_only_when_allowed(tmp_path: Path, key: str) -> None:
    line = export(client({**CHAT, key: "the patient said"}))
    with pytest.raises(TraceError, match=rf"t:1: holds text \({key}\)"):
        read(tmp_path / "t", line)
    (row,), tally = read(tmp_path / "t", line, allow_text=True)
    assert row.input_length == 100
    assert "patient" not in f"{row} {tally}"


def test_text_in_events_is_text(tmp_path: Path) -> None:
    event = {"name": "gen_ai.user.message", "attributes": [attribute("content", "dear doctor")]}
    with pytest.raises(TraceError, match="holds text"):
        read(tmp_path / "t", export(client(events=[event])))


def test_the_name_of_a_prompt_is_no_text(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "t", export(client({**CHAT, "gen_ai.prompt.name": "summary"})))
    assert len(rows) == 1


def test_a_unit_for_stamps_in_ns_is_wrong_usage(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", export(client(), scope="opentelemetry.openai"))
    with pytest.raises(UsageError, match="ns"):
        open_trace(path, time_unit="s")


def test_the_format_is_found_out(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", export(client(), scope="opentelemetry.openai"))
    source, _ = open_trace(path)
    assert source.header.source == "otel-genai"


LANGFUSE = {
    "langfuse.observation.type": "generation",
    "langfuse.observation.model.name": "m",
    "langfuse.observation.usage_details": '{"input": 80, "input_cached_tokens": 20, "output": 7}',
    "langfuse.observation.completion_start_time": '"2026-11-21T10:01:13.250Z"',
    "langfuse.observation.model.parameters": '{"max_tokens": 9}',
}


def test_spans_in_langfuses_spelling_are_requests(tmp_path: Path) -> None:
    above = span("app", attributes=LANGFUSE | {"langfuse.observation.type": "span"})
    (row,), tally = read(tmp_path / "t", export(above, span("call", attributes=LANGFUSE)))
    assert (row.input_length, row.output_length, row.max_tokens) == (100, 7, 9)
    assert (row.ttft_ms, row.model) == (250, "m0")
    assert tally.dropped == {}


@pytest.mark.parametrize(
    "key",
    [
        "langfuse.observation.input",
        "langfuse.trace.output",
        "ai.prompt",
        "ai.response.text",
        "mlflow.spanInputs",
        "pydantic_ai.all_messages",
    ],
)
def test_text_of_any_library_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(TraceError, match=rf"holds text \({key}\)"):
        read(tmp_path / "t", export(span("call", attributes=LANGFUSE | {key: "hello"})))


def test_an_operation_that_nobody_has_named_is_a_request_if_it_has_tokens(tmp_path: Path) -> None:
    counts = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 7}
    spans = [
        span("call", attributes=counts | {"gen_ai.operation.name": name}, traceId=f"{at:032x}")
        for at, name in enumerate(["responses", "invoke_agent", "execute_tool"], start=1)
    ]
    (row,), tally = read(tmp_path / "t", export(*spans))
    assert row.input_length == 100
    assert (tally.rows_read, tally.dropped) == (1, {})
