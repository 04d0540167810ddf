"""Which request waits for which."""

from tests.support.builders import request
from tuner.trace.trace import Trace, TraceHeader
from tuner.traffic.clients import Turn, places_of, turns_of


def test_a_turn_waits_for_the_one_before_it_in_its_session() -> None:
    turns = turns_of(
        [
            request(0, arrival_s=0.0, session_id="a", e2e_s=2.0),
            request(1, arrival_s=1.0, session_id="b", e2e_s=1.0),
            request(2, arrival_s=5.0, session_id="a", e2e_s=1.0),
            request(3, arrival_s=9.0, session_id="a"),
        ]
    )
    assert turns == {2: Turn(parent=0, think_s=3.0), 3: Turn(parent=2, think_s=3.0)}


def test_a_named_parent_beats_the_order_in_the_session() -> None:
    turns = turns_of(
        [
            request(0, arrival_s=0.0, request_id="r0", session_id="a", e2e_s=1.0),
            request(1, arrival_s=2.0, request_id="r1", session_id="a", e2e_s=1.0),
            request(2, arrival_s=6.0, request_id="r2", session_id="a", parent_id="r0"),
        ]
    )
    assert turns[2] == Turn(parent=0, think_s=5.0)


def test_nobody_waits_without_a_recorded_end_or_for_what_had_not_ended() -> None:
    assert turns_of([request(0, session_id="a"), request(1, session_id="a")]) == {}
    overlapping = [
        request(0, arrival_s=0.0, session_id="a", e2e_s=5.0),
        request(1, arrival_s=1.0, session_id="a", e2e_s=5.0),
    ]
    assert turns_of(overlapping) == {}


def test_a_turn_that_came_within_a_millisecond_of_the_end_waits_and_does_not_think() -> None:
    """0.1 + 0.2 is 4e-17 above 0.3: the turn at 0.3 s came as the one before it ended."""
    for arrival_s in (0.3, 0.2995, 0.3005):
        pair = [
            request(0, arrival_s=0.1, session_id="a", e2e_s=0.2),
            request(1, arrival_s=arrival_s, session_id="a"),
        ]
        assert turns_of(pair) == {1: Turn(parent=0, think_s=0.0)}
    earlier = [
        request(0, arrival_s=0.1, session_id="a", e2e_s=0.2),
        request(1, arrival_s=0.298, session_id="a"),
    ]
    assert turns_of(earlier) == {}


def test_places_are_held_only_in_a_trace_that_was_made_of_a_schedule() -> None:
    held = [request(0, session_id="place-0", e2e_s=1.0), request(1, session_id="place-0")]
    for source, places in (("concurrency_schedule", [0, 1]), ("vllm-middleware", [])):
        trace = Trace.of(TraceHeader(source=source), held)
        assert [*places_of(trace.requests)] == places
