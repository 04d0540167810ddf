"""Alibaba's traces of Qwen on Bailian, JSON lines.

``{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, …}``: stamps are
s, ids stand for 16 tokens, a parent of -1 is none. Each row is the whole context of its turn.
"""

from collections.abc import Iterator

from tuner.trace.formats.reading import json_rows
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, opening
from tuner.trace.formats.reading.recent import Recent
from tuner.trace.formats.reading.scalars import as_ms
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "bailian"
DESCRIPTION = "Alibaba's Qwen-Bailian traces, JSON lines, in s"
MARK = "chat_id, parent_chat_id, timestamp"

KEYS = {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"}
BLOCK_SIZE = 16


def sniff(head: bytes) -> bool:
    return opening(head).keys() >= KEYS


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="in s")
    header = TraceHeader(
        source=NAME,
        time_resolution_ms=1,
        block_size=BLOCK_SIZE,
        missing=("aborts", "errors", "ends"),
    )
    roots: Recent[int] = Recent()

    def convert(parsed: Object) -> Iterator[Fields]:
        chat, parent, turn = (parsed.get(key) for key in ("chat_id", "parent_chat_id", "turn"))
        parent = None if parent == -1 else parent
        session = chat if parent is None else roots.get(parent, parent)
        if isinstance(chat, int) and isinstance(session, int):
            roots.put(chat, session)
        yield {
            "timestamp": as_ms(parsed.get("timestamp")),
            "input_length": parsed.get("input_length"),
            "output_length": parsed.get("output_length"),
            "hash_ids": parsed.get("hash_ids"),
            "request_id": chat,
            "parent_id": parent,
            "session_id": session,
            "turn": turn - 1 if isinstance(turn, int) and turn > 0 else None,
        }

    return Source(header, json_rows.rows(lines, convert, block_size=BLOCK_SIZE))
