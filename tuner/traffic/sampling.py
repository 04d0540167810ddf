"""Choose the part of a trace, and the windows that stand for one that is too long to be replayed.

The window in which the most tokens are requested is always taken. The rest is cut into tiles, the
tiles are ordered by their load, and the middle one of each half stands for its half. At equal cost
this halves the error of replaying the first minutes (docs/decisions). Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TraceError
from tuner.trace.columns import Columns, Floats, Ints, columns_of
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import Part, Window, parse_window

MAX_RUN_IN_S, RUN_IN_SHARE = 15.0, 0.25
"""The run-in is replayed and not scored, so that scoring starts with the engine as full as
production had it: a quarter of the window, at most 15 s."""

SHORT_S = 1.0
"""A trace shorter than this has no run-in: all of it is one burst."""

MIN_WINDOW_S = 5.0
"""A shorter one shows little; so long a one makes a short step last a little longer than asked."""

STRATIFIED_FROM_S, LONG_PART = 40.0, 3.0
"""Length of a step, and how many of it a part is long, from which on it is three windows. A shorter
one is the busiest window alone, and so is one of long requests: three would be mostly run-in, or
waiting for the last requests to end."""

PEAK_SHARE = 0.5
"""Of a step's time; each of the two other windows has half of the rest."""

DRAIN_SHARE = 0.5
"""Most of a window's time that is kept for its last requests to end."""

NEAREST = 0.25
"""A window of so little of another's load cannot stand for it."""

STARTS = 4
"""Windows are tried at so many starts within the length of one."""

LEAST_S = 1e-3
"""Added to the last arrival, so that it is inside; and of a stretch whose requests arrive at
once."""


# The busiest stretch


def busiest_window(requests: Sequence[TraceRequest], length_s: float) -> tuple[float, float]:
    """Return the [start, end) of ``length_s`` in which the most tokens are requested.

    Tokens are those of prompts and outputs of requests that were served. Of equals the first.
    """
    columns = columns_of(requests, block_size=1)
    return busiest(columns.arrival_s, columns.tokens_before(), length_s)


def busiest(arrival_s: Floats, before: Ints, length_s: float) -> tuple[float, float]:
    """``busiest_window`` on columns; ``before`` as in ``Columns.tokens_before``."""
    ends = np.searchsorted(arrival_s, arrival_s + length_s, side="left")
    start_s = float(arrival_s[int(np.argmax(before[ends] - before[:-1]))])
    # A window that reaches past the end of the trace moves back: it would be idle there.
    latest_s = float(arrival_s[-1]) - length_s + 1e-6
    start_s = max(float(arrival_s[0]), min(start_s, latest_s))
    return start_s, start_s + length_s


def busiest_rows(arrival_s: Floats, tokens: NDArray[np.int64], most: int) -> slice:
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
    arrival_s, before = columns.arrival_s, columns.tokens_before()
    first, last = np.searchsorted(arrival_s, [start_s, start_s + length_s]).tolist()
    whole_s = float(arrival_s[-1] - arrival_s[0])
    if not columns.served[first:last].any() or not whole_s:
        return None
    tokens = float(before[last] - before[first])
    load = tokens / length_s / (float(before[-1]) / whole_s)
    return Stretch(start_s, length_s, last - first, load)


# The part and its windows


def choose_part(requests: Sequence[TraceRequest], window: str, *, length_s: float) -> Part:
    """Return the part that ``window`` names: ``all``, ``busiest`` or ``START+LEN``.

    ``busiest`` is ``length_s`` long, or the whole trace when that is shorter. Raises UsageError for
    one that cannot be read, TraceError for one without requests.
    """
    first_s, last_s = requests[0].arrival_s, requests[-1].arrival_s
    everything = Part(first_s, max(last_s, first_s + LEAST_S) + LEAST_S)
    explicit = parse_window(window)
    if explicit is None:
        if window == "all" or everything.length_s <= length_s:
            return everything
        return Part(*busiest_window(requests, length_s))
    start_s, length_s = explicit
    if not any(start_s <= request.arrival_s < start_s + length_s for request in requests):
        raise TraceError(
            f"--window {window}: no request arrives there",
            hint=f"The trace runs from {first_s:.1f}s to {last_s:.1f}s.",
        )
    return Part(start_s, start_s + length_s)


def in_window(requests: Sequence[TraceRequest], window: Window) -> list[TraceRequest]:
    """Return the requests to send: the window's and its run-in's, recorded errors left out.

    What production rejected or failed was never served: it is reported, not replayed.
    """
    start_s, end_s = window.start_s - window.run_in_s, window.start_s + window.length_s
    return [
        request
        for request in requests
        if start_s <= request.arrival_s < end_s and request.status in {"ok", "aborted"}
    ]


