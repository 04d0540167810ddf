"""The serving trace of SwissAI (Yao et al., OSDI 2026), JSON lines.

``created_at`` and ``finished_at`` are dates, mostly with a Z. Counts of -1 are unknown, and "null"
is text. ``bucket_ids``, where they are, name 16 tokens each by content alone, and ``token_count``
is the prompt's length.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from tuner.trace.formats.reading import json_rows
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, Object, opening
from tuner.trace.formats.reading.scalars import (
    between_ms,
    epoch_ms,
    failed_tokens,
    inner,
    is_absent,
    sequences,
    tokens,
)
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "swissai"
DESCRIPTION = "SwissAI's serving trace, JSON lines"
MARK = "created_at, finished_at, reported_token_input"

KEYS = {"created_at", "finished_at", "reported_token_input", "reported_token_output"}
BLOCK_SIZE = 16
MAX_BLOCKS = 2**20


def sniff(head: bytes) -> bool:
    return opening(head).keys() >= KEYS


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="dates")

    def convert(parsed: Object) -> Iterator[Fields]:
        yield _fields(parsed)

    header = TraceHeader(
        source=NAME, time_resolution_ms=1, block_size=BLOCK_SIZE, missing=("aborts", "sessions")
    )
    return Source(header, json_rows.rows(lines, convert, block_size=BLOCK_SIZE), absolute=True)


def _fields(parsed: Object) -> Fields:
    arrival_ms, end_ms = (epoch_ms(parsed.get(key)) for key in ("created_at", "finished_at"))
    prompt, output = parsed.get("reported_token_input"), parsed.get("reported_token_output")
    if tokens(prompt) in (None, -1):
        prompt = parsed.get("token_count")
    parameters = inner(parsed.get("model_parameters"))
    found: Fields = {
        "timestamp": arrival_ms,
        "e2e_ms": between_ms(arrival_ms, end_ms),
        "model": None if is_absent(parsed.get("model")) else parsed.get("model"),
        "max_tokens": failed_tokens(parameters.get("max_tokens")),
    }
    if str(parsed.get("status")).upper() == "ERROR":
        return found | {
            "status": "error",
            "input_length": failed_tokens(prompt),
            "output_length": failed_tokens(output),
        }
    prompt, output = (None if tokens(count) == -1 else tokens(count) for count in (prompt, output))
    found |= {"input_length": prompt, **sequences(parameters.get("n"), output)}
    buckets = parsed.get("bucket_ids")
    if isinstance(buckets, list) and isinstance(prompt, int) and prompt > 0:
        found["hash_ids"] = tuple(_chained(buckets[: min(prompt // BLOCK_SIZE, MAX_BLOCKS)]))
    return found


def _chained(buckets: Iterable[object]) -> Iterator[int]:
    """Yield ids that stand for all tokens up to the end of a bucket."""
    key = b""
    for bucket in buckets:
        key = blake2b(key + str(bucket).encode(errors="replace"), digest_size=8).digest()
        yield int.from_bytes(key) >> 1
