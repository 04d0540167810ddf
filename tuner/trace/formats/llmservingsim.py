"""Requests that LLMServingSim's benchmark of vLLM recorded, JSON lines.

``arrival_time`` is s since 1970, all ``*_ts`` are s of a monotonic clock. The two are aligned by
the request that was queued soonest after it arrived.
"""

import math
from collections.abc import Iterator

import msgspec

from tuner.trace.formats.reading import json_rows
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, opening
from tuner.trace.formats.reading.scalars import as_ms, is_number
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "llmservingsim"
DESCRIPTION = "LLMServingSim's benchmark records of vLLM, JSON lines"
MARK = "input_toks, output_toks, queued_ts"

KEYS = {"input_toks", "output_toks", "arrival_time", "queued_ts", "last_token_ts"}


class _Clocks(msgspec.Struct):
    arrival_time: float
    queued_ts: float


def sniff(head: bytes) -> bool:
    return opening(head).keys() >= KEYS


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="in s")
    ahead_s = _ahead_s(lines)

    def convert(parsed: Object) -> Iterator[Fields]:
        arrival_s = parsed.get("arrival_time")
        queued_s, scheduled_s, first_s, last_s = (
            parsed.get(f"{name}_ts")
            for name in ("queued", "scheduled", "first_token", "last_token")
        )
        arrived_s = arrival_s + ahead_s if is_number(arrival_s) else None
        yield {
            "timestamp": as_ms(arrival_s),
            "input_length": parsed.get("input_toks"),
            "output_length": parsed.get("output_toks"),
            "request_id": parsed.get("request_id"),
            "e2e_ms": _between_ms(arrived_s, last_s),
            "ttft_ms": _between_ms(arrived_s, first_s),
            "queue_ms": _between_ms(queued_s, scheduled_s),
        }

    header = TraceHeader(
        source=NAME, time_resolution_ms=0.001, missing=("aborts", "errors", "prefixes")
    )
    return Source(header, json_rows.rows(lines, convert, block_size=16), absolute=True)


def _ahead_s(lines: TraceFile) -> float:
    """Return how far the monotonic clock is ahead of the other; 0 where no row has both."""
    decode = msgspec.json.Decoder(_Clocks).decode
    least_s = math.inf
    for _, line in lines.again():
        try:
            clocks = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # whoever reads the rows says why
        least_s = min(least_s, clocks.queued_ts - clocks.arrival_time)
    return least_s if math.isfinite(least_s) else 0.0


def _between_ms(start_s: object, end_s: object) -> float | None:
    if is_number(start_s) and is_number(end_s):
        return round((end_s - start_s) * 1000, 3)
    return None
