"""Choose the part of a trace, and the window of it that a step replays. Pure.

A part that is too long is replayed where the most tokens are requested; the twin replays all of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.errors import TraceError
from tuner.trace.columns import Columns, Floats, Ints
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
from tuner.traffic.window import Part, Window, parse_window


def arrays(requests: Sequence[TraceRequest]) -> tuple[Floats, Ints]:
    """Return when requests arrive, and the tokens that each asks for; 0 for one not served."""
    rows = [
        (each.arrival_s, (each.input_length + each.n * each.output_length) * is_served(each))
        for each in requests
    ]
    columns = np.array(rows, float).reshape(-1, 2).T
    return columns[0], columns[1].astype(np.int64)


def is_served(request: TraceRequest) -> bool:
    return request.status in SERVED


# The busiest stretch


def busiest(arrival_s: Floats, tokens: Ints, length_s: float) -> float:
    """Return when the ``length_s`` begin in which the most tokens are requested; of equals the
    first. It does not reach past the end of the trace: it would be idle there."""
    ends = np.searchsorted(arrival_s, arrival_s + length_s, side="left")
    before = np.concatenate(([0], np.cumsum(tokens)))
    start_s = float(arrival_s[np.argmax(before[ends] - before[:-1])])
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


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a trace beside the whole."""

    start_s: float
    length_s: float
    requests: int
    load: float
    """Tokens requested a second ÷ those of the whole."""


def stretch(columns: Columns, *, start_s: float, length_s: float) -> Stretch | None:
    """Return the part from ``start_s`` on beside the whole; None without a served request in it."""
    arrival_s, tokens = columns.arrival_s, columns.tokens()
    inside = slice(*np.searchsorted(arrival_s, [start_s, start_s + length_s]).tolist())
    whole_s = float(arrival_s[-1] - arrival_s[0])
    if not columns.served[inside].any() or not whole_s:
        return None
    load = float(tokens[inside].sum()) / length_s / (float(tokens.sum()) / whole_s)
    return Stretch(start_s, length_s, inside.stop - inside.start, load)


# The part and its windows


def choose_part(requests: Sequence[TraceRequest], window: str, *, length_s: float) -> Part:
    """Return the part that ``window`` names: ``all``, ``busiest`` or ``START+LEN``.

    ``busiest`` is ``length_s`` long, or the whole trace when that is shorter. Raises UsageError for
    one that cannot be read, TraceError for one without requests.
    """
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    explicit = parse_window(window)
    if explicit is not None:
        start_s, length_s = explicit
        if not any(start_s <= request.arrival_s < start_s + length_s for request in requests):
            raise TraceError(
                f"--window {window}: no request arrives there",
                hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
            )
        return Part(start_s, start_s + length_s)
    everything = Part(first_s, max(last_s, first_s + LEAST_S) + LEAST_S)  # with the last request
    if window == "all" or everything.length_s <= length_s:
        return everything
    start_s = busiest(*arrays(requests), length_s)
    return Part(start_s, start_s + length_s)


def in_window(requests: Sequence[TraceRequest], window: Window) -> list[TraceRequest]:
    """Return the requests to send: the window's and its run-in's. What production rejected or
    failed was never served: it is reported, not replayed."""
    start_s, end_s = window.start_s - window.run_in_s, window.start_s + window.length_s
    return [each for each in requests if start_s <= each.arrival_s < end_s and is_served(each)]


def sample_windows(
    requests: Sequence[TraceRequest], part: Part, *, step_s: float, drain_s: float
) -> tuple[Window, ...]:
    """Return what a step replays in ``step_s`` of time: all of the part, or its busiest window.

    ``requests`` are in order of arrival; those before the part may serve as run-in. ``drain_s`` is
    how long the last requests of a window take to end.
    """
    origin_s = requests[0].arrival_s
    window = _window(part.begin_s, part.length_s, origin_s)
    if window.replay_s > step_s:
        left_s = step_s - min(drain_s, DRAIN_SHARE * step_s)
        length_s = max(MIN_WINDOW_S, left_s / (1 + RUN_IN_SHARE))
        inside = [each for each in requests if part.begin_s <= each.arrival_s < part.end_s]
        return (_window(busiest(*arrays(inside), length_s), length_s, origin_s),)
    if window.run_in_s or window.length_s < SHORT_S:
        return (window,)
    # nothing comes before it: its own first fifth is the run-in
    run_in_s = min(MAX_RUN_IN_S, window.length_s * RUN_IN_SHARE / (1 + RUN_IN_SHARE))
    return (Window(window.start_s + run_in_s, window.length_s - run_in_s, run_in_s),)


def unseen_windows(
    requests: Sequence[TraceRequest], seen: Sequence[Window]
) -> tuple[Window, ...] | None:
    """Return windows of the trace that share nothing with those that were replayed, each as long as
    one of them and as near to its load as any; None where there are none."""
    arrival_s, tokens = arrays(requests)
    before = np.concatenate(([0], np.cumsum(tokens)))
    taken = [(each.start_s - each.run_in_s, each.start_s + each.length_s) for each in seen]
    result = list[Window]()
    for each in seen:
        starts_s = np.arange(arrival_s[0], arrival_s[-1] - each.length_s, each.length_s / 4)
        for low_s, high_s in taken:
            starts_s = starts_s[(starts_s + each.length_s <= low_s) | (starts_s >= high_s)]
        starts_s = np.append(starts_s, each.start_s)
        first, last = np.searchsorted(arrival_s, (starts_s, starts_s + each.length_s))
        *loads, load = np.maximum(1, before[last] - before[first]).tolist()
        if not loads or max(loads) < NEAREST * load:
            return None
        start_s = float(starts_s[np.argmin(np.abs(np.log(loads) - math.log(load)))])
        result.append(_window(start_s, each.length_s, float(arrival_s[0])))
        taken.append((start_s, start_s + each.length_s))
    return tuple(result)


def _window(start_s: float, length_s: float, origin_s: float) -> Window:
    """Return a window with what the trace has before it as run-in."""
    run_in_s = min(MAX_RUN_IN_S, RUN_IN_SHARE * length_s, max(0.0, start_s - origin_s))
    return Window(start_s, length_s, run_in_s)
