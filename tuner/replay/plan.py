"""The plan of a replay: a window of the trace as requests with their times. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.trace.trace import TraceRequest
from tuner.traffic.sessions import Turn
from tuner.traffic.window import Window


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request and its time: ``planned_s`` from the start of the replay."""

    row: int
    planned_s: float
    prompt_token_ids: Sequence[int]
    output_length: int
    n: int = 1
    abort_after_s: float | None = None
    """It is cancelled so long after its planned time, as its client did in production."""

    priority: int = 0
    scored: bool = True
    """False in the run-in: sent, but not counted."""

    parent: int | None = None
    """Row of the turn that must have ended before; None in open loop."""

    think_s: float = 0.0
    """How long after the parent's end it leaves, if that is later than planned."""


def plan_requests(
    requests: Sequence[TraceRequest],
    window: Window,
    *,
    max_model_len: int,
    prompt: Callable[[TraceRequest], Sequence[int]],
    turns: Mapping[int, Turn] | None = None,
) -> tuple[PlannedRequest, ...]:
    """Return what to send, with planned times from the start of the run-in.

    ``turns`` (row → what its request waits for) closes the loop of sessions.

    An aborted request asks for as many tokens as its client asked for, or as fit, and is cancelled
    when its client gave up. Where the trace does not know when that was, it ends after its recorded
    tokens.
    """
    origin_s = window.start_s - window.run_in_s
    turns = turns or {}
    return tuple(
        PlannedRequest(
            row=request.row,
            planned_s=request.arrival_s - origin_s,
            prompt_token_ids=prompt(request),
            output_length=_asked_length(request, max_model_len),
            n=request.n,
            abort_after_s=request.e2e_s if request.status == "aborted" else None,
            priority=request.priority or 0,
            scored=request.arrival_s >= window.start_s,
            parent=turns[request.row].parent if request.row in turns else None,
            think_s=turns[request.row].think_s if request.row in turns else 0.0,
        )
        for request in requests
    )


def _asked_length(request: TraceRequest, max_model_len: int) -> int:
    recorded = max(1, request.output_length)
    if request.status != "aborted" or request.e2e_s is None:
        return recorded
    room = max_model_len - request.input_length
    return min(max(request.max_tokens or room, recorded), room)
