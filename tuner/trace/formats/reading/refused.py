"""Files that look like traces and cannot be any: what they are, and what to do instead."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tuner.trace.formats.reading.json_rows import first_listed, opening
from tuner.trace.formats.reading.scalars import inner


@dataclass(frozen=True, slots=True)
class Lookalike:
    """A kind of file that is recognised only to be refused."""

    sniff: Callable[[bytes], bool]
    what: str
    hint: str


def _first_line(head: bytes) -> bytes:
    return head.lstrip().partition(b"\n")[0].strip()


def _is_servegen(head: bytes) -> bool:
    row = rb"\d+(?:\.\d+)?,(?:[\d.eE+-]+,){2}(?:Gamma|Weibull|Exponential|Poisson|Lognorm\w*)?,.*"
    return re.fullmatch(row, _first_line(head), re.IGNORECASE) is not None


def _is_servegen_dataset(head: bytes) -> bool:
    window = next(iter(opening(head).values()), None)
    return isinstance(window, dict) and {"input_tokens", "output_tokens"} <= window.keys()


def _is_concurrency_schedule(head: bytes) -> bool:
    columns = {cell.strip() for cell in _first_line(head).lower().split(b",")}
    return {b"time_sec", b"concurrency"} <= columns or {
        "time_sec",
        "concurrency",
    } <= opening(head).keys()


def _is_prompts(head: bytes) -> bool:
    keys = opening(head).keys()
    return "timestamp" not in keys and bool(
        {"prompt", "output_tokens"} <= keys
        or any(isinstance(opening(head).get(key), list) for key in ("conversations", "turns"))
        or {"session_id", "payloads"} <= first_listed(head, "data").keys()
    )


def _is_load_generators(head: bytes) -> bool:
    first = opening(head)
    return (
        ("metrics" in first and "request_start_ns" in inner(first.get("metadata")))
        or "benchmarks" in first
        or b'"generative_benchmark' in head[:LOG_BYTES]
    )


def _is_other_spans(head: bytes) -> bool:
    keys = opening(head).keys()
    return bool(
        {"context", "parent_id", "start_time"} <= keys  # printed by an SDK
        or keys & {"batches", "resource_spans", "spans"}  # Tempo, protobuf's own names, others
        or {"traceId", "id", "timestamp", "duration"} <= keys  # Zipkin
        or {"traceID", "spans"} <= first_listed(head, "data").keys()  # Jaeger
        or ({"trace_id", "span_id"} <= keys and bool(keys & {"parent_id", "parent_span_id"}))
    )


def _is_wrapped(head: bytes) -> bool:
    first = opening(head)
    wraps = {"log", "stream", "time"} <= first.keys() and not inner(first["log"])
    return wraps or bool(CRI_LINE.match(head))


def _is_gauges(head: bytes) -> bool:
    return {b"running", b"waiting"} <= set(_first_line(head).lower().split(b","))


def _is_text_access_log(head: bytes) -> bool:
    return ACCESS_LINE.match(_first_line(head)) is not None


VLLM_LINE = re.compile(
    rb"^(?:\([\w ]+ pid=\d+\) )?(?:DEBUG|INFO|WARNING|ERROR) "
    rb"\d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+\.py:\d+\]",
    re.MULTILINE,
)
UVICORN_LINE = re.compile(rb'^INFO: +[\da-fA-F.:\[\]]+ - "[A-Z]+ /\S* HTTP/', re.MULTILINE)
ACCESS_LINE = re.compile(rb'\S+ \S+ \S+ \[[^]]{1,40}\] "[A-Z]+ [^"]*" \d{3} |\[20[^]]+Z\] "[A-Z]+ ')
"""nginx's and Envoy's own text formats."""

CRI_LINE = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) std(?:out|err) [FP] ")
LOG_BYTES = 2**18
"""A server's banner may stand above its first line of log."""

INSTEAD = (
    "Start vllm serve with --middleware tuner.capture.TraceRecorder, or capture its spans: "
    "--otlp-traces-endpoint."
)


def _is_vllm_log(head: bytes) -> bool:
    first = opening(head)
    if {"levelname", "message"} <= first.keys():
        return "vllm_process_name" in first or str(first.get("name")).startswith("vllm")
    start = head[:LOG_BYTES]
    return bool(VLLM_LINE.search(start) or UVICORN_LINE.search(start))


def _is_vllm_debug_log(head: bytes) -> bool:
    return b"prompt_token_ids: [" in head and _is_vllm_log(head)


LOOKALIKES: tuple[Lookalike, ...] = (
    Lookalike(
        _is_vllm_debug_log,
        "a vLLM log with prompts in it: --max-log-len cuts their token ids without a word, and "
        "completions have no output, so lengths cannot be told from it",
        INSTEAD,
    ),
    Lookalike(
        _is_vllm_log,
        "a vLLM log without debugging: it says when requests came, not how long they were",
        INSTEAD,
    ),
    Lookalike(
        _is_servegen,
        "a ServeGen rate file: a rate and a shape a window, not requests",
        "Let ServeGen draw requests from it, write them as JSON lines (see docs/traces.md), "
        "import those.",
    ),
    Lookalike(
        _is_servegen_dataset,
        "a ServeGen length distribution, not requests",
        "Let ServeGen draw requests from it, write them as JSON lines (see docs/traces.md), "
        "import those.",
    ),
    Lookalike(
        _is_prompts,
        "prompts without arrival times, for a benchmark that makes up its own",
        "Capture what the server really gets: when requests come matters as much as their length.",
    ),
    Lookalike(
        _is_concurrency_schedule,
        "a concurrency schedule: how many at a time, not when they came nor how long they were",
        "tuner trace import --lengths TRACE makes one of it, with the lengths of another's "
        "requests.",
    ),
    Lookalike(
        _is_other_spans,
        "spans, but not as OTLP/JSON",
        "Let the OpenTelemetry collector's file exporter write them: see docs/traces.md.",
    ),
    Lookalike(
        _is_load_generators,
        "the result of a load generator: what it sent by itself, not what production asked for",
        "Import the trace that it replayed, or capture production's own.",
    ),
    Lookalike(
        _is_gauges,
        "a series of gauges: how many ran and waited, not which requests",
        "Import the requests themselves, or what a Prometheus stored: tuner trace import "
        "http://prometheus:9090 -o trace.jsonl",
    ),
    Lookalike(
        _is_wrapped,
        "a log inside the log of a container",
        "Unwrap it: jq -r .log FILE for Docker's, cut -d' ' -f4- FILE for Kubernetes'.",
    ),
    Lookalike(
        _is_text_access_log,
        "an access log as text: it has no tokens, and its times are ends",
        "Log JSON with counts of tokens: see docs/traces.md on nginx and envoy.",
    ),
)
