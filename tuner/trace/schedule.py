"""Concurrency over time: ``{"time_sec": 60.0, "concurrency": 16}``, a tick a line, or CSV.

It holds how many requests are in flight from a tick to the next; the last tick ends it. It has
nothing of their lengths, so with the lengths of a trace it becomes one.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tuner.errors import TraceError

MAX_S = 366 * 86_400
MAX_CONCURRENCY = 100_000
HINT = 'Each tick is {"time_sec": SECONDS, "concurrency": WHOLE NUMBER}, later ones below.'


@dataclass(frozen=True, slots=True)
class Tick:
    """So many requests are in flight from here to the next tick; the last one ends it."""

    at_s: float
    concurrency: int


def ticks(path: Path) -> tuple[Tick, ...]:
    """Return the ticks in order. Raises TraceError for a file that is no whole schedule."""
    from tuner.trace.decode import opened  # noqa: PLC0415 - loads pyarrow
    from tuner.trace.files import TraceFile  # noqa: PLC0415 - loads pyarrow
    from tuner.trace.raw import Tally  # noqa: PLC0415 - loads pyarrow
    from tuner.trace.values import Counts, number  # noqa: PLC0415

    tally = Tally(str(path))
    found: list[Tick] = []
    for raw in opened(TraceFile(path, tally)).raws(["time_sec", "concurrency"]):
        columns = [raw.cells([key]) or [None] * len(raw) for key in ("time_sec", "concurrency")]
        lists = [one if isinstance(one, list) else one.to_pylist() for one in columns]
        for line, time, level in zip(raw.lines.tolist(), *lists, strict=True):
            at_s, concurrency = number(time), Counts().cell(level)
            is_later = at_s is not None and at_s > (found[-1].at_s if found else -1)
            if not is_later or not isinstance(concurrency, int) or concurrency > MAX_CONCURRENCY:
                raise TraceError(f"{tally.at(line)}: no tick, or none after the last", hint=HINT)
            found.append(Tick(float(at_s or 0), concurrency))
    for where in tally.first.values():
        raise TraceError(f"{where}: no tick", hint=HINT)
    if not any(tick.concurrency for tick, _ in pairwise(found)) or found[-1].at_s > MAX_S:
        raise TraceError(
            f"{path}: no concurrency above 0 that a later tick ends within a year",
            hint="A schedule has two ticks or more; the last one ends it.",
        )
    return tuple(found)
