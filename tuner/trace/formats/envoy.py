"""Envoy AI gateway's access logs as JSON. Their fields are the user's; these are the documented.

``start_time`` is the arrival; ``duration`` runs to the last byte, of streams too.
"""

from collections.abc import Iterator

from tuner.trace.formats import table
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, opening, rows, with_tokens
from tuner.trace.formats.reading.record import Reason
from tuner.trace.formats.reading.scalars import (
    Pseudonyms,
    epoch_ms,
    failed_tokens,
    first,
    may_generate,
    real,
    status_of,
    tokens,
)
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "envoy"
DESCRIPTION = "Envoy AI gateway's access logs, JSON"
MARK = "start_time, response_code"

KEYS = {"start_time", "response_code"}
PROMPT = ("gen_ai.usage.input_tokens", "llm_input_token", "input_tokens", "prompt_tokens")
OUTPUT = ("gen_ai.usage.output_tokens", "llm_output_token", "output_tokens", "completion_tokens")
CACHED = (
    *("gen_ai.usage.cached_input_tokens", "gen_ai.usage.cache_read.input_tokens"),
    *("llm_cached_input_token", "cached_input_tokens"),
)
PATH = ("x-envoy-origin-path", "path", ":path")
MODEL = ("gen_ai.response.model", "gen_ai.request.model", "model")
ABORTED_BY_CLIENT = "DC"
"""Envoy's response flag for a downstream that closed its connection."""


def sniff(head: bytes) -> bool:
    keys = opening(head).keys()
    # Gateways that are built on Envoy log their counts in keys of their own.
    return keys >= KEYS and bool(keys & {*PROMPT, *OUTPUT} or not table.sniff(head))


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")
    header = TraceHeader(
        source=NAME, time_resolution_ms=1, missing=("prefixes", "sessions", "queue", "n")
    )
    models, replicas = Pseudonyms(), Pseudonyms()

    def convert(entry: Object) -> Iterator[Fields | Reason]:
        yield _fields(entry, models, replicas)

    found = with_tokens(
        rows(lines, convert, block_size=1),
        lines,
        "no request has counts of tokens",
        "Log gen_ai.usage.input_tokens and gen_ai.usage.output_tokens: see docs/traces.md.",
    )
    return Source(header, found, absolute=True)


def _fields(entry: Object, models: Pseudonyms, replicas: Pseudonyms) -> Fields | Reason:
    if not may_generate(first(entry, PATH)):
        return "not_generation"
    code = tokens(entry.get("response_code"))
    status = status_of(code if isinstance(code, int) and code > 0 else None)
    if ABORTED_BY_CLIENT in str(entry.get("response_flags")).split(","):
        status = "aborted"
    elif code == 0:  # no answer at all
        status = "error"
    count = tokens if status in ("ok", "aborted") else failed_tokens
    return {
        "timestamp": epoch_ms(entry.get("start_time")),
        "input_length": count(first(entry, PROMPT)),
        "output_length": count(first(entry, OUTPUT)),
        "status": status,
        "e2e_ms": real(entry.get("duration")),
        "cached_tokens": tokens(first(entry, CACHED)),
        "model": models.named("m", first(entry, MODEL)),
        "replica": replicas.of(entry.get("upstream_host")),
    }
