"""The workload of a sweep: which requests the twin replays."""

from dataclasses import replace

import pytest

from tests.support.builders import request
from tuner.trace.trace import TraceRequest
from tuner.traffic import workload
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Window
from tuner.traffic.workload import slo_for, workload_of

UNLOADED = Unloaded(ttft_s=0.1, ttft_s_per_input_token=0.0, tpot_s=0.01)


def test_of_a_long_part_the_twin_replays_the_busy_hour_and_not_the_long_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A week was tuned for its weekend: fewer requests, and longer ones."""
    monkeypatch.setattr(workload, "MOST_TWIN_REQUESTS", 3)
    week = [request(row, arrival_s=10.0 + row) for row in range(3)]
    weekend = [request(3 + row, arrival_s=1000.0 * (1 + row), input_length=90) for row in range(3)]
    part, window = Window(0.0, 4000.0), Window(10.0, 60.0)
    result = workload_of([*week, *weekend], Slo(ttft_s=1.0), UNLOADED, part, window, 60.0)
    assert [request.row for request in result.twin_requests] == [0, 1, 2]
    assert result.twin_length_s == 2.0


def test_what_waits_for_a_slot_for_too_long_is_not_served_in_time() -> None:
    # each request holds a slot for 1 s; ten arrive at once; TTFT limit 2.5 s: a slot serves three
    unloaded = Unloaded(ttft_s=0.0, ttft_s_per_input_token=0.0, tpot_s=0.1)
    burst = [request(row, arrival_s=0.0, output_length=11) for row in range(10)]
    part = Window(0.0, 200.0)

    def share(requests: list[TraceRequest], cap: int) -> float:
        work = workload_of(requests, Slo(ttft_s=2.5), unloaded, part, part, 60.0)
        return work.queued(cap, held=1.0)

    assert [share(burst, cap) for cap in (1, 2, 4)] == [0.3, 0.6, 1.0]
    gone = [request(row, arrival_s=0.0, status="aborted") for row in range(10, 20)]
    assert share([*burst, *gone], 1) == 1.3 / 2
    assert share([replace(burst[0], n=4), *burst[1:]], 1) == 0.1


def test_the_derived_slo_is_twice_tpot_and_five_times_ttft_plus_half_the_median_e2el() -> None:
    unloaded = Unloaded(ttft_s=0.1, ttft_s_per_input_token=0.001, tpot_s=0.02)
    # a request of 100 + 51 tokens holds a slot for 0.1 + 0.1 + 50 x 0.02 = 1.2 s
    slo = slo_for([request(0, input_length=100, output_length=51)], unloaded)
    assert slo.tpot_s == pytest.approx(0.04)
    assert slo.ttft_limit_s(0) == pytest.approx(5 * 0.1 + 0.6)
    assert slo.ttft_limit_s(100) == pytest.approx(5 * 0.2 + 0.6)
    assert slo.derived
