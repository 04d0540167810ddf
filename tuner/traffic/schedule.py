"""Traffic that holds a recorded concurrency: ``{"time_sec": 60.0, "concurrency": 16}``, a tick a
line, or CSV with these two columns.

A schedule says how many requests are in flight from a tick to the next; the last tick ends it. It
has nothing of their lengths, so with the lengths of a trace it becomes one.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, islice, pairwise
from pathlib import Path
from typing import Any

from tuner.errors import TraceError
from tuner.system.files import read_regular
from tuner.trace.record import SCHEDULE, TraceHeader
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.trace.values import number
from tuner.traffic.routing import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN

MAX_CONCURRENCY = 100_000
MAX_REQUESTS = 2_000_000
HINT = (
    'Each tick is {"time_sec": SECONDS, "concurrency": WHOLE NUMBER}, later ones below; the last '
    "one ends the schedule."
)


@dataclass(frozen=True, slots=True)
class Tick:
    """So many requests are in flight from here to the next tick; the last one ends it."""

    at_s: float
    concurrency: int


def ticks(path: Path) -> tuple[Tick, ...]:
    """Return the ticks in order. Raises TraceError for a file that is no whole schedule."""
    schedule: list[Tick] = []
    last_s = -1.0
    for line, row in _rows(path):
        at_s, level = number(row.get("time_sec")), number(row.get("concurrency"))
        if (
            (at_s is None or at_s <= last_s or at_s < 0)
            or (level is None or not 0 <= level <= MAX_CONCURRENCY or level % 1)
        ):  # fmt: skip
            raise TraceError(f"{path}:{line}: no tick, or none after the last", hint=HINT)
        schedule.append(Tick(float(at_s), int(level)))
        last_s = at_s
    if not any(tick.concurrency for tick in schedule[:-1]):
        raise TraceError(f"{path}: no concurrency above 0 that a later tick ends", hint=HINT)
    return tuple(schedule)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line and the cells of each row of JSON lines or CSV."""
    try:
        lines = read_regular(path).decode("utf-8-sig", errors="replace").splitlines()
    except OSError as problem:
        reason = (problem.strerror or "an error").lower()
        raise TraceError(f"{path}: cannot be read: {reason}", hint=HINT) from None
    if lines and not lines[0].lstrip().startswith("{"):
        yield from enumerate(csv.DictReader(lines, skipinitialspace=True), 2)
        return
    for place, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            row = {}
        if row is not None:
            yield place, row if isinstance(row, dict) else {}


def scheduled(path: Path, lengths: Path) -> Trace:
    """Return a trace that holds the concurrency of a schedule with the lengths of another trace.

    Raises TraceError.
    """
    schedule = ticks(path)
    pairs = [
        (each.input_length, each.output_length)
        for each in load(lengths).requests
        if each.status in {"ok", "aborted"} and each.output_length > 0
    ]
    if not pairs:
        raise TraceError(f"{lengths}: no request was served", hint="Take lengths from another.")
    requests = list(islice(holding(schedule, pairs), MAX_REQUESTS + 1))
    if len(requests) > MAX_REQUESTS:
        raise TraceError(
            f"{path}: more than {MAX_REQUESTS:,} requests would hold it",
            hint="Shorten it, or take the lengths of longer requests.",
        )
    requests.sort(key=lambda request: request.arrival_s)
    requests = [replace(request, row=row) for row, request in enumerate(requests)]
    note = (
        f"synthetic: lengths of {lengths.name}, arrivals that hold the concurrency of a schedule "
        f"at {S_PER_OUTPUT_TOKEN * 1000:g} ms an output token and "
        f"{S_PER_PROMPT_TOKEN * 1000:g} ms a prompt token; a replay holds it at any speed"
    )
    header = TraceHeader(
        source=SCHEDULE,
        rows_read=len(requests),
        rows_kept=len(requests),
        missing=("aborts", "errors", "prefixes"),
        notes=(note,),
    )
    return Trace.of(header, requests).warned(note)


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
