"""One small whole file of every format, as its source writes it. Rows are made up."""

import json
from pathlib import Path

from tests.support.spans import export, request, span
from tuner.errors import TraceError
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.record import REASONS, Row, Tally


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


EXAMPLES: dict[str, str] = {
    "canonical": jsonl(
        {"tuner_trace": 1, "time_unit": "ms", "block_size": 16, "source": "x"},
        {"timestamp": 0.5, "input_length": 906, "output_length": 446, "e2e_ms": 43000.25},
        {"timestamp": 7, "input_length": 40, "output_length": 9, "hash_ids": [0, 1], "n": 2},
        {"timestamp": 9, "input_length": 4, "output_length": 1, "status": "aborted"},
        {"timestamp": 9, "status": "rejected", "session_id": "s", "turn": 1, "parent_id": "r"},
    ),
    "azure2023": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8"
    ),
    "azure2024": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-12 00:00:00.001163+00:00,1452,3\n2024-05-12 00:00:00+00:00,10,5\n"
    ),
    "azure_lmm2025": (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-15T12:00:00.269Z,2,1452,30\n2024-10-15T12:00:01.000Z,0,10,5\n"
    ),
    "burstgpt": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "19440110.0,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log\n"
        "19440120.0,,7,ChatGPT,10,0,10,API log\n"
    ),
    "table": (
        "created_at,prompt_tokens,completion_tokens,latency_ms,tenant,status\n"
        "2026-11-21 10:00:00.123,120,40,920,acme,200\n"
        "2026-11-21 10:00:01.823,1340,210,4810.5,,200\n"
        "2026-11-21 10:00:03.500,57,0,3,zeta,503\n"
    ),
    "bailian": jsonl(
        {
            "chat_id": 159,
            "parent_chat_id": -1,
            "timestamp": 61.114,
            "input_length": 33,
            "output_length": 132,
            "type": "text",
            "turn": 1,
            "hash_ids": [1089, 1090, 1091],
        },
        {
            "chat_id": 160,
            "parent_chat_id": 159,
            "timestamp": 70.5,
            "input_length": 48,
            "output_length": 7,
            "type": "image",
            "turn": 2,
            "hash_ids": [1089, 1090, 1092],
        },
    ),
    "aiperf": jsonl(
        {"session_id": "a", "timestamp": 1000, "input_length": 300, "output_length": 40},
        {"session_id": "a", "delay": 2000.5, "input_length": 150, "output_length": 20},
        {"timestamp": 1500, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]},
    ),
    "mooncake": jsonl(
        {"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [*range(14)]},
        {"timestamp": 3000, "input_length": 600, "output_length": 8, "hash_ids": [0, 20]},
    ),
    "guidellm": jsonl(
        {"timestamp": 0.25, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 1.5, "input_length": 10, "output_length": 5, "hash_ids": [2], "duration": 2},
    ),
    "timed_trace": jsonl(
        {"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 1.5, "input_length": 40, "output_length": 5, "hash_ids": [0, 2, 3]},
    ),
    "weka": json.dumps(
        {
            "id": "c0",
            "models": ["m"],
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": [
                {
                    "t": 0.0,
                    "type": "n",
                    "model": "m",
                    "in": 130,
                    "out": 9,
                    "hash_ids": [0, 1, 2],
                    "api_time": 1.5,
                    "stop": "tool_use",
                },
                {
                    "t": 2.0,
                    "type": "subagent",
                    "agent_id": "a1",
                    "subagent_type": "Explore",
                    "models": ["m"],
                    "status": "completed",
                    "requests": [
                        {
                            "t": 0.5,
                            "type": "s",
                            "model": "m",
                            "in": 70,
                            "out": 3,
                            "hash_ids": [7, 8],
                            "ttft": 0.25,
                            "api_time": 1,
                        }
                    ],
                },
                {"t": 9.0, "type": "s", "model": "m", "in": 200, "out": 2, "hash_ids": [0, 1, 3]},
            ],
        },
        indent=1,
    ),
    "swissai": jsonl(
        {
            "id": "x",
            "status": "DEFAULT",
            "created_at": "2025-03-01T10:00:00.500Z",
            "finished_at": "2025-03-01T10:00:02.000Z",
            "model": "Qwen/Qwen3-32B",
            "model_parameters": {"max_tokens": 256, "temperature": "null"},
            "reported_token_input": 40,
            "reported_token_output": 38,
            "bucket_ids": [5, 6, 7],
        },
        {
            "id": "y",
            "status": "ERROR",
            "created_at": "2025-03-01T10:00:01Z",
            "finished_at": "null",
            "model": "null",
            "model_parameters": "null",
            "reported_token_input": -1,
            "reported_token_output": -1,
        },
    ),
    "tracelab": jsonl(
        {
            "session_id": "claude:92ee",
            "round_index": 0,
            "model": "m",
            "input_tokens_total": 32272,
            "prefix_tokens": 27217,
            "output_tokens": 931,
            "timing_events": [
                {"event_type": "tool_result", "timestamp": "2026-06-01T05:40:20.151Z"},
                {"event_type": "user_message", "timestamp": "2026-06-01T05:40:21.151Z"},
                {"event_type": "reasoning", "timestamp": "2026-06-01T05:40:29.420Z"},
                {"event_type": "text", "timestamp": "2026-06-01T05:40:31.151Z"},
            ],
        },
    ),
    "llmservingsim": jsonl(
        {
            "request_id": "b-0",
            "input_toks": 10,
            "output_toks": 5,
            "arrival_time": 1000.0,
            "queued_ts": 50.5,
            "scheduled_ts": 50.75,
            "first_token_ts": 51.0,
            "last_token_ts": 52.0,
        },
        {
            "request_id": "b-1",
            "input_toks": 10,
            "output_toks": 5,
            "arrival_time": 1001.0,
            "queued_ts": 51.0,
            "scheduled_ts": 51.0,
            "first_token_ts": 51.5,
            "last_token_ts": 53.0,
        },
    ),
    "vllm_bench": json.dumps(
        {
            "date": "20261121-1",
            "backend": "vllm",
            "model_id": "m",
            "tokenizer_id": "m",
            "num_prompts": 2,
            "request_rate": "inf",
            "max_concurrency": 1,
            "completed": 1,
            "input_lens": [10, 20],
            "output_lens": [3, 0],
            "ttfts": [0.5, 0.0],
            "itls": [[0.25, 0.25], []],
            "start_times": [100.0, 102.0],
            "queue_times": [0, 2.0],
            "generated_texts": ["", ""],
            "errors": ["", "Bad Gateway"],
        }
    ),
    "vllm-otlp": jsonl(
        export(span(attributes=request())),
        export(span("Load model", start_s=0.5), span(start_s=1, attributes=request("r-2"))),
    ),
    "otel-genai": jsonl(
        export(
            span(
                "chat m",
                kind=3,
                attributes={
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": "m",
                    "gen_ai.usage.input_tokens": 10,
                    "gen_ai.usage.output_tokens": 4,
                    "gen_ai.response.finish_reasons": ["stop"],
                },
            ),
            scope="opentelemetry.instrumentation.openai",
        )
    ),
    "litellm": jsonl(
        {
            "request_id": "chatcmpl-1",
            "session_id": "1",
            "call_type": "acompletion",
            "cache_hit": "None",
            "startTime": "2025-01-24 09:20:46.847371",
            "endTime": "2025-01-24 09:20:48.851954",
            "completionStartTime": "2025-01-24 09:20:47.000000",
            "model": "m",
            "total_tokens": 30,
            "prompt_tokens": 10,
            "completion_tokens": 20,
            "api_base": "http://a",
            "messages": "{}",
            "status": "success",
        }
    ),
    "langfuse": jsonl(
        {
            "id": "o1",
            "traceId": "t1",
            "type": "GENERATION",
            "startTime": "2024-05-29T13:46:19.963Z",
            "endTime": "2024-05-29T13:46:21.963Z",
            "completionStartTime": "2024-05-29T13:46:20.213Z",
            "model": "m",
            "usageDetails": {"input": 100, "input_cached_tokens": 5, "output": 20, "total": 125},
            "level": "DEFAULT",
        }
    ),
    "envoy": json.dumps(
        {
            "start_time": "2025-08-30T16:51:37.894Z",
            "duration": 1526,
            "response_code": 200,
            "response_flags": "-",
            "gen_ai.request.model": "m",
            "gen_ai.usage.input_tokens": 15,
            "gen_ai.usage.output_tokens": 7,
            "upstream_host": "10.0.0.1:8000",
            "x-request-id": "83b6",
        },
        indent=2,
    ),
    "nginx": jsonl(
        {
            "msec": "1795255273.500",
            "request_time": "1.500",
            "status": "200",
            "uri": "/v1/chat/completions",
            "upstream_addr": "10.0.0.1:8000",
            "prompt_tokens": "100",
            "completion_tokens": "20",
        }
    ),
}


