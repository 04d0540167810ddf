"""The plan of a replay: a window of the trace as requests with their times. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.trace.trace import TraceRequest
from tuner.traffic.sessions import Turn, places_of
from tuner.traffic.window import Window


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request and its time: ``planned_s`` from the start of the replay."""

    row: int
    planned_s: float
    prompt_token_ids: Sequence[int]
    output_length: int
    abort_after_s: float | None = None
    """It is cancelled so long after its planned time, as its client did in production."""

    priority: int = 0
    scored: bool = True
    """False in the run-in: sent, but not counted."""

    parent: int | None = None
    """Row of the turn that must have ended before; None in open loop."""

    think_s: float = 0.0
    """How long after the parent's end it leaves, if that is later than planned."""

    place: int = 0
    """Of those in flight that a recorded concurrency holds: requests of a place follow one another.
    A place that was given up and taken again is another."""

    held_until_s: float | None = None
    """When its place was given up; None where no concurrency is held."""


def plan_requests(
    requests: Sequence[TraceRequest],
    window: Window,
    *,
    max_model_len: int,
    prompt: Callable[[TraceRequest], Sequence[int]],
    turns: Mapping[int, Turn] | None = None,
) -> tuple[PlannedRequest, ...]:
    """Return what to send, each of a request's n sequences by itself, as vLLM schedules them.

    ``turns`` (row → what its request waits for) closes the loop of sessions; requests that hold a
    recorded concurrency follow one another in any case.
    """
    origin_s = window.start_s - window.run_in_s
    turns, places = turns or {}, places_of(requests)
    planned = []
    for request in requests:
        place, until_s = places.get(request.row, (0, None))
        turn = turns.get(request.row) if until_s is None else None
        item = PlannedRequest(
            row=request.row,
            planned_s=request.arrival_s - origin_s,
            prompt_token_ids=prompt(request),
            output_length=_requested_length(request, max_model_len),
            abort_after_s=request.e2e_s if request.status == "aborted" else None,
            priority=request.priority or 0,
            scored=request.arrival_s >= window.start_s,
            parent=None if turn is None else turn.parent,
            think_s=0.0 if turn is None else turn.think_s,
            place=place,
            held_until_s=None if until_s is None else until_s - origin_s,
        )
        planned += [item] * request.n
    return tuple(planned)


def _requested_length(request: TraceRequest, max_model_len: int) -> int:
    """Return the tokens that are asked for: of an aborted request as many as its client wanted, or
    as fit, where the trace knows when it gave up."""
    recorded = max(1, request.output_length)
    if request.status != "aborted" or request.e2e_s is None:
        return recorded
    room = max_model_len - request.input_length
    return min(max(request.max_tokens or room, recorded), room)
