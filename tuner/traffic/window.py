"""The part of a trace that is tuned for, and the window of it that a step replays. Pure.

A part that is too long is replayed where the most tokens are requested; the twin replays all of it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.errors import TraceError, UsageError
from tuner.trace.columns import Floats, Ints
from tuner.trace.record import SERVED
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import (
    DRAIN_SHARE,
    LEAST_S,
    MAX_RUN_IN_S,
    MIN_WINDOW_S,
    NEAREST,
    RUN_IN_SHARE,
    SHORT_S,
)

BLOCK = 2**20
"""Rows that are looked at at once."""

_UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|)")


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the trace, in seconds from its origin: [start, end). A part has no run-in."""

    start_s: float
    length_s: float
    run_in_s: float = 0.0
    """What is sent before the start, and not scored."""

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s

    @property
    def replay_s(self) -> float:
        """The time that a replay of it sends."""
        return self.run_in_s + self.length_s

    def __str__(self) -> str:
        return f"{self.start_s:.3f}s+{self.length_s:.3f}s"


def parse_duration_s(text: str, *, option: str) -> float:
    """Read ``90``, ``90s``, ``1.5m``, ``2h`` or ``500ms`` as seconds. Raises UsageError for
    anything else and for zero."""
    result = _DURATION.fullmatch(text.strip())
    if result is None or not float(result[1]):
        raise UsageError(
            f"{option}: {text!r} is not a positive duration",
            hint="Write a number above 0 with ms, s, m or h: 90s, 1.5m or 2h.",
        )
    return float(result[1]) * _UNITS_S[result[2]]


def parse_window(text: str) -> tuple[float, float] | None:
    """Return (start, length) in seconds of ``START+LEN``; None for ``busiest`` and ``all``.

    Raises UsageError for anything else.
    """
    if text in {"busiest", "all"}:
        return None
    start, plus, length = text.partition("+")
    if not plus:
        raise UsageError(
            f"--window: cannot read {text!r}", hint="Write busiest, all or START+LEN (120s+60s)."
        )
    is_zero = start.strip() in {"0", "0s"}
    start_s = 0.0 if is_zero else parse_duration_s(start, option="--window")
    return start_s, parse_duration_s(length, option="--window")


# The busiest stretch


def is_served(request: TraceRequest) -> bool:
    return request.status in SERVED


def arrays(requests: Sequence[TraceRequest]) -> tuple[Floats, Ints]:
    """Return when requests arrive, and the tokens that each asks for; 0 for one not served."""
    tokens = [
        is_served(each) * (each.input_length + each.n * each.output_length) for each in requests
    ]
    return np.array([each.arrival_s for each in requests]), np.array(tokens, np.int64)


def busiest(arrival_s: Floats, tokens: Ints, length_s: float) -> float:
    """Return when the ``length_s`` begin in which the most tokens are requested; of equals the
    first. It does not reach past the end of the trace: it would be idle there."""
    before = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum(tokens, out=before[1:])
    most, start_s = -1, 0.0
    for first in range(0, len(tokens), BLOCK):  # all at once would need a gigabyte
        begins_s = arrival_s[first : first + BLOCK]
        ends = np.searchsorted(arrival_s, begins_s + length_s, side="left")
        sums = before[ends] - before[first : first + len(ends)]
        if sums.max() > most:
            most, start_s = int(sums.max()), float(begins_s[sums.argmax()])
    latest_s = float(arrival_s[-1]) - length_s + 1e-6
    return max(float(arrival_s[0]), min(start_s, latest_s))


def busiest_rows(arrival_s: Floats, tokens: Ints, most: int) -> slice:
    """Return the rows of the stretch of ``most`` requests with the most tokens a second; of equals
    the first, and all rows where there are no more.

    Not of the most tokens: a night of long prompts has more of them, hours apart.
    """
    if len(arrival_s) <= most:
        return slice(0, len(arrival_s))
    before = np.concatenate([[0], np.cumsum(tokens)])
    took_s = arrival_s[most - 1 :] - arrival_s[: len(arrival_s) - most + 1]
    first = int(np.argmax((before[most:] - before[:-most]) / np.maximum(took_s, LEAST_S)))
    return slice(first, first + most)