TABLES: dict[str, str] = {
    "azure2023": (
        '"GeneratedTokens";"TIMESTAMP";"ContextTokens"\n"10.0";"2023-11-16T18:17:03.97";"4808.0"\n'
    ),
    "azure2024": (
        ",TIMESTAMP,ContextTokens,GeneratedTokens\n0,NaT,1,1\n1,2024-05-12 00:00:00Z,1452,3\n"
    ),
    "burstgpt": (
        ',"Timestamp","Model","Request tokens","Response tokens","Total tokens","Log Type"\n'
        '0,"5.0","ChatGPT","472.0","18.0","490.0","Conversation, log"\n'
    ),
    "table": (
        '"Prompt tokens";"Output tokens";"Time";"Duration (s)";"Model"\r\n'
        '1.234;"12";21.11.2026 10:00:00;0,92;"a;b"\r\n57;9;21.11.2026 10:00:02;"0,25";m\r\n'
    ),
    "litellm": (
        "call_type,startTime,endTime,prompt_tokens,completion_tokens,metadata,messages\n"
        'acompletion,2025-01-24 09:20:46.8,2025-01-24 09:20:48.8,10,20,"{""a"": 1}",{}\n'
    ),
    "langfuse": (
        "id,traceId,type,startTime,endTime,inputTokens,outputTokens,usageDetails,input\n"
        'o1,t1,GENERATION,2024-05-29T13:46:19.963Z,,,,"{""input"":9,""output"":2}","a\n\nb, c"\n'
        "o2,t1,SPAN,2024-05-29T13:46:19.963Z,,100,20,,\n"
    ),
}
"""Tables as spreadsheets and databases write them."""


