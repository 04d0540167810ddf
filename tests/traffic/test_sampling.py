"""Which windows stand for a long trace."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import request
from tuner.trace.trace import TraceRequest
from tuner.traffic.sampling import sample_windows
from tuner.traffic.window import Part, Window

# An hour with a request a second; from 2000 s to 2100 s five a second.
HOUR = [request(row) for row in range(2000)]
HOUR += [request(2000 + i, arrival_s=2000 + i / 5) for i in range(500)]
HOUR += [request(2500 + i, arrival_s=2100.0 + i) for i in range(1500)]
WHOLE = Part(0.0, 3600.0)


def sample(
    requests: list[TraceRequest] = HOUR, part: Part = WHOLE, **how: float
) -> tuple[Window, ...]:
    values: dict[str, Any] = {"step_s": 60.0, "drain_s": 2.0}
    return sample_windows(requests, part, **{**values, **how})


def represented(window: Window, requests: list[TraceRequest]) -> float:
    """Return how many requests of the trace a window stands for."""
    end_s = window.start_s + window.length_s
    return window.weight * sum(window.start_s <= request.arrival_s < end_s for request in requests)


def test_the_busiest_window_is_taken_for_certain_and_one_of_each_half_of_the_rest() -> None:
    peak, calm, busy = sample()
    assert 2000 <= peak.start_s < peak.start_s + peak.length_s <= 2100.5
    assert peak.weight == 1.0
    assert calm.length_s == busy.length_s < peak.length_s
    loads = [represented(each, HOUR) / each.weight / each.length_s for each in (calm, busy)]
    assert loads[0] <= loads[1]


def test_together_they_stand_for_every_request_and_take_a_step() -> None:
    windows = sample()
    total = sum(represented(window, HOUR) for window in windows)
    assert total == pytest.approx(len(HOUR), rel=0.02)
    assert sum(window.replay_s for window in windows) <= 60.0
    assert sum(window.replay_s + 2.0 for window in windows) == pytest.approx(60.0, abs=0.1)


def test_a_part_that_fits_a_step_is_replayed_whole() -> None:
    (each,) = sample(part=Part(100.0, 140.0))
    assert (each.start_s, each.length_s, each.run_in_s) == (100.0, 40.0, 10.0)
    (first,) = sample(part=Part(0.0, 50.0))
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
    part = Part(requests[0].arrival_s, requests[-1].arrival_s + 1e-3)
    for each in sample(requests, part, step_s=step_s, drain_s=drain_s):
        assert each.length_s > 0
        assert each.run_in_s >= 0
        assert each.weight >= 1.0
        end_s = each.start_s + each.length_s
        assert any(each.start_s <= request.arrival_s < end_s for request in requests)
