"""Traffic that holds a recorded concurrency: ``{"time_sec": 60.0, "concurrency": 16}``, a tick a
line.

A schedule says how many requests are in flight from a tick to the next; the last tick ends it. It
has nothing of their lengths, so with the lengths of a trace it becomes one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, cycle, islice, pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from tuner.errors import TraceError
from tuner.system.files import read_regular
from tuner.trace.record import SCHEDULE, TraceHeader
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.traffic.load import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN
from tuner.traffic.window import is_served

MAX_REQUESTS = 2_000_000
HINT = (
    'Each tick is {"time_sec": SECONDS, "concurrency": WHOLE NUMBER}, later ones below; the last '
    "one ends the schedule."
)
NOTE = (
    f"arrivals that hold the concurrency of a schedule at {S_PER_OUTPUT_TOKEN * 1000:g} ms an "
    f"output token and {S_PER_PROMPT_TOKEN * 1000:g} ms a prompt token; a replay holds it at any "
    "speed"
)


class Tick(Struct, frozen=True):
    """So many requests are in flight from here to the next tick; the last one ends it."""

    at_s: Annotated[float, Meta(ge=0, le=1e9)] = field(name="time_sec")
    concurrency: Annotated[int, Meta(ge=0, le=100_000)]


def ticks(path: Path) -> tuple[Tick, ...]:
    """Return the ticks in order. Raises TraceError for a file that is no whole schedule."""
    try:
        lines = read_regular(path).decode("utf-8-sig", errors="replace").rstrip().splitlines()
    except OSError as problem:
        reason = (problem.strerror or "an error").lower()
        raise TraceError(f"{path}: cannot be read: {reason}", hint=HINT) from None
    schedule: list[Tick] = []
    for line, text in enumerate(lines, 1):
        try:
            tick = msgspec.json.decode(text, type=Tick, strict=False)
        except (msgspec.DecodeError, RecursionError):
            tick = None
        if tick is None or (schedule and tick.at_s <= schedule[-1].at_s):
            raise TraceError(f"{path}:{line}: no tick, or none after the last", hint=HINT)
        schedule.append(tick)
    if not any(tick.concurrency for tick in schedule[:-1]):
        raise TraceError(f"{path}: no concurrency above 0 that a later tick ends", hint=HINT)
    return tuple(schedule)


def scheduled(path: Path, lengths: Path) -> Trace:
    """Return a trace that holds the concurrency of a schedule with the lengths of another trace.

    Raises TraceError.
    """
    schedule = ticks(path)
    pairs = [
        (each.input_length, each.output_length)
        for each in load(lengths).requests
        if is_served(each) and each.output_length > 0
    ]
    if not pairs:
        raise TraceError(f"{lengths}: no request was served", hint="Take lengths from another.")
    requests = list(islice(holding(schedule, pairs), MAX_REQUESTS + 1))
    size, note = len(requests), f"synthetic: lengths of {lengths.name}, {NOTE}"
    if size > MAX_REQUESTS:
        raise TraceError(
            f"{path}: more than {MAX_REQUESTS:,} requests would hold it",
            hint="Shorten it, or take the lengths of longer requests.",
        )
    requests.sort(key=lambda request: request.arrival_s)
    header = TraceHeader(
        source=SCHEDULE,
        rows_read=size,
        rows_kept=size,
        missing=("aborts", "errors", "prefixes"),
        notes=(note,),
    )
    return Trace.of(header, [replace(each, row=row) for row, each in enumerate(requests)])


def holding(schedule: Sequence[Tick], lengths: Sequence[tuple[int, int]]) -> Iterator[TraceRequest]:
    """Yield requests, place by place, that hold a given concurrency at an assumed speed.

    Each of the requests in flight is a place, in which one follows the other without a pause, and
    ends where the place is given up. Each place takes the (prompt, output) ``lengths`` in turn,
    from its own number on.
    """
    for place in range(max(tick.concurrency for tick in schedule)):
        drawn, turn, free_s = islice(cycle(lengths), place % len(lengths), None), count(), 0.0
        for tick, after in pairwise(schedule):
            while place < tick.concurrency and (at_s := max(free_s, tick.at_s)) < after.at_s:
                prompt, output = next(drawn)
                lasts_s = output * S_PER_OUTPUT_TOKEN + prompt * S_PER_PROMPT_TOKEN
                if place >= after.concurrency:
                    lasts_s = min(lasts_s, after.at_s - at_s)
                free_s = at_s + lasts_s
                yield TraceRequest(
                    row=0,
                    arrival_s=round(at_s, 6),
                    input_length=prompt,
                    output_length=output,
                    e2e_s=round(lasts_s, 6),
                    session_id=f"place-{place}",
                    turn=next(turn),
                    holds_place=True,
                )