# The part and its windows


def choose_part(requests: Sequence[TraceRequest], window: str, *, length_s: float) -> Window:
    """Return the part that ``window`` names: ``all``, ``busiest`` or ``START+LEN``.

    ``busiest`` is ``length_s`` long, or the whole trace when that is shorter. Raises UsageError for
    one that cannot be read, TraceError for one without requests.
    """
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    if (named := parse_window(window)) is not None:
        part = Window(*named)
        if not in_window(requests, part):
            raise TraceError(
                f"--window {window}: no request arrives there",
                hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
            )
        return part
    everything = Window(first_s, max(last_s - first_s, LEAST_S) + LEAST_S)  # with the last request
    if window == "all" or everything.length_s <= length_s:
        return everything
    return Window(busiest(*arrays(requests), length_s), length_s)


def in_window(requests: Sequence[TraceRequest], window: Window) -> list[TraceRequest]:
    """Return the requests to send: the window's and its run-in's. What production rejected or
    failed was never served: it is reported, not replayed."""
    begin_s, end_s = window.start_s - window.run_in_s, window.end_s
    return [each for each in requests if begin_s <= each.arrival_s < end_s and is_served(each)]


def sample_window(
    requests: Sequence[TraceRequest], part: Window, *, step_s: float, drain_s: float
) -> Window:
    """Return what a step replays in ``step_s`` of time: all of the part, or its busiest window.

    ``requests`` are in order of arrival; those before the part may serve as run-in. ``drain_s`` is
    how long the last requests of a window take to end.
    """
    origin_s = requests[0].arrival_s
    window = _with_run_in(part.start_s, part.length_s, origin_s)
    if window.replay_s > step_s:
        left_s = step_s - min(drain_s, DRAIN_SHARE * step_s)
        length_s = max(MIN_WINDOW_S, left_s / (1 + RUN_IN_SHARE))
        start_s = busiest(*arrays(in_window(requests, part)), length_s)
        return _with_run_in(start_s, length_s, origin_s)
    if window.run_in_s or window.length_s < SHORT_S:
        return window
    # nothing comes before it: its own first fifth is the run-in
    run_in_s = min(MAX_RUN_IN_S, window.length_s * RUN_IN_SHARE / (1 + RUN_IN_SHARE))
    return Window(window.start_s + run_in_s, window.length_s - run_in_s, run_in_s)


def unseen_window(requests: Sequence[TraceRequest], seen: Window) -> Window | None:
    """Return a window of the trace that shares nothing with the one that was replayed, as long and
    as near to its load as any; None where there is none."""
    arrival_s, tokens = arrays(requests)
    before = np.concatenate(([0], np.cumsum(tokens)))
    starts_s = np.arange(arrival_s[0], arrival_s[-1] - seen.length_s, seen.length_s / 4)
    is_before = starts_s + seen.length_s <= seen.start_s - seen.run_in_s
    starts_s = np.append(starts_s[is_before | (starts_s >= seen.end_s)], seen.start_s)
    first, last = before[np.searchsorted(arrival_s, (starts_s, starts_s + seen.length_s))]
    loads = np.maximum(1, last - first) / max(1, last[-1] - first[-1])
    if loads[:-1].max(initial=0.0) < NEAREST:
        return None
    nearest = float(starts_s[np.argmin(np.abs(np.log(loads[:-1])))])
    return _with_run_in(nearest, seen.length_s, float(arrival_s[0]))


def _with_run_in(start_s: float, length_s: float, origin_s: float) -> Window:
    """Return a window with what the trace has before it as run-in."""
    run_in_s = min(MAX_RUN_IN_S, RUN_IN_SHARE * length_s, max(0.0, start_s - origin_s))
    return Window(start_s, length_s, run_in_s)
