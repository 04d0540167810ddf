"""The workload of a sweep: which requests the twin replays."""

import pytest

from tests.support.builders import request
from tuner.traffic import workload
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import workload_of

UNLOADED = Unloaded(ttft_s=0.1, ttft_s_per_input_token=0.0, tpot_s=0.01)


def test_of_a_long_part_the_twin_replays_the_busy_hour_and_not_the_long_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A week was tuned for its weekend: fewer requests, and longer ones."""
    monkeypatch.setattr(workload, "MOST_TWIN_REQUESTS", 3)
    week = [request(row, arrival_s=10.0 + row) for row in range(3)]
    weekend = [request(3 + row, arrival_s=1000.0 * (1 + row), input_length=90) for row in range(3)]
    part, window = Part(0.0, 4000.0), Window(10.0, 60.0, 0.0)
    result = workload_of([*week, *weekend], Slo(ttft_s=1.0), UNLOADED, part, [window], 60.0)
    assert [request.row for request in result.twin_requests] == [0, 1, 2]
    assert result.twin_length_s == 2.0
