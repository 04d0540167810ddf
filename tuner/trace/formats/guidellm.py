"""GuideLLM's replay files, which look like Mooncake's and are in s: to be named, never guessed."""

from collections.abc import Iterator

from tuner.trace.formats.reading import json_rows
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object
from tuner.trace.formats.reading.replayable import Replayable
from tuner.trace.formats.reading.scalars import as_ms
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "guidellm"
DESCRIPTION = "GuideLLM's trace_synthetic and mooncake replay files, JSON lines, in s"
MARK = "none: name it with --format guidellm"

BLOCK_SIZE = 512
EXPORTED_BLOCK_SIZE: int | None = None


def sniff(head: bytes) -> bool:
    """Return False: only whoever has the file knows whether Mooncake's keys are in s or in ms."""
    del head
    return False


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    return in_seconds(lines, time_unit, source=NAME, usual_block_size=BLOCK_SIZE)


def export(found: Replayable) -> Iterator[bytes]:
    """Return rows with s, to the microsecond."""
    return found.lines(lambda arrival_ms: round(arrival_ms / 1000, 6))


def usage(name: str, found: Replayable) -> str:
    return (
        f"guidellm run --profile kind=replay --data kind=mooncake,"
        f"hash_id_block_size={found.block_size},source.kind=json_file,source.path={name}"
    )


def in_seconds(
    lines: TraceFile, time_unit: TimeUnit | None, *, source: str, usual_block_size: int
) -> Source:
    """Read Mooncake's keys with stamps in s, unless another unit is named."""

    def convert(parsed: Object) -> Iterator[Fields]:
        stamp = parsed.get("timestamp")
        yield {
            "timestamp": stamp if time_unit == "ms" else as_ms(stamp),
            "input_length": parsed.get("input_length"),
            "output_length": parsed.get("output_length"),
            "hash_ids": parsed.get("hash_ids"),
            "e2e_ms": as_ms(parsed.get("duration")),
        }

    block_size = json_rows.block_size(lines, usual_block_size)
    header = TraceHeader(source=source, block_size=block_size, missing=("aborts", "errors"))
    return Source(header, json_rows.rows(lines, convert, block_size=block_size))
