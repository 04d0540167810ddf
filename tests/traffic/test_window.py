"""Which part of the trace is replayed, and the plan."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import request
from tuner.errors import TraceError
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import (
    Window,
    choose_part,
    parse_duration_s,
    sample_window,
    unseen_window,
)

HOUR = [request(row) for row in range(3600)]


def test_durations_are_read_in_their_units() -> None:
    texts = ("90", "90s", "1.5m", "2h", "500ms")
    assert [parse_duration_s(text, option="--x") for text in texts] == [90, 90, 90, 7200, 0.5]


def part(requests: list[TraceRequest], window: str, length_s: float = 60.0) -> Window:
    return choose_part(requests, window, length_s=length_s)


def test_all_is_the_whole_trace_with_its_last_request() -> None:
    everything = part(HOUR, "all")
    assert everything.start_s == 0.0
    assert 3599.0 < everything.end_s < 3599.01


def test_a_part_can_be_named_by_its_start_and_length() -> None:
    assert part(HOUR, "2m+60s") == Window(120.0, 60.0)


def test_a_part_without_requests_is_refused_with_the_traces_span() -> None:
    with pytest.raises(TraceError, match="no request arrives there") as caught:
        part(HOUR, "2h+60s")
    assert "0.0s to 3599.0s" in caught.value.hint


# An hour with a request a second; from 2000 s to 2100 s five a second.
BUSY = [request(row) for row in range(2000)]
BUSY += [request(2000 + i, arrival_s=2000 + i / 5) for i in range(500)]
BUSY += [request(2500 + i, arrival_s=2100.0 + i) for i in range(1500)]
WHOLE = Window(0.0, 3600.0)


def sample(requests: list[TraceRequest] = BUSY, part: Window = WHOLE, **how: float) -> Window:
    values: dict[str, Any] = {"step_s": 60.0, "drain_s": 2.0}
    return sample_window(requests, part, **{**values, **how})


def test_of_a_long_part_its_busiest_window_is_replayed_and_takes_a_step() -> None:
    peak = sample()
    assert 2000 <= peak.start_s < peak.start_s + peak.length_s <= 2100.5
    assert peak.replay_s + 2.0 == pytest.approx(60.0, abs=0.1)


def test_a_window_that_was_not_seen_is_as_busy_as_there_is_one() -> None:
    peak = sample()
    unseen = unseen_window(BUSY, peak)
    assert unseen is not None
    assert unseen.start_s >= peak.start_s + peak.length_s
    assert unseen.start_s + unseen.length_s <= 2115
    assert unseen_window(BUSY[:100], Window(20.0, 70.0, 15.0)) is None


def test_a_part_that_fits_a_step_is_replayed_whole() -> None:
    each = sample(part=Window(100.0, 40.0))
    assert (each.start_s, each.length_s, each.run_in_s) == (100.0, 40.0, 10.0)
    first = sample(part=Window(0.0, 50.0))
    assert (first.start_s, first.run_in_s, first.length_s) == (10.0, 10.0, 40.0)


@given(
    gaps=st.lists(st.floats(0.001, 30.0), min_size=1, max_size=300),
    step_s=st.floats(6.0, 120.0),
    drain_s=st.floats(0.0, 60.0),
)
def test_no_trace_makes_windows_that_are_empty_or_outside(
    gaps: list[float], step_s: float, drain_s: float
) -> None:
    at_s, requests = 0.0, []
    for row, gap in enumerate(gaps):
        at_s += gap
        requests.append(request(row, arrival_s=at_s))
    part = Window(requests[0].arrival_s, requests[-1].arrival_s - requests[0].arrival_s + 1e-3)
    each = sample(requests, part, step_s=step_s, drain_s=drain_s)
    assert each.length_s > 0
    assert each.run_in_s >= 0
    assert any(each.start_s <= request.arrival_s < each.end_s for request in requests)
