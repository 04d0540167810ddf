"""Make the shipped traces: traces/chat.jsonl and traces/translation.jsonl, and the chat once more
as a gateway's export, examples/walk/requests.csv.

A support chat as its server saw it: short questions, answers of 50 to 200 tokens, and every 50 s a
rush of 5 s. And a translation service: visitors come in calm and in busy spells, a text has 10 to
200 tokens and its translation about as many. Both servers decode all requests in one batch, so the
time for one more token each grows with the batch. That gives 2 to 20 requests at a time, and peaks
of 25 to 35.

The same bytes on every run: python scripts/make_traces.py
"""

import csv
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import NormalDist

from tuner.trace.trace import Trace, TraceHeader, TraceRequest, write

ROOT = Path(__file__).resolve().parents[1]

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

FIRST_TOKEN_S = 0.06

STEP = 0.0190, 0.00070, 0
CHAT_STEP = 0.0131, 0.00077, 6
"""Seconds of a step, seconds more for each sequence in it, and how many sequences are free: two CPU
cores read 38 million weights, and from six sequences on they compute longer than they read."""

CHAT_CALM_RPS, CHAT_RUSH_RPS = 1.2, 9.5
RUSH_S, RUSH_EVERY_S = 5.0, 50.0
QUESTION, ANSWER = (10, 60), (50, 200)  # tokens, shortest and longest

EXPORTED = datetime(2026, 9, 14, 8, tzinfo=UTC)
"""When the gateway saw the first second."""


def main() -> None:
    visitors = serve(list(visits(random.Random(SEED))), *STEP)  # noqa: S311 - no secret
    save(visitors, "translation.jsonl", "tuner:tiny", "a translation service, made")
    chat = serve(list(questions(random.Random(SEED))), *CHAT_STEP)  # noqa: S311 - no secret
    save(chat, "chat.jsonl", "tuner:small", "a support chat, made")
    export(chat, ROOT / "examples" / "walk" / "requests.csv")


def questions(rng: random.Random) -> Iterator[TraceRequest]:
    """Yield what people ask in the chat; ``output_length`` is what the whole answer would be."""
    now_s = 0.0
    while True:
        rush = now_s % RUSH_EVERY_S < RUSH_S
        now_s += rng.expovariate(CHAT_RUSH_RPS if rush else CHAT_CALM_RPS)
        if now_s > DURATION_S:
            return
        yield request(rng, now_s, rng.randint(*QUESTION), rng.randint(*ANSWER))


def visits(rng: random.Random) -> Iterator[TraceRequest]:
    """Yield what clients want translated; ``output_length`` is that of the whole translation."""
    now_s, spell_end_s, busy = 0.0, 0.0, True
    while True:
        now_s += rng.expovariate(BUSY_RPS if busy else CALM_RPS)
        while now_s > spell_end_s:
            busy = not busy
            spell_end_s += rng.expovariate(1 / (BUSY_S if busy else CALM_S))
        if now_s > DURATION_S:
            return
        size = SHORTEST + (LONGEST - SHORTEST) * rng.random()
        ratio = math.exp(LENGTH_RATIO_SIGMA * NormalDist().inv_cdf(rng.uniform(1e-9, 1 - 1e-9)))
        output = min(LONGEST, max(SHORTEST, round(size * ratio)))
        yield request(rng, now_s, round(size), output)


def request(rng: random.Random, at_s: float, prompt: int, output: int) -> TraceRequest:
    """Return what one client sends, who may give up before the answer ends."""
    return TraceRequest(
        row=0,
        arrival_s=round(at_s, 3),
        input_length=prompt,
        output_length=output,
        status="aborted" if rng.random() < ABORTED else "ok",
        max_tokens=MAX_TOKENS,
    )


def serve(sent: list[TraceRequest], base_s: float, more_s: float, free: int) -> list[TraceRequest]:
    """Return the requests as the server logged them: with their durations and real outputs."""
    rng = random.Random(SEED + 1)  # noqa: S311 - traffic, no secret
    logged: dict[int, TraceRequest] = {}
    waiting = [replace(each, row=row) for row, each in enumerate(sent)][::-1]
    running: dict[int, TraceRequest] = {}
    tokens: dict[int, int] = {}
    now_s = 0.0
    while waiting or running:
        if not running:
            now_s = max(now_s, waiting[-1].arrival_s)
        while waiting and waiting[-1].arrival_s <= now_s:
            each = waiting.pop()
            if each.status == "aborted":  # somewhere in its answer
                each = replace(each, output_length=max(1, round(each.output_length * rng.random())))
            running[each.row], tokens[each.row] = each, 0
        now_s += base_s + more_s * max(0, len(running) - free)
        for row, each in list(running.items()):
            tokens[row] += 1
            if tokens[row] == each.output_length:
                e2e_s = round(now_s + FIRST_TOKEN_S - each.arrival_s, 3)
                logged[row] = replace(running.pop(row), e2e_s=e2e_s)
    return [logged[row] for row in sorted(logged)]


def save(requests: list[TraceRequest], name: str, model: str, note: str) -> None:
    header = TraceHeader(
        source="scripts/make_traces.py",
        model=model,
        rows_read=len(requests),
        rows_kept=len(requests),
        notes=(note,),
    )
    write(Trace.of(header, requests), ROOT / "traces" / name, force=True)


def export(requests: list[TraceRequest], path: Path) -> None:
    """Write what a gateway knows: when a request came, how long it took, and its tokens."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(
            ("started_at", "request_id", "prompt_tokens", "completion_tokens", "duration_ms")
        )
        for number, each in enumerate(requests, start=1):
            assert each.e2e_s is not None, "all were served"
            came = EXPORTED + timedelta(seconds=each.arrival_s)
            stamp = came.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            lengths = each.input_length, each.output_length
            rows.writerow((stamp, f"req-{number:04d}", *lengths, round(each.e2e_s * 1000)))


if __name__ == "__main__":
    main()
