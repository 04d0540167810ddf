"""The loads of a comparison: how heavy its traffic is, and with which lengths. Pure.

A level is a mean number of requests in flight, open loop, at the engine of reference. That is the
untuned one, which lets nobody wait for a slot. The requests of a window are thinned out, or copied,
until there are so many; time is never stretched.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tuner.errors import TraceError, UsageError
from tuner.trace.trace import TraceRequest
from tuner.traffic.scaling import scale_load
from tuner.traffic.window import Window, in_window

LEVELS: dict[str, int | None] = {
    "light": 2,
    "medium": 8,
    "heavy": 16,
    "very-heavy": 25,
    "recorded": None,
}
"""Name → requests in flight; None is the trace as it is."""

STORY = "very-heavy"
"""The load of the story: 25 in flight."""

Lengths = Literal["captured", "uniform"]
LENGTHS: tuple[Lengths, ...] = get_args(Lengths)

EXACT = 0.01
"""Step in which the number of requests of a level is searched for, as a share of it."""

MOST = 1_000_000
"""Requests in one window beyond which no level is looked for."""


@dataclass(frozen=True, slots=True)
class Level:
    name: str
    in_flight: int | None


def parse_levels(text: str) -> tuple[Level, ...]:
    """Read ``light,very-heavy``. Raises UsageError for a name that is unknown or there twice."""
    return tuple(Level(name, LEVELS[name]) for name in names_in(text, LEVELS, option="--loads"))


def names_in(text: str, known: Collection[str], *, option: str) -> list[str]:
    """Read a list of names. Raises UsageError for one that is unknown or there twice."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(
                f"{option}: {name!r} is not known", hint=f"Choose of {', '.join(known)}."
            )
    if len(set(names)) < len(names):
        raise UsageError(f"{option}: a name is there twice", hint="Give each once.")
    return names


def mean_in_flight(
    begin_s: NDArray[np.float64], end_s: NDArray[np.float64], *, from_s: float, to_s: float
) -> float:
    """Return the mean over time of how many requests are in flight in [from_s, to_s).

    By Little's law the rate of arrivals times the time that each stays; here each one's stay within
    the window is summed, so that nothing needs to be steady.
    """
    stay_s = np.minimum(end_s, to_s) - np.maximum(begin_s, from_s)
    return float(np.maximum(0.0, stay_s).sum() / (to_s - from_s))


Reference = Callable[[Sequence[TraceRequest], Window], float]
"""Says how many of these requests are in flight after the window's run-in, on average."""


def rate_of(
    level: Level, requests: Sequence[TraceRequest], window: Window, at: Reference, *, seed: int
) -> float | None:
    """Return the arrival rate of a level in a window; None for the trace as it is.

    It is the least at which so many requests are in flight. Raises TraceError where none is.
    """
    if level.in_flight is None:
        return None
    size = len(in_window(requests, window))

    def is_reached(count: int) -> bool:
        sent = at_rate(requests, window, count / window.replay_s, seed=seed)
        return at(sent, window) >= float(level.in_flight or 0)

    low, high = 0, size
    while not is_reached(high):
        low, high = high, 2 * high
        if high > MOST:
            raise TraceError(
                f"{level.name}: {MOST:,} requests in {window} are not enough for "
                f"{level.in_flight} in flight",
                hint="Choose a lighter one of --loads.",
            )
    while high - low > max(1.0, EXACT * high):
        middle = (low + high) // 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return high / window.replay_s


def at_rate(
    requests: Sequence[TraceRequest], window: Window, rate_rps: float | None, *, seed: int
) -> list[TraceRequest]:
    """Return what a window, in which something arrives, sends at this rate; None: as recorded."""
    sent = in_window(requests, window)
    if rate_rps is not None:
        sent = scale_load(sent, rate_rps * window.replay_s / len(sent), seed=seed)
    return sent


def uniform(sent: Sequence[TraceRequest], like: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Return the same arrivals as a careless test has them: every length the mean of ``like``,
    nothing shared, nobody who gives up."""
    input_length = max(1, round(sum(one.input_length for one in like) / len(like)))
    output_length = max(1, round(sum(one.output_length for one in like) / len(like)))
    return [
        replace(
            one,
            input_length=input_length,
            output_length=output_length,
            status="ok",
            n=1,
            output_lengths=(),
            hash_ids=(),
        )
        for one in sent
    ]


def end_to_end(parts: Sequence[tuple[Window, Sequence[TraceRequest]]]) -> list[TraceRequest]:
    """Return the traffic of several windows one after the other, as one trace from time 0."""
    found: list[TraceRequest] = []
    begin_s = 0.0
    for window, sent in parts:
        shift_s = begin_s - (window.start_s - window.run_in_s)
        found += [
            replace(
                one,
                row=len(found) + place,
                arrival_s=round(one.arrival_s + shift_s, 6),
                session_id=None,
                turn=None,
                parent_id=None,
                request_id=None,
            )
            for place, one in enumerate(sent)
        ]
        begin_s += window.replay_s
    return found
