"""Mooncake's traces (Qin et al., FAST 2025) and their like: canonical rows without a header.

Whole-number stamps are ms. The same keys with fractional stamps are written by other tools in
either unit, so these must name theirs.
"""

from collections.abc import Iterator

from tuner.trace.formats import canonical
from tuner.trace.formats.reading import json_rows
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import opening
from tuner.trace.formats.reading.replayable import Replayable
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "mooncake"
DESCRIPTION = "JSON lines with timestamp, input_length, output_length, hash_ids of 512 tokens"
MARK = "timestamp, input_length, output_length"

BLOCK_SIZE = 512
EXPORTED_BLOCK_SIZE: int | None = BLOCK_SIZE


def sniff(head: bytes) -> bool:
    return {"timestamp", "input_length", "output_length"} <= opening(head).keys()


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    block_size = json_rows.block_size(lines, BLOCK_SIZE)
    header = TraceHeader(source=NAME, block_size=block_size, missing=("aborts", "errors", "ends"))
    return canonical.source(lines, header, time_unit=time_unit)


def export(found: Replayable) -> Iterator[bytes]:
    """Return rows with whole ms, as Mooncake's own."""
    return found.lines(round)


def usage(name: str, found: Replayable) -> str:
    return (
        f"PYTHONHASHSEED=0 vllm bench serve --dataset-name timed_trace --dataset-path {name} "
        f"--timed-trace-sec-multiplier 0.001 --timed-trace-chunk-hash-size {found.block_size} "
        f"--num-prompts {found.requests}"
    )
