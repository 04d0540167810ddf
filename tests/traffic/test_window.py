"""Which part of the trace is replayed, and the plan."""

from dataclasses import replace

import pytest

from tests.support.builders import request
from tuner.errors import TraceError
from tuner.replay.replay import plan_requests
from tuner.trace.trace import TraceRequest
from tuner.traffic.sampling import choose_part, in_window
from tuner.traffic.window import Part, Window, parse_duration_s

HOUR = [request(row) for row in range(3600)]


def test_durations_are_read_in_their_units() -> None:
    texts = ("90", "90s", "1.5m", "2h", "500ms")
    assert [parse_duration_s(text, option="--x") for text in texts] == [90, 90, 90, 7200, 0.5]


def part(requests: list[TraceRequest], window: str, length_s: float = 60.0) -> Part:
    return choose_part(requests, window, length_s=length_s)


def test_all_is_the_whole_trace_with_its_last_request() -> None:
    everything = part(HOUR, "all")
    assert everything.begin_s == 0.0
    assert 3599.0 < everything.end_s < 3599.01


def test_a_part_can_be_named_by_its_start_and_length() -> None:
    assert part(HOUR, "2m+60s") == Part(120.0, 180.0)


def test_a_part_without_requests_is_refused_with_the_traces_span() -> None:
    with pytest.raises(TraceError, match="no request arrives there") as caught:
        part(HOUR, "2h+60s")
    assert "0.0s to 3599.0s" in caught.value.hint


def prompt(item: TraceRequest) -> list[int]:
    return [item.row] * item.input_length


def test_the_plan_starts_with_the_run_in_and_scores_the_window() -> None:
    window = Window(start_s=10.0, length_s=2.0, run_in_s=1.0)
    plan = plan_requests(in_window(HOUR, window), window, max_model_len=100, prompt=prompt)
    assert [(each.planned_s, each.scored) for each in plan] == [(0, False), (1, True), (2, True)]
    assert plan[0].prompt_token_ids == [9] * 10


def test_an_abort_keeps_asking_until_its_client_gave_up() -> None:
    gone = request(0, status="aborted", e2e_s=1.5, output_length=3, max_tokens=500)
    unknown = request(1, status="aborted", output_length=0)
    plan = plan_requests([gone, unknown], Window(0, 10, 0), max_model_len=100, prompt=prompt)
    assert (plan[0].output_length, plan[0].abort_after_s) == (90, 1.5)
    wanted = replace(gone, max_tokens=60)
    (each,) = plan_requests([wanted], Window(0, 10, 0), max_model_len=100, prompt=prompt)
    assert each.output_length == 60
    assert (plan[1].output_length, plan[1].abort_after_s) == (1, None)