CLOCKS_SET_BACK = "ts,prompt_tokens,completion_tokens,latency_ms\n" + "".join(
    f"2026-10-25 {at},{prompt},5,250\n"
    for prompt, at in enumerate(
        ("01:59:58", "02:40:00", "02:59:59", "02:00:01", "02:30:00", "03:00:00"), 1
    )
)
"""A table of local times with an hour twice."""


def read(
    path: Path,
    content: str | bytes,
    format_name: str | None,
    *,
    time_unit: TimeUnit | None = None,
    allow_text: bool = False,
) -> tuple[list[Row], Tally]:
    """Read a file of this content to its end. Raises TraceError."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    source, tally = open_trace(
        path, format_name=format_name, time_unit=time_unit, allow_text=allow_text
    )
    return list(source.rows), tally


def check_reconciled(
    path: Path, content: bytes, format_name: str | None, *, allow_text: bool = False
) -> tuple[int, int] | None:
    """Read whatever this is; return (rows read, rows kept) if it is a trace, None if it is none.

    Raises AssertionError where counts do not reconcile, and whatever else is a bug.
    """
    path.write_bytes(content)
    refusal: TraceError | None = None
    tally = Tally(str(path))
    rows: list[Row] = []
    try:
        source, tally = open_trace(path, format_name=format_name, allow_text=allow_text)
        rows = list(source.rows)
    except TraceError as error:
        refusal = error
    if refusal is not None:
        assert refusal.hint
        assert "\n" not in f"{refusal}{refusal.hint}"
        return None
    assert len(rows) == tally.rows_kept
    assert tally.rows_read == tally.rows_kept + sum(tally.dropped.values())
    assert set(tally.dropped) <= set(REASONS)
    assert set(tally.first_line) == set(tally.dropped)
    for row in rows:
        assert row.timestamp >= 0
        assert row.status in ("error", "rejected") or (row.input_length or 0) >= 1
    return tally.rows_read, tally.rows_kept
