"""The numbers of a comparison, from replays that can be computed in the head."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.builders import record, replay_of, request
from tuner.runs.compare.table import compared, numbers_of
from tuner.runs.compare.ways import Workload, mean_in_flight, uniform
from tuner.runs.pairs import Ratio
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import Window


def test_served_requests_are_a_part_of_the_offered_ones() -> None:
    """A window of 10 s after a run-in of 2 s: four are due in these 12 s, three end in them."""
    run_in = record(0, scored=False, planned_s=1.0, end_s=4.0)
    late = record(1, planned_s=9.0, end_s=12.5, last_s=12.5)
    gave_up = record(4, outcome="aborted", last_s=None, end_s=1.5)
    item = numbers_of([replay_of([run_in, record(2), record(3), late, gave_up], scored_from_s=2.0)])
    assert (item.offered_rps, item.requests_per_s) == (4 / 12, 3 / 12)
    assert item.requests == 5


@pytest.mark.parametrize(
    ("fields", "elapsed_s", "tail_s"),
    [({"outcome": "cut", "first_s": None, "end_s": 12.0}, 12.0, 3.0 + 0.95 * 9.0),
     ({"outcome": "failed", "end_s": 0.1}, 13.0, 3.0 + 0.95 * 10.0)],
)  # fmt: skip
def test_unfinished_and_failed_requests_make_the_tail_a_lower_bound(
    fields: dict[str, object], elapsed_s: float, tail_s: float
) -> None:
    waited = record(1, last_s=None, **fields)
    item = numbers_of([replay_of([record(0), waited], elapsed_s=elapsed_s)])
    assert item.e2el_at_least
    assert item.e2el_p95_s == pytest.approx(tail_s)
    few = numbers_of([replay_of([*(record(row) for row in range(99)), waited])])
    assert (few.e2el_at_least, few.e2el_p95_s) == (False, 3.0)


def test_ratios_are_paired_by_block_and_missing_blocks_cost_the_interval() -> None:
    """Twice as many in each of two blocks, of which one is slower."""
    first, twice = record(0), [record(0), record(1)]
    baseline = {0: replay_of([first]), 1: replay_of([first], window_s=20.0)}
    own = {0: replay_of(twice), 1: replay_of(twice, window_s=20.0)}
    assert compared(own, baseline)["requests_per_s"] == Ratio(2.0, 2.0, 2.0)
    assert compared({0: own[0]}, baseline)["requests_per_s"] == Ratio(2.0)
    assert compared({}, baseline) == {}


def test_a_tail_that_is_only_known_to_be_longer_has_no_ratio() -> None:
    cut = record(1, outcome="cut", last_s=None, end_s=12.0)
    baseline = {0: replay_of([record(0), record(1)])}
    result = compared({0: replay_of([record(0), cut])}, baseline)
    assert set(result) == {"requests_per_s", "tpot_p95"}
    assert result["requests_per_s"].value == 0.5
    assert set(compared(baseline, baseline)) == {"requests_per_s", "tpot_p95", "e2el_p95"}


def test_uniform_lengths_are_the_traces_mean_at_the_same_times() -> None:
    trace = [
        request(0, input_length=10, output_length=50, hash_ids=(7,)),
        request(1, input_length=30, output_length=150, status="aborted", e2e_s=1.0),
    ]
    assert [
        (each.arrival_s, each.input_length, each.output_length, each.status, each.hash_ids)
        for each in uniform(trace, trace)
    ] == [(0.0, 20, 100, "ok", ()), (1.0, 20, 100, "ok", ())]


def test_the_time_per_token_is_the_clients_and_of_a_reply_that_comes_whole_the_engines() -> None:
    streamed = record(0, tpot_s=0.5, engine_first_s=1.0, engine_last_s=1.8)
    burst = record(1, tpot_s=None, engine_first_s=1.0, engine_last_s=1.8)
    of_streamed, of_burst = (numbers_of([replay_of([each])]).tpot_s for each in (streamed, burst))
    assert of_streamed is not None
    assert of_burst is not None
    assert [of_streamed.p50, of_burst.p50] == pytest.approx([0.5, 0.2])


class Stays(Workload):
    """At an engine without limits everybody stays 2 s, however many there are."""

    def in_flight(self, sent: Sequence[TraceRequest], window: Window) -> float:
        begin_s = np.array([each.arrival_s for each in sent])
        end_s = window.start_s + window.length_s
        return mean_in_flight(begin_s, begin_s + 2.0, from_s=window.start_s, to_s=end_s)


@pytest.mark.parametrize("recorded_rps", [1.0, 12.5, 40.0])
def test_a_level_is_reached_by_littles_law(recorded_rps: float) -> None:
    """25 in flight that stay 2 s each: 12.5 a second, whether thinned out or filled up."""
    window = Window(start_s=10.0, length_s=40.0, run_in_s=10.0)
    requests = [request(row, arrival_s=row / recorded_rps) for row in range(2400)]
    traffic = Stays(requests, [window], None, 16)
    assert len(traffic.sent("very-heavy", 0)) == pytest.approx(625, rel=0.06)
    sent = [each.row for each in traffic.sent("recorded", 0)]
    assert sent == [request.row for request in requests if request.arrival_s < 50.0]
