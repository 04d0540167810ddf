"""nginx's access logs as JSON (``log_format … escape=json``), with counts of tokens added.

nginx stamps a line when it writes it, at the end of the request: arrival = stamp - request_time.
"""

from collections.abc import Iterator
from datetime import datetime

from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, opening, rows, with_tokens
from tuner.trace.formats.reading.record import Reason, Row
from tuner.trace.formats.reading.scalars import (
    Pseudonyms,
    between_ms,
    epoch_ms,
    failed_tokens,
    first,
    may_generate,
    real,
    seconds_ms,
    status_of,
    tokens,
)
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "nginx"
DESCRIPTION = "nginx's access logs, JSON, with counts of tokens added"
MARK = "request_time, and msec or a time"

STAMPS = ("msec", "timestamp", "ts", "time_iso8601", "@timestamp", "time", "time_local")
"""Its own variables, and names that people give them."""

PROMPT = ("prompt_tokens", "input_tokens", "gen_ai.usage.input_tokens", "usage.prompt_tokens")
OUTPUT = (
    *("completion_tokens", "output_tokens", "gen_ai.usage.output_tokens"),
    "usage.completion_tokens",
)
WHOLE_SECONDS = "stamps are whole seconds: arrivals are exact to one second only"


def sniff(head: bytes) -> bool:
    keys = opening(head).keys()
    return "request_time" in keys and any(stamp in keys for stamp in STAMPS)


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="$msec, in s")
    header = TraceHeader(
        source=NAME, time_resolution_ms=1, missing=("prefixes", "sessions", "queue", "n")
    )
    return Source(header, _rows(lines), absolute=True)


def _rows(lines: TraceFile) -> Iterator[Row]:
    models, replicas = Pseudonyms(), Pseudonyms()

    def convert(entry: Object) -> Iterator[Fields | Reason]:
        if not isinstance(real(first(entry, STAMPS)), float | int):  # a date
            lines.tally.note(WHOLE_SECONDS)
        yield _fields(entry, models, replicas)

    yield from with_tokens(
        rows(lines, convert, block_size=1),
        lines,
        "nginx logs no tokens by itself",
        "Add prompt_tokens and completion_tokens to its log_format: see docs/traces.md.",
    )


def _fields(entry: Object, models: Pseudonyms, replicas: Pseudonyms) -> Fields | Reason:
    if not may_generate(_path(entry)):
        return "not_generation"
    code = tokens(entry.get("status"))
    status = status_of(code if isinstance(code, int) else None)
    count = tokens if status in ("ok", "aborted") else failed_tokens
    lasted_ms, end_ms = seconds_ms(entry.get("request_time")), _end_ms(entry)
    return {
        "timestamp": between_ms(lasted_ms, end_ms) if isinstance(end_ms, float) else end_ms,
        "input_length": count(first(entry, PROMPT)),
        "output_length": count(first(entry, OUTPUT)),
        "status": status,
        "e2e_ms": lasted_ms,
        "model": models.named("m", entry.get("model")),
        "replica": replicas.of(entry.get("upstream_addr")),
    }


def _end_ms(entry: Object) -> object:
    stamp = first(entry, STAMPS)
    if isinstance(stamp, str) and "/" in stamp:  # 21/Nov/2026:10:01:13 +0000
        try:
            return datetime.strptime(stamp, "%d/%b/%Y:%H:%M:%S %z").timestamp() * 1000
        except ValueError:
            return stamp
    return epoch_ms(stamp)


def _path(entry: Object) -> object:
    path = first(entry, ("uri", "request_uri", "path"))
    if path is None and isinstance(line := entry.get("request"), str):
        _, _, rest = line.partition(" ")  # POST /v1/completions HTTP/1.1
        path = rest.partition(" ")[0] or None
    return path
