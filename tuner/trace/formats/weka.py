"""WEKA's traces of coding agents: a JSON object a conversation, with its requests inside.

``t`` is s from the start of the conversation, ``hash_ids`` are the conversation's own unless their
scope is global, and a request may be a subagent with requests of its own.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from tuner.trace.formats.reading import json_rows
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, opening
from tuner.trace.formats.reading.record import Reason, Tally
from tuner.trace.formats.reading.scalars import as_ms, is_number
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "weka"
DESCRIPTION = "WEKA's traces of coding agents, a JSON object a conversation, in s"
MARK = "requests of {t, in, out}"

BLOCK_SIZE = 64
MAX_CONVERSATION_BYTES = 64 * 2**20
MAX_NESTING = 20
LAID_OVER = (
    "conversations that each count from their own start are laid over one another, as if all had "
    "begun at once"
)
START_S = 1.0
"""A conversation whose first request comes sooner than this counts from its own start."""


def sniff(head: bytes) -> bool:
    found = opening(head)
    requests = found.get("requests")
    if isinstance(requests, list) and requests and isinstance(requests[0], dict):
        return {"t", "in", "out"} <= requests[0].keys() or requests[0].get("type") == "subagent"
    return {"id", "models", "block_size", "hash_id_scope"} <= found.keys()


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="in s")
    lines.longest = MAX_CONVERSATION_BYTES
    block_size = _block_size(lines)
    header = TraceHeader(
        source=NAME, time_resolution_ms=1, block_size=block_size, missing=("aborts", "errors")
    )
    conversations = _Conversations(lines.tally, block_size)
    return Source(header, json_rows.rows(lines, conversations.fields, block_size=block_size))


def _block_size(lines: TraceFile) -> int:
    _, first = next(iter(lines.again()), (1, b""))
    size = opening(first).get("block_size")
    return size if isinstance(size, int) and 1 <= size <= 2**20 else BLOCK_SIZE


class _Conversations:
    def __init__(self, tally: Tally, block_size: int) -> None:
        self.tally = tally
        self.block_size = block_size
        self.count = 0
        self.next_id = 0
        self.from_start = False
        """Some conversation so far counts from its own start."""

    def fields(self, parsed: Object) -> Iterator[Fields | Reason]:
        requests = parsed.get("requests")
        if not isinstance(requests, list):
            yield "malformed"
            return
        conversation = _Conversation(self, parsed)
        yield from conversation.chain(requests, offset_s=0.0, parent=None)
        self.count += 1

    def see_start(self, first_s: float) -> None:
        if first_s < START_S and self.from_start:
            self.tally.note(LAID_OVER)
        self.from_start |= first_s < START_S


class _Conversation:
    def __init__(self, among: _Conversations, parsed: Object) -> None:
        self.among = among
        self.session = f"s{among.count}"
        self.is_global = parsed.get("hash_id_scope") == "global"
        self.has_ids = parsed.get("block_size", among.block_size) == among.block_size
        if not self.has_ids:
            among.tally.note("conversations of another block_size have no hash_ids")
        self.ids: dict[int, int] = {}
        self.turns = 0

    def chain(
        self, requests: list[Any], *, offset_s: float, parent: str | None, nesting: int = 0
    ) -> Iterator[Fields | Reason]:
        """Yield the requests of one agent and of those beneath it."""
        busy_until_s = 0.0
        for request in requests:
            if not isinstance(request, dict) or nesting > MAX_NESTING:
                yield "malformed"
                continue
            if request.get("type") == "subagent":
                inside = request.get("requests")
                if isinstance(inside, list):
                    starts_s = _inner_offset_s(request, inside, offset_s)
                    yield from self.chain(
                        inside, offset_s=starts_s, parent=parent, nesting=nesting + 1
                    )
                continue
            at_s, lasts_s = request.get("t"), request.get("api_time")
            if is_number(at_s):
                at_s += offset_s
                if not self.turns:
                    self.among.see_start(at_s)
            fields = self._fields(request, at_s)
            if parent is not None and is_number(at_s) and at_s >= busy_until_s:
                fields["parent_id"] = parent
            yield fields
            parent = fields["request_id"]
            if is_number(at_s) and is_number(lasts_s):
                busy_until_s = at_s + lasts_s

    def _fields(self, request: Object, at_s: object) -> Fields:
        turn = self.turns
        self.turns += 1
        return {
            "timestamp": as_ms(at_s),
            "input_length": request.get("in"),
            "output_length": request.get("out"),
            "hash_ids": self._own(request.get("hash_ids")) if self.has_ids else None,
            "request_id": f"{self.session}:{turn}",
            "session_id": self.session,
            "turn": turn,
            "e2e_ms": as_ms(request.get("api_time")),
            "ttft_ms": as_ms(request.get("ttft")),
            "model": request.get("model"),
            "stream": {"s": True, "n": False}.get(str(request.get("type"))),
        }

    def _own(self, ids: Any) -> Any:  # noqa: ANN401 - what are no ids stay what they are
        """Return ids that no other conversation has: odd ones, or even ones for those shared."""
        if not isinstance(ids, list) or not all(type(one) is int and one >= 0 for one in ids):
            return ids
        if self.is_global:
            return [2 * one for one in ids]
        for one in ids:
            if one not in self.ids:
                self.ids[one] = 2 * self.among.next_id + 1
                self.among.next_id += 1
        return [self.ids[one] for one in ids]


def _inner_offset_s(subagent: Object, requests: Iterable[Any], offset_s: float) -> float:
    """Return what the stamps of a subagent's requests count from: its start, or the whole's."""
    starts_s = subagent.get("t")
    first_s = next((one.get("t") for one in requests if isinstance(one, dict)), None)
    if is_number(starts_s) and is_number(first_s) and first_s < starts_s:
        return offset_s + float(starts_s)
    return offset_s
