"""aiperf's ``mooncake_trace`` where it is more than Mooncake's: sessions, delays, text. JSON lines.

Stamps and delays are ms, of one unit in all versions, so fractions are no puzzle. A turn holds only
what is new in it: aiperf sends what came before, answers included, once more. A turn with a delay
and no stamp waits for the answer to the turn before, and then for the delay.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tuner.trace.formats import mooncake
from tuner.trace.formats.reading import json_rows
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, opening
from tuner.trace.formats.reading.recent import Recent
from tuner.trace.formats.reading.record import Tally
from tuner.trace.formats.reading.replayable import Replayable
from tuner.trace.formats.reading.scalars import Pseudonyms, is_number
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "aiperf"
DESCRIPTION = "aiperf's mooncake_trace with sessions and delays, JSON lines, in ms"
MARK = "session_id, delay or text_input beside timestamp"

OWN_KEYS = {"session_id", "delay", "text_input", "messages", "payload", "extra", "tools"}
BLOCK_SIZE = 512
EXPORTED_BLOCK_SIZE: int | None = None
DELAYED = (
    "turns without a stamp are placed a delay after the stamp of the turn before: too early by the "
    "time that its answer took"
)
ACCUMULATED = "prompts of later turns are the earlier prompts and answers and what the row adds"


def sniff(head: bytes) -> bool:
    keys = opening(head).keys()
    one_of = {"timestamp", "input_length", "delay", "text_input", "messages", "payload"}
    return bool(keys & OWN_KEYS and keys & one_of) and keys <= one_of | OWN_KEYS | {
        "output_length",
        "hash_ids",
        "type",
    }


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    block_size = json_rows.block_size(lines, BLOCK_SIZE)
    header = TraceHeader(source=NAME, block_size=block_size, missing=("aborts", "errors", "ends"))
    sessions = _Sessions(lines.tally, factor=1000 if time_unit == "s" else 1)
    return Source(header, json_rows.rows(lines, sessions.fields, block_size=block_size))


export = mooncake.export


def usage(name: str, found: Replayable) -> str:
    return (
        f"aiperf profile --input-file {name} --custom-dataset-type mooncake_trace "
        f"--fixed-schedule --isl-block-size {found.block_size}"
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    stamp_ms: float
    tokens: int
    """Prompt and answer: what the next turn begins with."""


class _Sessions:
    def __init__(self, tally: Tally, *, factor: int) -> None:
        self.tally = tally
        self.factor = factor
        self.names = Pseudonyms()
        self.last: Recent[_Turn | None] = Recent()

    def fields(self, parsed: Object) -> Iterator[Fields]:
        session = self.names.named("s", parsed.get("session_id"))
        before = self.last.get(session, None) if session is not None else None
        stamp = _scaled(parsed.get("timestamp"), self.factor)
        delay = _scaled(parsed.get("delay"), self.factor)
        found: Fields = {
            "timestamp": stamp,
            "input_length": parsed.get("input_length"),
            "output_length": parsed.get("output_length"),
            "hash_ids": parsed.get("hash_ids"),
            "session_id": session,
        }
        if before is not None:
            self._continue(found, before, delay)
        if session is not None:
            self._remember(found, session, 0 if before is None else before.number + 1)
        yield found

    def _continue(self, found: Fields, before: _Turn, delay: object) -> None:
        if found["timestamp"] is None and is_number(delay):
            found["timestamp"] = before.stamp_ms + delay
            self.tally.note(DELAYED)
        if _is_count(found["input_length"]):
            found["input_length"] += before.tokens
            found["hash_ids"] = None  # which are those of what is new, at no block's beginning
            self.tally.note(ACCUMULATED)

    def _remember(self, found: Fields, session: str, number: int) -> None:
        stamp, prompt, output = (
            found[key] for key in ("timestamp", "input_length", "output_length")
        )
        found |= {"turn": number, "request_id": f"{session}:{number}"}
        if number:
            found["parent_id"] = f"{session}:{number - 1}"
        if is_number(stamp) and _is_count(prompt):
            tokens = prompt + (output if _is_count(output) else 0)
            self.last.put(session, _Turn(number, stamp, tokens))


def _scaled(value: Any, factor: int) -> Any:  # noqa: ANN401 - what is no number stays what it is
    return value * factor if factor != 1 and is_number(value) else value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
