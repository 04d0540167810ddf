"""Results of ``vllm bench serve --save-result --save-detailed``: one JSON document, by columns.

Stamps are s of a monotonic clock. Without ``--max-concurrency`` a request is sent when it is due;
with it, it first waits in the client for ``queue_times``, so that it was due so much earlier.
"""

import re
import statistics
from collections.abc import Iterator
from typing import Any

import msgspec

from tuner.errors import TraceError
from tuner.trace.formats.reading.header import TimeUnit, TraceHeader
from tuner.trace.formats.reading.json_rows import Fields, opening, usable
from tuner.trace.formats.reading.record import Row
from tuner.trace.formats.reading.scalars import as_ms, is_number
from tuner.trace.formats.reading.source import Source
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "vllm_bench"
DESCRIPTION = "Result of vllm bench serve --save-detailed, one JSON document"
MARK = "start_times, input_lens, output_lens"

NO_NUMBER = re.compile(rb"-?\b(?:NaN|Infinity)\b")
NEEDED = ("start_times", "input_lens", "output_lens")
EMPTY = (b'""', b"null")


class _Result(msgspec.Struct):
    model_id: str | None = None
    max_concurrency: int | None = None
    start_times: list[Any] = []
    input_lens: list[Any] = []
    output_lens: list[Any] = []
    ttfts: list[Any] = []
    itls: list[msgspec.Raw] = []
    """Each a list of gaps, and only decoded if it is needed: these are most of the document."""

    latencies: list[Any] = []
    queue_times: list[Any] = []
    server_queue_times: list[Any] = []
    server_ttfts: list[Any] = []
    """Both of vLLM from 0.33 on, started with ``--enable-per-request-metrics``; null of a failed
    one."""

    errors: list[Any] = []
    generated_texts: list[msgspec.Raw] = []


def sniff(head: bytes) -> bool:
    keys = opening(head).keys()
    return {"tokenizer_id", "num_prompts"} <= keys or {"input_lens", "output_lens"} <= keys


def read(lines: TraceFile, *, time_unit: TimeUnit | None) -> Source:
    lines.refuse_unit(time_unit, the_stamps_are="in s")
    result = _decoded(lines)
    if any(bytes(text) not in EMPTY for text in result.generated_texts):
        lines.refuse_text(1, "generated_texts")
        result.generated_texts = []
    missing = ["aborts", "prefixes", "sessions"]
    if not (result.latencies or result.itls):
        missing.append("ends")
    if result.max_concurrency is not None:
        lines.tally.note(
            f"the client kept at most {result.max_concurrency} requests in flight: arrivals are "
            + ("when requests were due" if result.queue_times else "when it sent them")
        )
    if (more_s := _more_than_the_servers_s(result)) is not None:
        lines.tally.note(
            f"TTFT is the client's: at the median {as_ms(more_s):.3g} ms more than the server's own"
        )
    header = TraceHeader(source=NAME, model=result.model_id, missing=tuple(missing))
    return Source(header, _rows(result, lines), absolute=True, undated=True)


def _decoded(lines: TraceFile) -> _Result:
    text = NO_NUMBER.sub(b"null", lines.document())
    try:
        result = msgspec.json.decode(text, type=_Result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(
            f"{lines.place}: {error}",
            hint="One result a file: --append-result writes several, one a line; split them.",
        ) from error
    if absent := [name for name in NEEDED if not getattr(result, name)]:
        raise TraceError(
            f"{lines.place}: no {', '.join(absent)}: when requests were sent is in detailed "
            "results only",
            hint="Run vllm bench serve with --save-result --save-detailed; old versions of vLLM, "
            "and SGLang, never write start_times.",
        )
    size = len(result.start_times)
    for name, column in msgspec.structs.asdict(result).items():
        if isinstance(column, list) and len(column) not in (0, size):
            raise TraceError(
                f"{lines.place}: {name} has {len(column):,} entries, start_times {size:,}",
                hint="Is the file complete?",
            )
    return result


def _more_than_the_servers_s(result: _Result) -> float | None:
    """Return the median time that lies between a client's TTFT and its server's: the network, and
    the client itself. None where servers did not tell. The TTFT of a request that failed is 0."""
    pairs = zip(result.ttfts, result.server_ttfts, strict=False)
    found = [one - other for one, other in pairs if one and is_number(one) and is_number(other)]
    return statistics.median(found) if found else None


def _rows(result: _Result, lines: TraceFile) -> Iterator[Row]:
    for index in range(len(result.start_times)):
        if (row := usable(_fields(result, index), 1, lines)) is not None:
            lines.tally.rows_kept += 1
            yield row


def _fields(result: _Result, index: int) -> Fields:
    start_s, prompt, output = (getattr(result, name)[index] for name in NEEDED)
    failed = bool(result.errors and result.errors[index]) or output == 0
    queue_s = result.queue_times[index] if result.queue_times else 0
    ttft_s = result.ttfts[index] if result.ttfts else None
    waited_s = result.server_queue_times[index] if result.server_queue_times else None
    lasted_s = None if failed else _lasted_s(result, index)
    return {
        "timestamp": as_ms(_sum(start_s, _negative(queue_s))),
        "input_length": prompt,
        "output_length": output,
        "status": "error" if failed else "ok",
        "e2e_ms": as_ms(_sum(lasted_s, queue_s)),
        "ttft_ms": None if failed else as_ms(_sum(ttft_s, queue_s)),
        "queue_ms": None if failed else as_ms(_sum(waited_s, queue_s)),
    }


def _lasted_s(result: _Result, index: int) -> object:
    if result.latencies:
        return result.latencies[index]
    if not (result.itls and result.ttfts):
        return None
    try:
        gaps_s = msgspec.json.decode(result.itls[index], type=list[float])
    except msgspec.DecodeError:
        return None
    return _sum(result.ttfts[index], sum(gaps_s))


def _negative(value: object) -> object:
    return -value if is_number(value) else value


def _sum(one: object, other: object) -> object:
    """Return the sum; where it has none, the first, for whoever checks the row to say why."""
    return one + other if is_number(one) and is_number(other) else one
