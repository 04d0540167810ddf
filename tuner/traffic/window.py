"""Choose the part of the trace that is replayed. Pure."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.errors import TraceError, UsageError

if TYPE_CHECKING:  # numpy is slow to load, and apply only reads a window
    from collections.abc import Callable, Sequence

    from tuner.trace.trace import TraceRequest

MAX_RUN_IN_S = 15.0
RUN_IN_SHARE = 0.25
"""The run-in is replayed and not scored, so that scoring starts with the engine as full as
production had it: a quarter of the window, at most 15 s."""

SHORT_S = 1.0
"""A trace shorter than this has no run-in: all of it is one burst."""

_UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<value>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?P<unit>ms|s|m|h|)")


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the trace that is tuned for, in seconds from the trace's origin: [begin, end)."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def __str__(self) -> str:
        return f"{self.begin_s:.3f}s+{self.length_s:.3f}s"


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of trace that one replay sends, in seconds from the trace's origin."""

    start_s: float
    """Where scoring starts."""

    length_s: float
    run_in_s: float
    weight: float = 1.0
    """Requests of the part that each of its requests stands for."""

    @property
    def replay_s(self) -> float:
        """The time that a replay of it sends."""
        return self.run_in_s + self.length_s

    def __str__(self) -> str:
        return f"{self.start_s:.3f}s+{self.length_s:.3f}s"


def parse_duration_s(text: str, *, option: str) -> float:
    """Read ``90``, ``90s``, ``1.5m``, ``2h`` or ``500ms`` as seconds.

    Raises UsageError for anything else and for zero.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found["value"]) == 0:
        raise UsageError(
            f"{option}: {text!r} is not a positive duration",
            hint="Write a number above 0 with ms, s, m or h: 90s, 1.5m or 2h.",
        )
    return float(found["value"]) * _UNITS_S[found["unit"]]


def parse_window(asked: str) -> tuple[float, float] | None:
    """Return (start, length) in seconds of ``START+LEN``; None for ``busiest`` and ``all``.

    Raises UsageError for anything else.
    """
    if asked in {"busiest", "all"}:
        return None
    parts = asked.split("+")
    if len(parts) != 2:
        raise UsageError(
            f"--window: cannot read {asked!r}", hint="Write busiest, all or START+LEN (120s+60s)."
        )
    zero = parts[0].strip() in {"0", "0s"}
    start_s = 0.0 if zero else parse_duration_s(parts[0], option="--window")
    return start_s, parse_duration_s(parts[1], option="--window")


def choose_part(
    requests: "Sequence[TraceRequest]",
    asked: str,
    *,
    length_s: float,
    busiest: "Callable[[Sequence[TraceRequest], float], tuple[float, float]]",
) -> Part:
    """Return the part that ``asked`` names: ``all``, ``busiest`` or ``START+LEN``.

    ``busiest`` is ``length_s`` long, or the whole trace when that is shorter. Raises UsageError for
    one that cannot be read, TraceError for one without requests.
    """
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    whole = Part(first_s, max(last_s, first_s + LEAST_S) + LEAST_S)
    explicit = parse_window(asked)
    if explicit is None:
        if asked == "all" or whole.length_s <= length_s:
            return whole
        return Part(*busiest(requests, length_s))
    start_s, length_s = explicit
    if not any(start_s <= request.arrival_s < start_s + length_s for request in requests):
        raise TraceError(
            f"--window {asked}: no request arrives there",
            hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
        )
    return Part(start_s, start_s + length_s)


LEAST_S = 1e-3
"""Added to the last arrival, so that it is inside."""


def run_in_before_s(length_s: float, *, room_s: float) -> float:
    """Return the run-in of a window that has so much of the trace before it."""
    return min(MAX_RUN_IN_S, RUN_IN_SHARE * length_s, max(0.0, room_s))


def in_window(requests: "Sequence[TraceRequest]", window: Window) -> "list[TraceRequest]":
    """Return the requests to send: the window's and its run-in's, recorded errors left out.

    What production rejected or failed was never served: it is reported, not replayed.
    """
    start_s, end_s = window.start_s - window.run_in_s, window.start_s + window.length_s
    return [
        request
        for request in requests
        if start_s <= request.arrival_s < end_s and request.status in {"ok", "aborted"}
    ]
