"""Input of ``vllm bench serve --dataset-name timed_trace``: Mooncake's look, so to be named.

In s unless ``--timed-trace-sec-multiplier`` says otherwise, ids of 16 tokens unless
``--timed-trace-chunk-hash-size`` does; neither stands in the file.
"""

from tuner.formats import guidellm
from tuner.formats.lines import Lines
from tuner.formats.source import Source, TimeUnit

NAME = "timed_trace"
DESCRIPTION = "vLLM's timed_trace benchmark input, JSON lines, in s"

BLOCK_SIZE = 16

sniff = guidellm.sniff


def read(lines: Lines, *, time_unit: TimeUnit | None) -> Source:
    return guidellm.in_seconds(lines, time_unit, source=NAME, usual_block_size=BLOCK_SIZE)