def sample_windows(
    requests: Sequence[TraceRequest], part: Part, *, step_s: float, drain_s: float
) -> tuple[Window, ...]:
    """Return the windows that a step replays, the busiest first, ``step_s`` of time together.

    ``requests`` are in order of arrival; those before the part may serve as run-in. ``drain_s`` is
    how long the last requests of a window take to end.
    """
    inside = [request for request in requests if part.begin_s <= request.arrival_s < part.end_s]
    origin_s = requests[0].arrival_s
    if part.length_s + _run_in_s(part.length_s, part.begin_s - origin_s) <= step_s:
        return (_all_of(part, part.begin_s - origin_s),)
    others_s = step_s * (1 - PEAK_SHARE) / 2
    stratified = (
        step_s >= STRATIFIED_FROM_S
        and part.length_s >= LONG_PART * step_s
        and drain_s <= DRAIN_SHARE * others_s
    )
    peak_s = _length_s(step_s * (PEAK_SHARE if stratified else 1.0), drain_s)
    begin_s, end_s = busiest_window(inside, peak_s)
    windows = [Window(begin_s, end_s - begin_s, _run_in_s(peak_s, begin_s - origin_s))]
    if not stratified:
        return tuple(windows)
    length_s = _length_s(others_s, drain_s)
    columns = columns_of(inside, block_size=1)
    outside = (columns.arrival_s < begin_s) | (columns.arrival_s >= end_s)
    arrival_s, tokens = columns.arrival_s[outside] - part.begin_s, columns.tokens()[outside]
    for tile, weight in _middle_tiles(arrival_s, tokens, length_s):
        start_s = part.begin_s + tile * length_s
        windows.append(Window(start_s, length_s, _run_in_s(length_s, start_s - origin_s), weight))
    return tuple(windows)


def unseen_windows(
    requests: Sequence[TraceRequest], part: Part, seen: Sequence[Window]
) -> tuple[Window, ...] | None:
    """Return windows that share nothing with those that were replayed; None where there are none.

    Each is as long as one of them, and as near to its load as any in the part or else in the whole
    trace.
    """
    columns = columns_of(requests, block_size=1)
    arrival_s, tokens = columns.arrival_s, np.concatenate(([0], np.cumsum(columns.tokens())))
    taken = [(each.start_s - each.run_in_s, each.start_s + each.length_s) for each in seen]
    ends_s = [(part.begin_s, part.end_s), (float(arrival_s[0]), float(arrival_s[-1]))]
    result = list[Window]()
    for each in seen:
        here, there = _load(arrival_s, tokens, each.start_s, each.length_s)
        for begin_s, end_s in ends_s:
            starts_s = np.arange(begin_s, end_s - each.length_s, each.length_s / STARTS)
            for low_s, high_s in taken:
                starts_s = starts_s[(starts_s + each.length_s <= low_s) | (starts_s >= high_s)]
            counts, loads = _load(arrival_s, tokens, starts_s, each.length_s)
            near = np.flatnonzero(loads >= max(1.0, NEAREST * float(there)))
            if len(near):
                break
        else:
            return None
        place = near[np.argmin(np.abs(np.log(loads[near] / max(1.0, float(there)))))]
        start_s = float(starts_s[place])
        run_in_s = _run_in_s(each.length_s, start_s - float(arrival_s[0]))
        weight = each.weight * float(here) / float(counts[place])
        result.append(Window(start_s, each.length_s, run_in_s, weight))
        taken.append((start_s, start_s + each.length_s))
    return tuple(result)


def _load(
    arrival_s: Floats, tokens: Ints, start_s: NDArray[np.floating] | float, length_s: float
) -> tuple[Ints, Ints]:
    """Return how many requests and tokens arrive from these times on; ``tokens`` are summed up."""
    first, last = (np.searchsorted(arrival_s, start_s + more_s) for more_s in (0.0, length_s))
    return np.asarray(last - first), np.asarray(tokens[last] - tokens[first])


def _run_in_s(length_s: float, room_s: float) -> float:
    """Return the run-in of a window that has so much of the trace before it."""
    return min(MAX_RUN_IN_S, RUN_IN_SHARE * length_s, max(0.0, room_s))


def _all_of(part: Part, room_s: float) -> Window:
    """Return the window that is the whole part. Its run-in is what is before it, or its own first
    fifth."""
    run_in_s = _run_in_s(part.length_s, room_s)
    if run_in_s or part.length_s < SHORT_S:
        return Window(part.begin_s, part.length_s, run_in_s)
    run_in_s = min(MAX_RUN_IN_S, part.length_s * RUN_IN_SHARE / (1 + RUN_IN_SHARE))
    return Window(part.begin_s + run_in_s, part.length_s - run_in_s, run_in_s)


def _length_s(time_s: float, drain_s: float) -> float:
    """Return how long a window is that takes so much time with its run-in and its drain."""
    left_s = time_s - min(drain_s, DRAIN_SHARE * time_s)
    return max(MIN_WINDOW_S, left_s / (1 + RUN_IN_SHARE))


def _middle_tiles(arrival_s: Floats, tokens: Ints, length_s: float) -> list[tuple[int, float]]:
    """Return, for the calmer and for the busier half of the requests, (number of a tile, requests
    that each of its requests stands for). Tiles without requests stand for nobody."""
    tile = (arrival_s // length_s).astype(np.int64)
    numbers, place, counts = np.unique(tile, return_inverse=True, return_counts=True)
    order = np.argsort(np.bincount(place, tokens), kind="stable")
    reached = np.cumsum(counts[order]) - counts[order] / 2
    total = float(counts.sum())
    chosen = []
    for low, high in ((0.0, 0.5), (0.5, 1.0)):
        half = order[(reached >= low * total) & (reached < high * total)]
        if len(half):
            middle = half[len(half) // 2]
            chosen.append((int(numbers[middle]), float(counts[half].sum() / counts[middle])))
    return chosen
