"""Find which request waits for which: turns of a session, for a closed loop. Pure.

In open loop every turn leaves when it was recorded, and load does not shrink because the server is
slow. A client that reads the answer before it asks again does wait; where that is wanted, a turn
leaves its recorded think time after the turn before it ended, and never before it was recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.trace.trace import TraceRequest

NO_THOUGHT_S = 0.001
"""A turn that came this close to the end of the one before, on either side, came at once: traces
round their times, and sums of them may even be negative."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn that one request waits for."""

    parent: int
    """Row of the turn before it."""

    think_s: float
    """From the end of that one until this one came, as recorded."""


def turns_of(requests: Sequence[TraceRequest]) -> dict[int, Turn]:
    """Return row → what it waits for, of requests in order of arrival.

    ``parent_id`` beats the order in the session. A turn waits only where its parent's end is
    recorded, and lies before the turn came or at most NO_THOUGHT_S after: otherwise nobody waited,
    or nobody knows how long.
    """
    by_id: dict[str, TraceRequest] = {}  # only those before: nobody waits for what comes later
    newest: dict[str, TraceRequest] = {}
    result: dict[int, Turn] = {}
    for request in requests:
        parent = by_id.get(request.parent_id) if request.parent_id is not None else None
        if parent is None and request.parent_id is None and request.session_id is not None:
            parent = newest.get(request.session_id)
        if request.session_id is not None:
            newest[request.session_id] = request
        if request.request_id is not None:
            by_id[request.request_id] = request
        if parent is None or parent.e2e_s is None:
            continue
        think_s = request.arrival_s - (parent.arrival_s + parent.e2e_s)
        if abs(think_s) <= NO_THOUGHT_S:
            think_s = 0.0
        if think_s >= 0:
            result[request.row] = Turn(parent.row, think_s)
    return result


def places_of(requests: Sequence[TraceRequest]) -> dict[int, tuple[int, float]]:
    """Return row → the place that it holds in a recorded concurrency, and when that place is given
    up, in seconds of the trace. A place that is taken again later is another."""
    current: dict[str, int] = {}
    until_s: list[float] = []
    result: dict[int, int] = {}
    for request in requests:
        session, end_s = request.session_id, request.arrival_s + (request.e2e_s or 0.0)
        if session is None or not request.holds_place:
            continue
        number = current.get(session)
        if number is None or request.arrival_s - until_s[number] > NO_THOUGHT_S:
            number = current[session] = len(until_s)
            until_s.append(end_s)
        until_s[number] = end_s
        result[request.row] = number
    return {row: (number, until_s[number]) for row, number in result.items()}
