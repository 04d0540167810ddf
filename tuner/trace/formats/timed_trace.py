"""Input of ``vllm bench serve --dataset-name timed_trace``: Mooncake's look, so to be named.

In s unless ``--timed-trace-sec-multiplier`` says otherwise, ids of 16 tokens unless
``--timed-trace-chunk-hash-size`` does; neither stands in the file.
"""

from tuner.trace.formats import guidellm
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.formats.reading.replayable import Replayable
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "timed_trace"
DESCRIPTION = "vLLM's timed_trace benchmark input, JSON lines, in s"
MARK = "none: name it with --format timed_trace"

BLOCK_SIZE = 16
EXPORTED_BLOCK_SIZE: int | None = None

sniff = guidellm.sniff
export = guidellm.export


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    return guidellm.in_seconds(lines, time_unit, source=NAME, usual_block_size=BLOCK_SIZE)


def usage(name: str, found: Replayable) -> str:
    return (
        f"PYTHONHASHSEED=0 vllm bench serve --dataset-name timed_trace --dataset-path {name} "
        f"--timed-trace-chunk-hash-size {found.block_size} --num-prompts {found.requests}"
    )
