"""aiperf's concurrency schedule: ``{"time_sec": 60.0, "concurrency": 16}``, a tick a line, or CSV.

It says how many requests are in flight from a tick to the next; the last tick ends it. It says
nothing of their lengths. So it is no trace by itself: with the lengths of a trace it becomes one.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tuner.errors import TraceError
from tuner.trace.formats.reading.exports import entries
from tuner.trace.formats.reading.record import Tally
from tuner.trace.formats.reading.scalars import real, tokens
from tuner.trace.formats.reading.trace_file import TraceFile

NAME = "concurrency_schedule"
KEYS = frozenset({"time_sec", "concurrency"})
MAX_S = 366 * 86_400
MAX_CONCURRENCY = 100_000


@dataclass(frozen=True, slots=True)
class Tick:
    """So many requests are in flight from here to the next tick; the last one ends it."""

    at_s: float
    concurrency: int


def read(path: Path) -> tuple[Tick, ...]:
    """Return the ticks in order. Raises TraceError for a file that is no whole schedule."""
    tally = Tally(str(path))
    found: list[Tick] = []
    try:
        for number, entry in entries(TraceFile(path, tally), KEYS):
            at_s, level = real(entry.get("time_sec")), tokens(entry.get("concurrency"))
            if type(at_s) not in (int, float) or not 0 <= at_s <= MAX_S:
                raise _wrong(path, number, f"time_sec is {str(at_s)[:40]}")
            if type(level) is not int or not 0 <= level <= MAX_CONCURRENCY:
                raise _wrong(path, number, f"concurrency is {str(level)[:40]}")
            if found and at_s <= found[-1].at_s:
                raise _wrong(path, number, f"time_sec {at_s:g} is not after {found[-1].at_s:g}")
            found.append(Tick(float(at_s), level))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}", hint="Check the path.") from error
    for reason, line in tally.first_line.items():
        raise _wrong(path, line, f"no tick ({reason})")
    if not any(tick.concurrency for tick, _ in pairwise(found)):
        raise TraceError(
            f"{path}: no concurrency above 0 that a later tick ends",
            hint="A schedule has two ticks or more; the last one ends it.",
        )
    return tuple(found)


def _wrong(path: Path, line: int, what: str) -> TraceError:
    return TraceError(
        f"{path}:{line}: {what}",
        hint='Each tick is {"time_sec": SECONDS, "concurrency": WHOLE NUMBER}, later ones below.',
    )
