"""How heavy the traffic of a comparison is, and with which lengths. Pure.

A level is a number of requests in flight. It becomes an arrival rate by Little's law: the rate at
which an engine without a cap to speak of serves so many requests at a time. The trace's requests
are thinned out or copied to that rate; time is never stretched.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tuner.errors import TraceError, UsageError
from tuner.trace import TraceRequest
from tuner.traffic import scale_load
from tuner.window import Window, in_window

LEVELS: dict[str, int | None] = {
    "light": 2,
    "medium": 8,
    "heavy": 16,
    "very-heavy": 25,
    "recorded": None,
}
"""Name → requests in flight; None is the trace as it is."""

Lengths = Literal["captured", "uniform"]
LENGTHS: tuple[Lengths, ...] = get_args(Lengths)


@dataclass(frozen=True, slots=True)
class Level:
    name: str
    in_flight: int | None


def parse_levels(text: str) -> tuple[Level, ...]:
    """Read ``light,very-heavy``. Raises UsageError for a name that is unknown or there twice."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in LEVELS:
            raise UsageError(
                f"--loads: {name!r} is not known", hint=f"Choose of {', '.join(LEVELS)}."
            )
    if len(set(names)) < len(names):
        raise UsageError("--loads: a name is there twice", hint="Give each once.")
    return tuple(Level(name, LEVELS[name]) for name in names)


def at_rate(
    requests: Sequence[TraceRequest], window: Window, rate_rps: float | None, *, seed: int
) -> list[TraceRequest]:
    """Return what a window sends at this arrival rate; as it was recorded for None.

    Raises TraceError when that is nothing.
    """
    sent = in_window(requests, window)
    if sent and rate_rps is not None:
        sent = scale_load(sent, rate_rps * window.replay_s / len(sent), seed=seed)
    if not any(one.arrival_s >= window.start_s for one in sent):
        raise TraceError(
            f"nothing arrives in {window} of the trace", hint="Give a longer --step, or --budget."
        )
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
