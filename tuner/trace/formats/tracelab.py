"""TraceLab's rounds of coding agents, as the agents' clients logged them, JSON lines.

A round begins with the last of its inputs (a message, a tool's result) and ends with the last thing
that the model said; the network and the provider's queue are in between.
"""

from collections.abc import Iterable, Iterator

from tuner.trace.formats.reading import json_rows
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, opening
from tuner.trace.formats.reading.scalars import Pseudonyms, between_ms, epoch_ms
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "tracelab"
DESCRIPTION = "TraceLab's rounds of coding agents, JSON lines"
MARK = "timing_events, input_tokens_total"

KEYS = {"timing_events", "input_tokens_total", "output_tokens"}
INPUTS = frozenset({"user_message", "tool_result"})


def sniff(head: bytes) -> bool:
    return opening(head).keys() >= KEYS


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")
    sessions = Pseudonyms()

    def convert(parsed: Object) -> Iterator[Fields]:
        events = parsed.get("timing_events")
        events = (
            [one for one in events if isinstance(one, dict)] if isinstance(events, list) else []
        )
        inputs = _stamps_ms(one for one in events if str(one.get("event_type")) in INPUTS)
        outputs = _stamps_ms(one for one in events if str(one.get("event_type")) not in INPUTS)
        arrival_ms = max(inputs, default=min(outputs, default=None))
        yield {
            "timestamp": arrival_ms,
            "input_length": parsed.get("input_tokens_total"),
            "output_length": parsed.get("output_tokens"),
            "e2e_ms": between_ms(arrival_ms, max(outputs, default=None)),
            "cached_tokens": parsed.get("prefix_tokens"),
            "session_id": sessions.named("s", parsed.get("session_id")),
            "turn": parsed.get("round_index"),
            "model": parsed.get("model"),
        }

    header = TraceHeader(
        source=NAME, time_resolution_ms=1, missing=("aborts", "errors", "prefixes")
    )
    return Source(header, json_rows.rows(lines, convert, block_size=16), absolute=True)


def _stamps_ms(events: Iterable[Object]) -> list[float]:
    stamps_ms = [epoch_ms(event.get("timestamp")) for event in events]
    return [stamp_ms for stamp_ms in stamps_ms if isinstance(stamp_ms, int | float)]
