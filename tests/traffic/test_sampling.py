"""Which window stands for a long trace."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import request
from tuner.trace.trace import TraceRequest
from tuner.traffic.sampling import sample_windows, unseen_windows
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


def test_of_a_long_part_its_busiest_window_is_replayed_and_takes_a_step() -> None:
    (peak,) = sample()
    assert 2000 <= peak.start_s < peak.start_s + peak.length_s <= 2100.5
    assert peak.replay_s + 2.0 == pytest.approx(60.0, abs=0.1)


def test_a_window_that_was_not_seen_is_as_busy_as_there_is_one() -> None:
    (peak,) = sample()
    (unseen,) = unseen_windows(HOUR, [peak]) or ()
    assert unseen.start_s >= peak.start_s + peak.length_s
    assert unseen.start_s + unseen.length_s <= 2115
    assert unseen_windows(HOUR[:100], [Window(20.0, 70.0, 15.0)]) is None


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
        end_s = each.start_s + each.length_s
        assert any(each.start_s <= request.arrival_s < end_s for request in requests)
