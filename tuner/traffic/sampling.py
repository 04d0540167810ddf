"""Choose windows that stand for a part of the trace that is too long to be replayed. Pure.

The window in which the most is asked for is always taken. The rest is cut into tiles, the tiles are
ordered by their load, and the middle one of each half stands for its half. At equal cost this
halves the error of replaying the first minutes (docs/decisions).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Floats, Ints, columns_of
from tuner.trace.trace import TraceRequest
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.window import MAX_RUN_IN_S, RUN_IN_SHARE, SHORT_S, Part, Window, run_in_before_s

MIN_WINDOW_S = 5.0
"""A shorter one shows little; so long a one makes a short step last a little longer than asked."""

STRATIFIED_FROM_S = 40.0
"""Length of a step from which on it is three windows. A shorter one is the busiest window alone,
and so is one of long requests: three would be mostly run-in, or waiting for the last requests to
end."""

LONG_PART = 3.0
"""A part so many times as long as a step is worth more windows than the busiest one."""

PEAK_SHARE = 0.5
"""Of a step's time; each of the two other windows has half of the rest."""

DRAIN_SHARE = 0.5
"""Most of a window's time that is kept for its last requests to end."""


def sample_windows(
    requests: Sequence[TraceRequest], part: Part, *, step_s: float, drain_s: float
) -> tuple[Window, ...]:
    """Return the windows that a step replays, the busiest first, ``step_s`` of time together.

    ``requests`` are in order of arrival; those before the part may serve as run-in. ``drain_s`` is
    how long the last requests of a window take to end.
    """
    inside = [one for one in requests if part.begin_s <= one.arrival_s < part.end_s]
    room_s = part.begin_s - requests[0].arrival_s
    if part.length_s + run_in_before_s(part.length_s, room_s=room_s) <= step_s:
        return (_whole(part, room_s),)
    others_s = step_s * (1 - PEAK_SHARE) / 2
    stratified = (
        step_s >= STRATIFIED_FROM_S
        and part.length_s >= LONG_PART * step_s
        and drain_s <= DRAIN_SHARE * others_s
    )
    peak_s = _length_s(step_s * (PEAK_SHARE if stratified else 1.0), drain_s)
    begin_s, end_s = busiest_window(inside, peak_s)
    origin_s = requests[0].arrival_s
    peak = Window(begin_s, end_s - begin_s, run_in_before_s(peak_s, room_s=begin_s - origin_s))
    if not stratified:
        return (peak,)
    length_s = _length_s(others_s, drain_s)
    columns = columns_of(inside, block_size=1)
    outside = (columns.arrival_s < begin_s) | (columns.arrival_s >= end_s)
    chosen = _middle_tiles(
        columns.arrival_s[outside] - part.begin_s, columns.tokens()[outside], length_s
    )
    windows = [peak]
    for tile, weight in chosen:
        start_s = part.begin_s + tile * length_s
        run_in_s = run_in_before_s(length_s, room_s=start_s - origin_s)
        windows.append(Window(start_s, length_s, run_in_s, weight))
    return tuple(windows)


NEAREST = 0.25
"""A window of so little of another's load cannot stand for it."""

STARTS = 4
"""Windows are looked for at so many starts within the length of one."""


def unseen_windows(
    requests: Sequence[TraceRequest], part: Part, seen: Sequence[Window]
) -> tuple[Window, ...] | None:
    """Return windows that share nothing with those that were replayed; None where there are none.

    Each is as long as one of them, and as near to its load as any in the part or else in the whole
    trace.
    """
    columns = columns_of(requests, block_size=1)
    arrival_s, tokens = columns.arrival_s, np.concatenate(([0], np.cumsum(columns.tokens())))
    taken = [(one.start_s - one.run_in_s, one.start_s + one.length_s) for one in seen]
    ends_s = [(part.begin_s, part.end_s), (float(arrival_s[0]), float(arrival_s[-1]))]
    found = list[Window]()
    for one in seen:
        here, there = _load(arrival_s, tokens, one.start_s, one.length_s)
        for begin_s, end_s in ends_s:
            starts_s = np.arange(begin_s, end_s - one.length_s, one.length_s / STARTS)
            for low_s, high_s in taken:
                starts_s = starts_s[(starts_s + one.length_s <= low_s) | (starts_s >= high_s)]
            counts, loads = _load(arrival_s, tokens, starts_s, one.length_s)
            near = np.flatnonzero(loads >= max(1.0, NEAREST * float(there)))
            if len(near):
                break
        else:
            return None
        place = near[np.argmin(np.abs(np.log(loads[near] / max(1.0, float(there)))))]
        start_s = float(starts_s[place])
        run_in_s = run_in_before_s(one.length_s, room_s=start_s - float(arrival_s[0]))
        weight = one.weight * float(here) / float(counts[place])
        found.append(Window(start_s, one.length_s, run_in_s, weight))
        taken.append((start_s, start_s + one.length_s))
    return tuple(found)


def _load(
    arrival_s: Floats, tokens: Ints, start_s: NDArray[np.floating] | float, length_s: float
) -> tuple[Ints, Ints]:
    """Return how many requests and tokens arrive from these times on; ``tokens`` are summed up."""
    first, last = (np.searchsorted(arrival_s, start_s + more_s) for more_s in (0.0, length_s))
    return np.asarray(last - first), np.asarray(tokens[last] - tokens[first])


def _whole(part: Part, room_s: float) -> Window:
    """Return the window that is the whole part. Its run-in is what is before it, or its own first
    fifth."""
    run_in_s = run_in_before_s(part.length_s, room_s=room_s)
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
        if not len(half):
            continue
        middle = half[len(half) // 2]
        chosen.append((int(numbers[middle]), float(counts[half].sum() / counts[middle])))
    return chosen
