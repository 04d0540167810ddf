"""Traffic that holds a recorded concurrency: ``{"time_sec": 60.0, "concurrency": 16}``, a tick a
line, or CSV.

A schedule says how many requests are in flight from a tick to the next; the last tick ends it. It
has nothing of their lengths, so with the lengths of a trace it becomes one.
"""

import csv
import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice, pairwise
from pathlib import Path

import numpy as np

from tuner.errors import TraceError
from tuner.system.files import read_regular
from tuner.trace.record import SCHEDULE, TraceHeader
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.trace.values import number
from tuner.traffic.routing import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN

MAX_S = 366 * 86_400
MAX_CONCURRENCY = 100_000
MAX_REQUESTS = 2_000_000
KEYS = ("time_sec", "concurrency")
HINT = 'Each tick is {"time_sec": SECONDS, "concurrency": WHOLE NUMBER}, later ones below.'


@dataclass(frozen=True, slots=True)
class Tick:
    """So many requests are in flight from here to the next tick; the last one ends it."""

    at_s: float
    concurrency: int


def ticks(path: Path) -> tuple[Tick, ...]:
    """Return the ticks in order. Raises TraceError for a file that is no whole schedule."""
    schedule: list[Tick] = []
    last_s = -1.0
    for line, (time, level) in _rows(path):
        at_s, concurrency = number(time), number(level)
        is_tick = (
            at_s is not None
            and at_s > last_s
            and at_s >= 0
            and concurrency is not None
            and 0 <= concurrency <= MAX_CONCURRENCY
            and concurrency == int(concurrency)
        )
        if not is_tick or at_s is None or concurrency is None:
            raise TraceError(f"{path}:{line}: no tick, or none after the last", hint=HINT)
        schedule.append(Tick(float(at_s), int(concurrency)))
        last_s = at_s
    if not any(tick.concurrency for tick, _ in pairwise(schedule)) or last_s > MAX_S:
        raise TraceError(
            f"{path}: no concurrency above 0 that a later tick ends within a year",
            hint="A schedule has two ticks or more; the last one ends it.",
        )
    return tuple(schedule)


def _rows(path: Path) -> Iterator[tuple[int, tuple[object, object]]]:
    """Yield the line and the two cells of each row of JSON lines or CSV."""
    try:
        text = read_regular(path).decode("utf-8-sig", errors="replace")
    except OSError as problem:
        reason = (problem.strerror or "an error").lower()
        raise TraceError(f"{path}: cannot be read: {reason}", hint=HINT) from None
    lines = [(place, line) for place, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or lines[0][1].lstrip().startswith("{"):
        for place, line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            cells = row if isinstance(row, dict) else {}
            yield place, (cells.get(KEYS[0]), cells.get(KEYS[1]))
        return
    heading = [cell.strip() for cell in lines[0][1].split(",")]
    if not set(KEYS) <= set(heading):
        raise TraceError(f"{path}:{lines[0][0]}: no tick", hint=HINT)
    places = [heading.index(key) for key in KEYS]
    for place, line in lines[1:]:
        row = next(csv.reader([line]), [])
        time, level = (row[at] if at < len(row) else None for at in places)
        yield place, (time, level)


def scheduled(path: Path, lengths: Path) -> Trace:
    """Return a trace that holds the concurrency of a schedule with the lengths of another trace.

    Raises TraceError.
    """
    schedule, columns = ticks(path), load(lengths).columns
    chosen = columns.served & (columns.output_length > 0)
    pairs = np.column_stack([columns.input_length, columns.output_length])[chosen].tolist()
    if not pairs:
        raise TraceError(f"{lengths}: no request was served", hint="Take lengths from another.")
    requests = list(islice(holding(schedule, [*map(tuple, pairs)]), MAX_REQUESTS + 1))
    if len(requests) > MAX_REQUESTS:
        raise TraceError(
            f"{path}: more than {MAX_REQUESTS:,} requests would hold it",
            hint="Shorten it, or take the lengths of longer requests.",
        )
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
    """Yield requests in order of arrival that hold a given concurrency at an assumed speed.

    Each of the requests in flight is a place, in which one follows the other without a pause, and
    ends where the place is given up. Their (prompt, output) ``lengths`` are taken
    in turn, and again.
    """
    drawn, rows = cycle(lengths), count()
    free_s: list[float] = []
    turns: list[int] = []
    for tick, after in pairwise(schedule):
        more = tick.concurrency - len(free_s)
        free_s += [tick.at_s] * more
        turns += [0] * more
        due = [(max(free_s[place], tick.at_s), place) for place in range(tick.concurrency)]
        heapq.heapify(due)
        while due and due[0][0] < after.at_s:
            at_s, place = due[0]
            prompt, output = next(drawn)
            lasts_s = output * S_PER_OUTPUT_TOKEN + prompt * S_PER_PROMPT_TOKEN
            if place >= after.concurrency:
                lasts_s = min(lasts_s, after.at_s - at_s)
            yield TraceRequest(
                row=next(rows),
                arrival_s=round(at_s, 6),
                input_length=prompt,
                output_length=output,
                e2e_s=round(lasts_s, 6),
                session_id=f"place-{place}",
                turn=turns[place],
                holds_place=True,
            )
            turns[place] += 1
            free_s[place] = at_s + lasts_s
            heapq.heapreplace(due, (free_s[place], place))
