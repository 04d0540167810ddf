"""The same eight requests as products export them: gateways, clouds, databases, tools that observe,
spreadsheets of other languages. All made up; the form is the products' own."""

import json
from collections.abc import Callable
from datetime import timedelta

from tests.support.exports import REQUESTS, One, iso, lines, ms, naive, table

START_AND_LENGTHS = ("started_at", "prompt_tokens", "completion_tokens")


def took_ms(one: One) -> int:
    return round(1000 * one.took_s)


def usage(one: One) -> dict[str, int]:
    return {
        "prompt_tokens": one.prompt,
        "completion_tokens": one.output,
        "total_tokens": one.prompt + one.output,
    }


def listed(row: Callable[[One], object]) -> list[object]:
    return [row(one) for one in REQUESTS]


TEXTS: dict[str, str | bytes] = {
    "Bedrock": lines(
        lambda one: {
            "schemaType": "ModelInvocationLog", "timestamp": iso(one.start), "modelId": "m",
            "operation": "Converse",
            "input": {"inputContentType": "application/json", "inputTokenCount": one.prompt},
            "output": {"outputContentType": "application/json", "outputTokenCount": one.output},
        }
    ),
    "Cloudflare": lines(
        lambda one: {
            "id": f"r{one.prompt}", "created_at": iso(one.start), "duration": took_ms(one),
            "model": "m", "tokens_in": one.prompt, "tokens_out": one.output, "success": True,
            "cached": False, "status_code": 200, "step": 0,
        }
    ),
    "LangSmith": table(
        ("id", "name", "run_type", "start_time", "end_time", "status", "error", "latency",
         "prompt_tokens", "completion_tokens", "total_tokens", "trace_id", "tags"),
        lambda one: (one.prompt, "chat", "llm", one.start.replace(tzinfo=None).isoformat(),
                     one.end.replace(tzinfo=None).isoformat(), "success", "", one.took_s,
                     *usage(one).values(), "t", "[]"),
    ),
    "Datadog LLM Observability": lines(
        lambda one: {
            "trace_id": "1", "span_id": str(one.prompt), "kind": "llm", "status": "ok",
            "start_ns": ms(one.start) * 10**6, "duration": took_ms(one) * 10**6,
            "metrics": {"input_tokens": float(one.prompt), "output_tokens": float(one.output)},
        }
    ),
    "Elasticsearch": json.dumps(
        {"took": 5, "hits": {"total": {"value": 8}, "hits": listed(
            lambda one: {"_index": "llm", "_score": None, "_source": {
                "@timestamp": iso(one.start), "llm": {"usage": usage(one)},
                "event": {"duration": took_ms(one) * 10**6},
            }}
        )}}
    ),
    "Kibana, fields": lines(
        lambda one: {"_index": "llm", "fields": {
            "@timestamp": [iso(one.start)], "usage.prompt_tokens": [one.prompt],
            "usage.completion_tokens": [one.output],
        }}
    ),
    "Google Cloud Logging": json.dumps(
        listed(
            lambda one: {
                "insertId": f"i{one.prompt}", "jsonPayload": {**usage(one),
                                                             "latency_ms": took_ms(one)},
                "receiveTimestamp": iso(one.end + timedelta(seconds=3)),
                "resource": {"labels": {"pod_name": "p"}, "type": "k8s_container"},
                "severity": "INFO", "timestamp": iso(one.start),
            }
        ),
        indent=2,
    ),
    "MongoDB": lines(
        lambda one: {
            "_id": {"$oid": "65"}, "created_at": {"$date": iso(one.start)},
            "usage": {key: {"$numberInt": str(held)} for key, held in usage(one).items()},
            "latency_ms": {"$numberDouble": str(1000 * one.took_s)},
        }
    ),
    "DynamoDB": lines(
        lambda one: {"Item": {
            "request_id": {"S": "r"}, "created_at": {"S": iso(one.start)},
            "prompt_tokens": {"N": str(one.prompt)}, "completion_tokens": {"N": str(one.output)},
        }}
    ),
    "Splunk, JSON": lines(
        lambda one: {"preview": False, "offset": 1, "result": {
            "_time": naive(one.start, 3) + " UTC", "prompt_tokens": str(one.prompt),
            "completion_tokens": str(one.output), "duration": str(one.took_s),
        }}
    ),
    "Splunk, with its own fields": table(
        ("_raw", "_time", "date_hour", "date_mday", "date_minute", "date_second", "date_wday",
         "host", "linecount", "source", "timestamp", "timeendpos", "timestartpos",
         "usage.prompt_tokens", "usage.completion_tokens", "response_time"),
        lambda one: (json.dumps(usage(one)), iso(one.start)[:-1] + "+0000", 10, 21, 0,
                     one.start.second, "saturday", "gw-1", 1, "/var/log", "none", 60, 10,
                     one.prompt, one.output, one.took_s),
        quoted=True,
    ),
    "Loki, API": json.dumps(
        {"status": "success", "data": {"resultType": "streams", "stats": {}, "result": [
            {"stream": {"app": app, "level": "info"}, "values": [
                [str(ms(one.start) * 10**6),
                 json.dumps({**usage(one), "duration_ms": took_ms(one)})]
                for one in some
            ]}
            for app, some in (("a", REQUESTS[:5]), ("b", REQUESTS[5:]))
        ]}}
    ),
    "Portkey": lines(
        lambda one: {
            "id": "x", "created_at": iso(one.start), "ai_model": "m", "req_units": one.prompt,
            "res_units": one.output, "total_units": one.prompt + one.output, "cost": 0.1,
            "response_time": took_ms(one), "response_status_code": 200, "cache_status": "DISABLED",
        }
    ),
    "Docker": lines(
        lambda one: {
            "log": json.dumps({"start_time": iso(one.start), **usage(one),
                               "duration_ms": took_ms(one)}) + "\n",
            "stream": "stdout", "time": iso(one.end),
        }
    ),
    "PostgreSQL, jsonb": table(
        ("id", "created_at", "usage", "latency_ms"),
        lambda one: (one.prompt, naive(one.start) + "+00", json.dumps(usage(one)), took_ms(one)),
    ),
    "CloudWatch, messages": table(
        ("@timestamp", "@message"),
        lambda one: (naive(one.end, 3), json.dumps(
            {"start_time": iso(one.start), "usage": usage(one), "duration_ms": took_ms(one)}
        )),
    ),
    "Application Insights": table(
        ("timestamp [UTC]", "name", "customDimensions"),
        lambda one: (
            f"{one.start:%m/%d/%Y, %I:%M:%S}.{one.start.microsecond // 1000:03d} {one.start:%p}",
            "chat", json.dumps({"promptTokens": str(one.prompt),
                                "completionTokens": str(one.output)}),
        ),
    ),
    "ClickHouse JSONCompact": json.dumps(
        {"meta": [{"name": "event_time", "type": "DateTime64(3)"},
                  {"name": "input_tokens", "type": "UInt32"},
                  {"name": "output_tokens", "type": "UInt32"}],
         "data": listed(lambda one: [naive(one.start, 3), one.prompt, one.output]), "rows": 8}
    ),
    "Azure Log Analytics, API": json.dumps(
        {"tables": [{"name": "PrimaryResult", "columns": [
            {"name": name, "type": "x"}
            for name in ("TimeGenerated", "PromptTokens", "CompletionTokens", "DurationMs")
        ], "rows": listed(lambda one: [iso(one.start), one.prompt, one.output, took_ms(one)])}]}
    ),
    "Grafana, API": json.dumps(
        {"results": {"A": {"status": 200, "frames": [{
            "schema": {"fields": [{"name": name}
                                  for name in ("Time", "prompt tokens", "output tokens")]},
            "data": {"values": [listed(lambda one: ms(one.start)),
                                listed(lambda one: one.prompt), listed(lambda one: one.output)]},
        }]}}}
    ),
    "InfluxDB, CSV": "#group,false,false,true,true,false,false,false\n"
    "#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,long,long\n"
    "#default,_result,,,,,,\n"
    + table(
        ("", "result", "table", "_start", "_stop", "_time", "completion_tokens", "prompt_tokens"),
        lambda one: ("", "_result", 0, "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z",
                     iso(one.start), one.output, one.prompt),
    ),
    "InfluxDB, JSON": json.dumps(
        {"results": [{"statement_id": 0, "series": [{
            "name": "requests", "columns": ["time", "prompt_tokens", "completion_tokens"],
            "values": listed(lambda one: [iso(one.start), one.prompt, one.output]),
        }]}]}
    ),
    "Oracle": table(
        ("REQUEST_TS", "PROMPT_TOKENS", "COMPLETION_TOKENS", "ELAPSED_MS"),
        lambda one: (
            f"{one.start:%d-%b-%y %I.%M.%S.%f}".upper() + f"000 {one.start:%p}", one.prompt,
            one.output, took_ms(one),
        ),
        quoted=True,
    ),
    "DB2": table(
        ("START_TS", "END_TS", "INPUT_TOKENS", "OUTPUT_TOKENS"),
        lambda one: (f"{one.start:%Y-%m-%d-%H.%M.%S.%f}", f"{one.end:%Y-%m-%d-%H.%M.%S.%f}",
                     one.prompt, one.output),
    ),
    "SQL Server, sqlcmd": table(
        START_AND_LENGTHS, lambda one: (naive(one.start) + "0", one.prompt, one.output)
    ).replace("\n", "\n----------------,-------------,-----------------\n", 1)
    + "\n(8 rows affected)\n",
    "MySQL, its client": "".join(
        f"{line}\n"
        for line in (
            "+----+----+----+", f"| {' | '.join(START_AND_LENGTHS)} |", "+----+----+----+",
            *(f"| {naive(one.start, 3)} | {one.prompt:>5} | {one.output:>5} |" for one in REQUESTS),
            "+----+----+----+", "8 rows in set (0.01 sec)",
        )
    ),
    "Excel, Swiss": table(
        ("Zeitstempel", "Eingabe-Token", "Ausgabe-Token", "Dauer (ms)"),
        lambda one: (
            f"{one.start:%d.%m.%Y %H:%M:%S},{one.start.microsecond // 1000:03d}",
            f"{one.prompt:,}".replace(",", "\u2019"), one.output, took_ms(one),
        ),
        delimiter=";",
    ),
    "Excel, French": "\ufeff"
    + table(
        ("Horodatage", "Jetons d'entrée", "Jetons de sortie", "Durée (s)"),
        lambda one: (
            f"{one.start:%d/%m/%Y %H:%M:%S},{one.start.microsecond // 1000:03d}",
            f"{one.prompt:,}".replace(",", "\u202f"), one.output,
            f"{one.took_s:.3f}".replace(".", ","),
        ),
        delimiter=";",
    ).replace("\n", "\r\n"),
    "a console in Chinese": table(
        ("请求时间", "模型", "输入Token数", "输出Token数", "耗时(ms)", "状态码"),
        lambda one: (naive(one.start, 3), "m", one.prompt, one.output, took_ms(one), "200 OK"),
    ),
    "Excel, Japanese": table(
        ("日時", "入力トークン数", "出力トークン数"),
        lambda one: (
            f"{one.start:%Y年%m月%d日 %H:%M:%S}.{one.start.microsecond // 1000:03d}", one.prompt,
            one.output,
        ),
    ).encode("utf-16"),
    "Groq": lines(
        lambda one: {"created": one.start.timestamp(), "usage": {
            **usage(one), "queue_time": 0.01, "prompt_time": 0.02, "total_time": one.took_s,
            "completion_time": one.took_s - 0.02,
        }}
    ),
    "DeepSeek": lines(
        lambda one: {"created": one.start.timestamp(), "usage": {
            **usage(one), "prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": one.prompt - 5,
        }}
    ),
    "Cohere": lines(
        lambda one: {"created_at": iso(one.start), "meta": {
            "billed_units": {"input_tokens": one.prompt - 2, "output_tokens": one.output},
            "tokens": {"input_tokens": one.prompt, "output_tokens": one.output},
        }}
    ),
    "llama.cpp": lines(
        lambda one: {
            "timestamp": one.start.timestamp(), "tokens_evaluated": one.prompt,
            "tokens_predicted": one.output,
            "timings": {"prompt_n": one.prompt, "prompt_ms": 10.5, "predicted_n": one.output},
        }
    ),
    "Higress": lines(
        lambda one: {
            "start_time": iso(one.start), "response_code": "200", "duration": str(took_ms(one)),
            "ai_log": json.dumps({"input_token": one.prompt, "output_token": one.output,
                                  "llm_service_duration": took_ms(one) - 1}),
        }
    ),
    "APISIX": lines(
        lambda one: {
            "start_time": ms(one.start), "latency": took_ms(one), "apisix_latency": 1.5,
            "upstream_latency": took_ms(one) - 1, "llm_prompt_tokens": one.prompt,
            "llm_completion_tokens": one.output, "llm_time_to_first_token": 61,
            "response": {"status": 200},
        }
    ),
    "Braintrust": lines(
        lambda one: {
            "created": iso(one.end), "metadata": {"model": "m"},
            "metrics": {"start": one.start.timestamp(), "end": one.end.timestamp(),
                        "prompt_tokens": one.prompt, "completion_tokens": one.output,
                        "tokens": one.prompt + one.output},
        }
    ),
    "Weave": table(
        ("started_at", "ended_at", "summary.usage.gpt-4o.prompt_tokens",
         "summary.usage.gpt-4o.completion_tokens", "summary.weave.latency_ms"),
        lambda one: (iso(one.start), iso(one.end), one.prompt, one.output, took_ms(one)),
    ),
    "Phoenix": table(
        ("context.span_id", "start_time", "end_time", "attributes.llm.token_count.prompt",
         "attributes.llm.token_count.completion", "attributes.llm.token_count.total",
         "status_code"),
        lambda one: (one.prompt, one.start.isoformat(), one.end.isoformat(),
                     *usage(one).values(), "OK"),
    ),
    "OpenAI, responses API": lines(
        lambda one: {
            "object": "response", "created_at": one.start.timestamp(), "status": "completed",
            "completed_at": one.end.timestamp(),
            "usage": {"input_tokens": one.prompt, "output_tokens": one.output,
                      "input_tokens_details": {"cached_tokens": 0},
                      "output_tokens_details": {"reasoning_tokens": 0},
                      "total_tokens": one.prompt + one.output},
        }
    ),
    "seconds with decimal commas": table(
        START_AND_LENGTHS,
        lambda one: (f"{one.start.timestamp():.3f}".replace(".", ","), one.prompt, one.output),
        delimiter=";",
    ),
    "dates of digits": table(
        START_AND_LENGTHS,
        lambda one: (f"{one.start:%Y%m%d%H%M%S%f}"[:17], one.prompt, one.output),
    ),
    "Go's times": table(
        ("started", "elapsed", "in_tokens", "out_tokens"),
        lambda one: (naive(one.start, 3) + " +0000 UTC", f"{one.took_s}s", one.prompt, one.output),
    ),
    "Python's logging, Java's durations": lines(
        lambda one: {
            "asctime": naive(one.start, 3).replace(".", ","), "levelname": "INFO", **usage(one),
            "message": "done", "elapsed": f"PT{one.took_s}S",
        }
    ),
    "with their units": table(
        ("Time", "latencyInMillis", "Duration", "req_tokens", "resp_tokens"),
        lambda one: (
            naive(one.start, 3), took_ms(one),
            f"{took_ms(one)} ms" if one.took_s < 1 else f"{one.took_s} s", one.prompt, one.output,
        ),
    ),
    "parted by spaces": table(
        START_AND_LENGTHS, lambda one: (one.start.timestamp(), one.prompt, one.output),
        delimiter=" ",
    ),
    "Claude Code": lines(
        lambda one: {
            "event.name": "api_request", "event.timestamp": iso(one.start), "model": "m",
            "input_tokens": one.prompt - 20, "cache_read_tokens": 16, "cache_creation_tokens": 4,
            "output_tokens": one.output, "duration_ms": took_ms(one),
        }
    ),
    "Vercel": lines(
        lambda one: {
            "startTime": ms(one.start), "ai.usage.promptTokens": one.prompt,
            "ai.usage.completionTokens": one.output, "ai.response.msToFirstChunk": 61.5,
            "ai.response.msToFinish": 1000 * one.took_s,
        }
    ),
    "TGI": table(
        ("timestamp", "total_time", "validation_time", "queue_time", "inference_time",
         "time_per_token", "input_length", "generated_tokens"),
        lambda one: (iso(one.start), f"{took_ms(one)}ms", "61.2µs", "1.5ms",
                     f"{took_ms(one) - 2}ms", "21ms", one.prompt, one.output),
    ),
    "nginx, CSV": table(
        ("time_local", "request_time", "status", "upstream_http_x_prompt_tokens",
         "upstream_http_x_completion_tokens"),
        lambda one: (f"{one.end:%d/%b/%Y:%H:%M:%S.%f} +0000", one.took_s, 200, one.prompt,
                     one.output),
    ),
    "OpenTelemetry in ClickHouse": lines(
        lambda one: {
            "Timestamp": naive(one.start) + "000", "TraceId": "a", "SpanId": str(one.prompt),
            "SpanName": "chat", "Duration": str(took_ms(one) * 10**6),
            "SpanAttributes": {"gen_ai.usage.input_tokens": str(one.prompt),
                               "gen_ai.usage.output_tokens": str(one.output)},
        }
    ),
    "OpenAI, usage of before": json.dumps(
        {"object": "list", "data": listed(
            lambda one: {
                "aggregation_timestamp": one.start.timestamp(), "n_requests": 1,
                "operation": "completion", "n_context_tokens_total": one.prompt,
                "n_generated_tokens_total": one.output,
            }
        )}
    ),
    "a queue of jobs": table(
        ("id", "created_at", "started_at", "finished_at", "prompt_tokens", "completion_tokens"),
        lambda one: (one.prompt, iso(one.start), iso(one.start + timedelta(seconds=one.took_s / 2)),
                     iso(one.end), one.prompt, one.output),
    ),
    "PowerShell": "#TYPE System.Management.Automation.PSCustomObject\r\n"
    + table(
        ("Started", "PromptTokens", "CompletionTokens"),
        lambda one: (f"{one.start:%m/%d/%Y %I:%M:%S.%f %p}", one.prompt, one.output), quoted=True,
    ).replace("\n", "\r\n"),
}  # fmt: skip
"""Name → file."""

WITH_ENDS = frozenset(
    {
        *("Cloudflare", "LangSmith", "Datadog LLM Observability", "Elasticsearch", "MongoDB"),
        *("Google Cloud Logging", "Splunk, JSON", "Docker", "PostgreSQL, jsonb", "Oracle", "DB2"),
        *("CloudWatch, messages", "Azure Log Analytics, API", "Excel, Swiss", "Excel, French"),
        *("a console in Chinese", "Groq", "Higress", "APISIX", "Braintrust", "Weave", "Phoenix"),
        *("OpenAI, responses API", "Go's times", "Python's logging, Java's durations"),
        *("with their units", "Claude Code", "Vercel", "TGI", "nginx, CSV"),
        *("OpenTelemetry in ClickHouse", "a queue of jobs", "Splunk, with its own fields"),
        *("Loki, API", "Portkey"),
    }
)
