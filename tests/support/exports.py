"""Eight requests as people's tools export them. All made up; the form is the tools' own."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
from pyarrow import feather, parquet

BEGIN = datetime(2026, 11, 21, 10, 0, 0, 125_000, tzinfo=UTC)


@dataclass(frozen=True)
class One:
    """A request: seconds after BEGIN, tokens, seconds that it took."""

    at_s: float
    prompt: int
    output: int
    took_s: float

    @property
    def start(self) -> datetime:
        return BEGIN + timedelta(seconds=self.at_s)

    @property
    def end(self) -> datetime:
        return self.start + timedelta(seconds=self.took_s)


REQUESTS = tuple(
    One(1.75 * place, prompt, output, took_s)
    for place, (prompt, output, took_s) in enumerate(
        [
            *((120, 40, 0.875), (1340, 210, 4.75), (57, 9, 0.25), (908, 128, 2.5)),
            *((22_110, 301, 7.125), (35, 55, 1.25), (640, 12, 0.375), (77, 88, 2.0)),
        ]
    )
)


def naive(when: datetime, digits: int = 6) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S.%f}"[: 20 + digits]


def iso(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%S.%f}"[:23] + "Z"


def table(
    headings: Sequence[str],
    row: Callable[[One], Iterable[object]],
    *,
    delimiter: str = ",",
    quoted: bool = False,
    requests: Sequence[One] = REQUESTS,
) -> str:
    out = io.StringIO()
    writer = csv.writer(
        out,
        delimiter=delimiter,
        quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL,
        lineterminator="\n",
    )
    writer.writerow(headings)
    writer.writerows(row(one) for one in requests)
    return out.getvalue()


def lines(row: Callable[[One], object]) -> str:
    return "".join(json.dumps(row(one)) + "\n" for one in REQUESTS)


def german(number: float) -> str:
    return f"{number:,}".replace(",", " ").replace(".", ",").replace(" ", ".")


def ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)


TEXTS: dict[str, str | bytes] = {
    "pandas to_csv": "".join(
        f"{'' if place < 0 else place},{line}\n"
        for place, line in enumerate(
            table(
                ("timestamp", "prompt_tokens", "completion_tokens", "model"),
                lambda one: (naive(one.start), f"{one.prompt}.0", f"{one.output}.0", "llama"),
            ).splitlines(),
            -1,
        )
    ),
    "pandas to_json lines": lines(
        lambda one: {"ts": ms(one.start), "input_tokens": one.prompt, "output_tokens": one.output}
    ),
    "pandas to_json": json.dumps(
        {
            "timestamp": {str(i): ms(one.start) for i, one in enumerate(REQUESTS)},
            "prompt_tokens": {str(i): one.prompt for i, one in enumerate(REQUESTS)},
            "completion_tokens": {str(i): one.output for i, one in enumerate(REQUESTS)},
        }
    ),
    "pandas to_json split": json.dumps(
        {
            "columns": ["timestamp", "prompt_tokens", "completion_tokens"],
            "index": [*range(len(REQUESTS))],
            "data": [[ms(one.start), one.prompt, one.output] for one in REQUESTS],
        }
    ),
    "PostgreSQL COPY csv": table(
        ("id", "created_at", "prompt_tokens", "completion_tokens", "latency_ms"),
        lambda one: (
            one.prompt * 7, naive(one.start) + "+00", one.prompt, one.output, one.took_s * 1000
        ),
    ),
    "PostgreSQL COPY text": table(
        ("created_at", "tenant_id", "prompt_tokens", "completion_tokens"),
        lambda one: (naive(one.start), r"\N", one.prompt, one.output),
        delimiter="\t",
    ),
    "psql": " started_at | prompt_tokens | completion_tokens \n------------+-----+-----\n"
    + "".join(f" {naive(one.start)} | {one.prompt} | {one.output}\n" for one in REQUESTS)
    + "(8 rows)\n\n",
    "BigQuery csv": table(
        ("event_timestamp", "input_token_count", "output_token_count"),
        lambda one: (f"{naive(one.start)} UTC", one.prompt, one.output),
    ),
    "BigQuery json": lines(
        lambda one: {
            "ts": f"{naive(one.start)} UTC",
            "usage": {"prompt_tokens": str(one.prompt), "completion_tokens": str(one.output)},
        }
    ),
    "ClickHouse TabSeparatedWithNamesAndTypes": table(
        ("event_time", "input_tokens", "output_tokens", "model"),
        lambda one: (naive(one.start, 3), one.prompt, one.output, "m"),
        delimiter="\t",
    ).replace("\n", "\nDateTime64(3)\tUInt32\tUInt32\tLowCardinality(String)\n", 1),
    "ClickHouse JSONEachRow": lines(
        lambda one: {
            "event_time": naive(one.start, 3),
            "promptTokens": str(one.prompt),
            "completionTokens": str(one.output),
        }
    ),
    "Datadog": table(
        ("Date", "Host", *("@usage.prompt_tokens", "@usage.completion_tokens", "@duration")),
        lambda one: (
            iso(one.start), "h1", one.prompt, one.output, round(one.took_s * 1e9)
        ),
        quoted=True,
        requests=REQUESTS[::-1],
    ),
    "Grafana": "sep=,\n"
    + table(
        ("Time", "prompt_tokens", "generation_tokens"),
        lambda one: (naive(one.start, 3), one.prompt, one.output),
        quoted=True,
    ),
    "Grafana frames": json.dumps(
        [
            {"Time": ms(one.start), "input tokens": one.prompt, "output tokens": one.output}
            for one in REQUESTS
        ],
        indent=2,
    ),
    "Excel, German": "\ufeffProtokoll 21. November;;;\n\n"
    + table(
        ("Time", "Prompt tokens", "Output tokens", "Duration (s)"),
        lambda one: (
            f"{one.start:%d.%m.%Y %H:%M:%S},{one.start:%f}", german(one.prompt), one.output,
            german(one.took_s),
        ),
        delimiter=";",
    ).replace("\n", "\r\n"),
    "Excel, American": table(
        ("Start Time", "Input Tokens", "Output Tokens", "Latency (ms)"),
        lambda one: (
            f"{one.start:%m/%d/%Y %I:%M:%S.%f %p}", f"{one.prompt:,}", one.output,
            f"{one.took_s * 1000:,.0f}",
        ),
    ),
    "Excel, Unicode text": table(
        ("Time", "Prompt Tokens", "Completion Tokens"),
        lambda one: (naive(one.start, 3), one.prompt, one.output),
        delimiter="\t",
    ).encode("utf-16"),
    "Kibana": table(
        ("@timestamp", "llm.usage.prompt_tokens", "llm.usage.completion_tokens"),
        lambda one: (
            f"{one.start:%b %d, %Y @ %H:%M:%S}.{one.start.microsecond // 1000:03d}",
            f"{one.prompt:,}", one.output,
        ),
        quoted=True,
    ),
    "Splunk": table(
        ("_time", "prompt_tokens", "completion_tokens", "status", "response_time"),
        lambda one: (
            f"{one.start:%Y-%m-%dT%H:%M:%S.%f}"[:23] + "+0000", one.prompt, one.output, 200,
            one.took_s,
        ),
        quoted=True,
    ),
    "CloudWatch Logs Insights": table(
        ("@timestamp", "inputTokenCount", "outputTokenCount"),
        lambda one: (naive(one.start, 3), one.prompt, one.output),
    ),
    "Azure Log Analytics": table(
        ("TimeGenerated [UTC]", "PromptTokens", "CompletionTokens", "DurationMs"),
        lambda one: (
            f"{one.start:%m/%d/%Y, %I:%M:%S}.{one.start.microsecond // 1000:03d} {one.start:%p}",
            one.prompt, one.output, one.took_s * 1000,
        ),
        quoted=True,
    ),
    "OpenAI usage": table(
        (
            *("start_time", "end_time", "start_time_iso", "project_id", "model"),
            *("num_model_requests", "input_tokens", "output_tokens", "input_cached_tokens"),
        ),
        lambda one: (
            one.start.timestamp(), one.start.timestamp() + 60, one.start.isoformat(), "proj_1",
            "gpt-4o", 1, one.prompt, one.output, 0,
        ),
    ),
    "OpenAI responses": lines(
        lambda one: {
            "id": f"chatcmpl-{one.prompt}",
            "object": "chat.completion",
            "created": one.start.timestamp(),
            "model": "m",
            "usage": {
                "prompt_tokens": one.prompt,
                "completion_tokens": one.output,
                "total_tokens": one.prompt + one.output,
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
            },
        }
    ),
    "Anthropic usage": lines(
        lambda one: {
            "created_at": iso(one.start),
            "usage": {
                "input_tokens": one.prompt - 20,
                "cache_read_input_tokens": 16,
                "cache_creation_input_tokens": 4,
                "output_tokens": one.output,
            },
        }
    ),
    "LiteLLM, some columns": table(
        ("startTime", "endTime", "prompt_tokens", "completion_tokens", "total_tokens", "model"),
        lambda one: (
            naive(one.start), naive(one.end), one.prompt, one.output, one.prompt + one.output, "m"
        ),
    ),
    "Snowflake": table(
        ("START_TIME", "END_TIME", "PROMPT_TOKENS", "COMPLETION_TOKENS"),
        lambda one: (f"{naive(one.start, 3)} +0000", f"{naive(one.end, 3)} +0000", one.prompt,
                     one.output),
    ),
    "MySQL": table(
        ("started_at", "tokens_in", "tokens_out", "duration_ms"),
        lambda one: (naive(one.start, 3), one.prompt, one.output, one.took_s * 1000),
        delimiter="\t",
    ),
    "OpenRouter": table(
        ("created_at", "model", "tokens_prompt", "tokens_completion", "generation_time_ms"),
        lambda one: (naive(one.start), "m", one.prompt, one.output, round(one.took_s * 1000)),
    ),
    "Vertex AI": lines(
        lambda one: {
            "createTime": iso(one.start),
            "usageMetadata": {
                "promptTokenCount": one.prompt,
                "candidatesTokenCount": one.output,
                "totalTokenCount": one.prompt + one.output,
            },
        }
    ),
    "Ollama": lines(
        lambda one: {
            "created_at": iso(one.start),
            "model": "llama3",
            "total_duration": round(one.took_s * 1e9),
            "load_duration": 1_000_000,
            "prompt_eval_count": one.prompt,
            "eval_count": one.output,
        }
    ),
    "R write.table": "time prompt_tokens output_tokens\n".replace(" ", "\t")
    + "".join(
        f"{place}\t{naive(one.start)}\t{one.prompt}\t{one.output}\n"
        for place, one in enumerate(REQUESTS, 1)
    ),
    "Markdown": "| time | prompt tokens | output tokens |\n|---|---:|---:|\n"
    + "".join(f"| {naive(one.start)} | {one.prompt} | {one.output} |\n" for one in REQUESTS),
    "epoch seconds": table(
        ("time", "prompt_tokens", "completion_tokens", "model"),
        lambda one: (one.start.timestamp(), one.prompt, one.output, "m"),
    ),
    "epoch nanoseconds": table(
        ("startTimeUnixNano", "endTimeUnixNano", "gen_ai.usage.input_tokens",
         "gen_ai.usage.output_tokens"),
        lambda one: (ms(one.start) * 10**6, ms(one.end) * 10**6, one.prompt, one.output),
    ),
    "date and time apart": table(
        ("date", "time", "prompt_len", "gen_len"),
        lambda one: (f"{one.start:%Y-%m-%d}", f"{one.start:%H:%M:%S.%f}", one.prompt, one.output),
    ),
    "total and prompt": table(
        ("request_time", "total_tokens", "prompt_tokens"),
        lambda one: (one.start.astimezone(timezone(timedelta(hours=2))).isoformat(),
                     one.prompt + one.output, one.prompt),
    ),
    "end and duration": table(
        ("finished_at", "elapsed_s", "isl", "osl"),
        lambda one: (iso(one.end), one.took_s, one.prompt, one.output),
    ),
    "Go durations": table(
        ("ts", "duration", "num_prompt_tokens", "num_generated_tokens"),
        lambda one: (iso(one.start), f"{one.took_s}s", one.prompt, one.output),
    ),
    "Apache dates": table(
        ("time_local", "prompt_tokens", "completion_tokens"),
        lambda one: (f"{one.start:%d/%b/%Y:%H:%M:%S.%f} +0000", one.prompt, one.output),
    ),
    "Athena": table(
        ("eventtime", "inputtokencount", "outputtokencount", "invocationlatency", "modelid"),
        lambda one: (f"{naive(one.start)} UTC", one.prompt, one.output,
                     round(1000 * one.took_s), "m"),
        quoted=True,
    ),
    "Kibana, durations": table(
        ("@timestamp", "llm.usage.prompt_tokens", "llm.usage.completion_tokens", "event.duration"),
        lambda one: (f"{one.start:%b %d, %Y @ %H:%M:%S}.{one.start.microsecond // 1000:03d}",
                     f"{one.prompt:,}", f"{one.output:,}", f"{round(1000 * one.took_s) * 10**6:,}"),
        quoted=True,
    ),
    "Helicone": table(
        ("response_created_at", "response_status", "request_created_at", "delay_ms",
         "total_tokens", "prompt_tokens", "completion_tokens", "request_model"),
        lambda one: (iso(one.end), 200, iso(one.start), round(1000 * one.took_s),
                     one.prompt + one.output, one.prompt, one.output, "m"),
    ),
    "Redshift UNLOAD": table(
        ("request_time", "prompt_tokens", "completion_tokens", "model"),
        lambda one: (naive(one.start), one.prompt, one.output, "m"), delimiter="|",
    ),
    "Kong": lines(
        lambda one: {
            "started_at": ms(one.start),
            "latencies": {"request": round(1000 * one.took_s), "kong": 1},
            "ai": {"usage": {"prompt_tokens": one.prompt, "completion_tokens": one.output}},
            "response": {"status": 200},
        }
    ),
    "OpenRouter, one by one": lines(
        lambda one: {
            "created_at": iso(one.start), "latency": round(200 * one.took_s),
            "generation_time": round(1000 * one.took_s), "native_tokens_reasoning": 0,
            "native_tokens_prompt": one.prompt, "native_tokens_completion": one.output,
        }
    ),
    "Loki": lines(
        lambda one: {
            "labels": {"app": "gateway"}, "timestamp": iso(one.end),
            "line": json.dumps({"start_time": iso(one.start), "prompt_tokens": one.prompt,
                                "completion_tokens": one.output,
                                "duration_ms": round(1000 * one.took_s)}),
        }
    ),
    "New Relic": json.dumps(
        {"results": [{"events": [
            {"timestamp": ms(one.start), "response.usage.prompt_tokens": one.prompt,
             "response.usage.completion_tokens": one.output, "duration": one.took_s}
            for one in REQUESTS
        ]}]}
    ),
    "short words": table(
        ("id", "ts", "prompt_tok", "compl_tok", "lat"),
        lambda one: (one.prompt, one.start.timestamp(), one.prompt, one.output, one.took_s),
    ),
    "decimal commas, UTF-16": table(
        ("Time", "Prompt Tokens", "Completion Tokens", "Duration (s)"),
        lambda one: (naive(one.start), one.prompt, one.output,
                     f"{one.took_s:.3f}".replace(".", ",")), delimiter=";",
    ).encode("utf-16"),
}  # fmt: skip
"""Name → file."""

WITH_ENDS = frozenset(
    {
        *("PostgreSQL COPY csv", "Datadog", "Excel, German", "Excel, American", "Splunk"),
        *("Azure Log Analytics", "LiteLLM, some columns", "Snowflake", "MySQL", "OpenRouter"),
        *("Ollama", "epoch nanoseconds", "end and duration", "Go durations", "Parquet", "Feather"),
        *("Athena", "Kibana, durations", "Helicone", "Kong", "decimal commas, UTF-16"),
        *("OpenRouter, one by one", "Loki", "New Relic", "short words"),
    }
)


def write(path: Path, name: str) -> None:
    """Write one of TEXTS, or "Parquet" or "Feather", to a file."""
    if name in TEXTS:
        text = TEXTS[name]
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return
    found = pa.table(
        {
            "timestamp": pa.array([one.start for one in REQUESTS], pa.timestamp("us", "UTC")),
            "usage": [{"prompt_tokens": o.prompt, "completion_tokens": o.output} for o in REQUESTS],
            "latency": pa.array([one.took_s for one in REQUESTS]),
            "model": pa.array(["m"] * len(REQUESTS)).dictionary_encode(),
        }
    )
    (parquet.write_table if name == "Parquet" else feather.write_feather)(found, path)
