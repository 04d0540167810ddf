"""Make the shipped traces, traces/translation.jsonl and traces/translation-uniform.jsonl, and the
first of them as a gateway's export, examples/walk/requests.csv.

A translation service as its server saw it. Visitors come in calm and in busy spells; a text has 10
to 200 tokens and its translation about as many; the server decodes all requests in one batch, and
a batch of n takes STEP_S + n * STEP_PER_SEQUENCE_S for one more token each. That gives 2 to 20
requests at a time, and peaks of 20 to 25.

The same bytes on every run: python scripts/make_traces.py [FOLDER]
"""

import csv
import dataclasses
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import NormalDist, fmean

from tuner.trace.trace import Trace, TraceHeader, TraceRequest, digest, write

SEED = 2
DURATION_S = 300.0

CALM_RPS, BUSY_RPS = 3.1, 4.5
CALM_S, BUSY_S = 25.0, 12.0
"""Mean length of a spell, in seconds."""

SHORTEST, LONGEST = 10, 200  # tokens
LENGTH_RATIO_SIGMA = 0.2
"""Spread of the logarithm of output ÷ input."""

MAX_TOKENS = 256
ABORTED = 0.03
"""Share of requests that the client gave up."""

STEP_S, STEP_PER_SEQUENCE_S = 0.0190, 0.00070
FIRST_TOKEN_S = 0.06

EXPORTED = datetime(2026, 9, 14, 8, tzinfo=UTC)
"""When the gateway saw the first second."""


@dataclass(slots=True)
class Running:
    request: TraceRequest
    tokens: int = 0


def main() -> None:
    root = Path(__file__).parents[1]
    folder, walk = (
        (Path(sys.argv[1]), Path(sys.argv[1]))
        if len(sys.argv) > 1
        else (root / "traces", root / "examples" / "walk")
    )
    requests = serve(list(visits(random.Random(SEED))))  # noqa: S311 - traffic, no secret
    save(requests, folder / "translation.jsonl", "a translation service, made")
    save(uniform(requests), folder / "translation-uniform.jsonl", "the same, every length the mean")
    export(requests, walk / "requests.csv")


def visits(rng: random.Random) -> Iterator[TraceRequest]:
    """Yield what clients ask for; ``output_length`` is what the whole answer would be."""
    now_s, spell_end_s, busy, row = 0.0, 0.0, True, 0
    while True:
        now_s += exponential(rng, 1 / (BUSY_RPS if busy else CALM_RPS))
        while now_s > spell_end_s:
            busy = not busy
            spell_end_s += exponential(rng, BUSY_S if busy else CALM_S)
        if now_s > DURATION_S:
            return
        size = SHORTEST + (LONGEST - SHORTEST) * rng.random()
        ratio = math.exp(LENGTH_RATIO_SIGMA * NormalDist().inv_cdf(rng.uniform(1e-9, 1 - 1e-9)))
        yield TraceRequest(
            row=row,
            arrival_s=round(now_s, 3),
            input_length=round(size),
            output_length=min(LONGEST, max(SHORTEST, round(size * ratio))),
            status="aborted" if rng.random() < ABORTED else "ok",
            max_tokens=MAX_TOKENS,
        )
        row += 1


def serve(asked: list[TraceRequest]) -> list[TraceRequest]:
    """Return the requests as the server logged them: with their durations and real outputs."""
    rng = random.Random(SEED + 1)  # noqa: S311 - traffic, no secret
    logged: dict[int, TraceRequest] = {}
    waiting = list(reversed(asked))
    running: list[Running] = []
    now_s = 0.0
    while waiting or running:
        if not running:
            now_s = max(now_s, waiting[-1].arrival_s)
        while waiting and waiting[-1].arrival_s <= now_s:
            running.append(admitted(waiting.pop(), rng))
        now_s += STEP_S + STEP_PER_SEQUENCE_S * len(running)
        for one in running:
            one.tokens += 1
            if one.tokens == one.request.output_length:
                logged[one.request.row] = ended(one.request, now_s)
        running = [one for one in running if one.tokens < one.request.output_length]
    return [logged[row] for row in sorted(logged)]


def admitted(request: TraceRequest, rng: random.Random) -> Running:
    """A client that gives up does so somewhere in its answer."""
    if request.status == "aborted":
        seen = max(1, round(request.output_length * rng.random()))
        return Running(dataclasses.replace(request, output_length=seen))
    return Running(request)


def ended(request: TraceRequest, now_s: float) -> TraceRequest:
    e2e_s = round(now_s + FIRST_TOKEN_S - request.arrival_s, 3)
    return dataclasses.replace(request, e2e_s=e2e_s)


def uniform(requests: list[TraceRequest]) -> list[TraceRequest]:
    """Return the same arrivals with mean lengths, served by the same server."""
    served = [request for request in requests if request.status == "ok"]
    return serve(
        [
            dataclasses.replace(
                request,
                input_length=round(fmean(one.input_length for one in served)),
                output_length=round(fmean(one.output_length for one in served)),
                status="ok",
            )
            for request in requests
        ]
    )


def save(requests: list[TraceRequest], path: Path, note: str) -> None:
    header = TraceHeader(
        source="scripts/make_traces.py",
        model="tuner:tiny",
        time_resolution_ms=1,
        rows_read=len(requests),
        rows_kept=len(requests),
        notes=(note,),
    )
    trace = Trace(header, tuple(requests), digest(requests, header.block_size))
    write(trace, path, force=True)
    print(f"{path}: {len(requests)} requests, {trace.digest}")


def export(requests: list[TraceRequest], path: Path) -> None:
    """Write what a gateway knows: when a request came, how long it took, and its tokens."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(
            ("started_at", "request_id", "prompt_tokens", "completion_tokens", "duration_ms")
        )
        for number, one in enumerate(requests, start=1):
            assert one.e2e_s is not None, "all were served"
            came = EXPORTED + timedelta(seconds=one.arrival_s)
            stamp = came.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            lengths = one.input_length, one.output_length
            rows.writerow((stamp, f"req-{number:04d}", *lengths, round(one.e2e_s * 1000)))


def exponential(rng: random.Random, mean: float) -> float:
    return -mean * math.log(1 - rng.random())


if __name__ == "__main__":
    main()
