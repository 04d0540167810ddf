"""The numbers of a comparison, from replays that can be computed in the head."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.builders import iterations, record, replay_of, request
from tuner.runs.compare.table import (
    Busy,
    Ratio,
    compared,
    note_against,
    numbers_of,
    ratios,
)
from tuner.runs.compare.ways import Workload, mean_in_flight, uniform, windows_of
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import Window


def test_what_was_served_is_a_part_of_what_was_offered_run_in_and_all() -> None:
    """A window of 10 s after a run-in of 2 s: four are due in these 12 s, three end in them."""
    run_in = record(0, scored=False, planned_s=1.0, end_s=4.0)
    late = record(1, planned_s=9.0, end_s=12.5, last_s=12.5)
    replay = replay_of([run_in, record(2), record(3), late], scored_from_s=2.0)
    one = numbers_of([replay])
    assert one.offered_rps == 4 / 12
    assert one.requests_per_s == 3 / 12
    assert (one.requests, one.completed) == (4, 4)


def test_no_order_of_light_load_can_serve_more_than_was_offered() -> None:
    """As many end in the window as were due in its run-in and in it: not more than were due."""
    early = [record(row, scored=False, planned_s=1.9, end_s=2.5) for row in range(5)]
    one = numbers_of([replay_of([*early, record(9, planned_s=3.0, end_s=6.0)], scored_from_s=2.0)])
    assert one.requests_per_s == one.offered_rps == 6 / 12


def test_who_gave_up_was_neither_offered_nor_served() -> None:
    gave_up = record(1, outcome="aborted", last_s=None, end_s=1.5)
    one = numbers_of([replay_of([record(0), gave_up])])
    assert (one.offered_rps, one.requests_per_s) == (0.1, 0.1)
    assert one.e2el_p95_s == 3.0


def test_what_was_unfinished_at_the_end_makes_the_tail_a_lower_bound() -> None:
    waited = record(1, outcome="cut", first_s=None, last_s=None, end_s=12.0)
    one = numbers_of([replay_of([record(0), waited])])
    assert one.e2el_at_least
    assert one.e2el_p95_s == pytest.approx(3.0 + 0.95 * 9.0)
    assert (one.completed, one.unfinished) == (1, 1)


def test_what_failed_is_in_the_tail_as_if_it_had_waited_to_the_end() -> None:
    refused = record(1, outcome="failed", last_s=None, end_s=0.1)
    one = numbers_of([replay_of([record(0), refused], elapsed_s=13.0)])
    assert one.e2el_at_least
    assert one.e2el_p95_s == pytest.approx(3.0 + 0.95 * 10.0)


def test_few_unfinished_ones_beyond_the_p95_leave_it_exact() -> None:
    done = [record(row) for row in range(99)]
    waited = record(99, outcome="cut", last_s=None, end_s=12.0)
    one = numbers_of([replay_of([*done, waited])])
    assert (one.e2el_p95_s, one.e2el_at_least) == (3.0, False)


def test_in_flight_is_counted_over_time_after_the_run_in() -> None:
    """Of 10 s after 2 s of run-in: one for all of it, one for the half."""
    whole = record(0, planned_s=0.0, end_s=20.0)
    half = record(1, planned_s=7.0, end_s=12.0)
    assert numbers_of([replay_of([whole, half], scored_from_s=2.0)]).in_flight_mean == 1.5


def test_engines_that_overlap_are_busy_once() -> None:
    log = iterations(
        [
            {"start_s": 0.0, "duration_s": 2.0, "decode_seqs": 1},
            {"start_s": 1.0, "duration_s": 2.0, "decode_seqs": 1},
            {"start_s": 5.0, "duration_s": 2.0, "decode_seqs": 1},
        ]
    )
    one = numbers_of([replay_of([record(0)], iterations=log)])
    assert one.busy is not None
    assert (one.busy.mean, one.busy.sd, one.busy.idle_share) == pytest.approx((0.5, 0.5, 0.5))


def test_an_engine_that_never_ran_was_idle() -> None:
    assert numbers_of([replay_of([record(0)])]).busy == Busy(0.0, 0.0, 1.0)


def samples(**values: Sequence[float]) -> dict[str, dict[int, float]]:
    return {name: dict(enumerate(blocks)) for name, blocks in values.items()}


def test_ratios_are_paired_by_block_so_that_a_slow_block_costs_nothing() -> None:
    found = ratios(samples(worker=(2.0, 1.0, 4.0), tuned=(6.0, 3.0, 12.0)), "worker")
    assert found["worker"] == Ratio(1.0, None, None)
    assert found["tuned"].value == pytest.approx(3.0)
    assert found["tuned"].low == pytest.approx(3.0)
    assert found["tuned"].high == pytest.approx(3.0)


def test_the_interval_is_students_over_what_approach_and_block_leave_unexplained() -> None:
    """Logs (0, 0), (1, 3), (0, 2): residuals of the two-way layout are ±2/3, ∓1/3, ∓1/3."""
    e = math.e
    found = ratios(samples(worker=(1.0, 1.0), a=(e, e**3), b=(1.0, e**2)), "worker")
    s2 = 2 * (4 + 1 + 1) / 9 / 2  # 6 cells, 4 coefficients: 2 degrees of freedom
    reach = 4.303 * math.sqrt(2 * s2 / 2)
    assert found["a"].value == pytest.approx(e**2)
    assert found["a"].low == pytest.approx(math.exp(2 - reach), rel=0.05)
    assert found["b"].high == pytest.approx(math.exp(1 + reach), rel=0.05)


def test_one_block_has_no_interval_and_a_baseline_of_nothing_no_ratio() -> None:
    assert ratios(samples(worker=(1.0,), a=(2.0,)), "worker")["a"].low is None
    assert ratios(samples(worker=(0.0,), a=(2.0,)), "worker") == {}
    assert ratios({}, "worker") == {}


def test_a_block_of_nothing_costs_the_interval_and_not_the_ratio() -> None:
    assert ratios(samples(worker=(1.0, 3.0), a=(0.0, 2.0)), "worker")["a"] == Ratio(0.5, None, None)


def test_an_approach_that_missed_a_block_is_compared_in_the_others() -> None:
    found = samples(worker=(1.0, 1.0, 5.0), a=(2.0, 2.0), b=(3.0, 3.0, 15.0))
    assert ratios(found, "worker")["a"].value == pytest.approx(2.0)


def test_a_tail_that_is_only_known_to_be_longer_has_no_ratio() -> None:
    cut = record(1, outcome="cut", last_s=None, end_s=12.0)
    blocks = {
        "worker": {0: replay_of([record(0), record(1)])},
        "a": {0: replay_of([record(0), cut])},
        "b": {0: replay_of([record(0), record(1)])},
    }
    found = compared(blocks, "worker")
    assert set(found["a"]) == {"requests_per_s", "tpot_p95"}
    assert found["a"]["requests_per_s"].value == 0.5
    assert set(found["b"]) == {"requests_per_s", "tpot_p95", "e2el_p95"}
    assert note_against(found["b"], "one worker") == (
        "against one worker: 1.00x req/s, 1.00x p95 E2EL, 1.00x p95 TPOT",
    )


def test_uniform_lengths_are_the_traces_mean_at_the_same_times() -> None:
    trace = [
        request(0, input_length=10, output_length=50, hash_ids=(7,)),
        request(1, input_length=30, output_length=150, status="aborted", e2e_s=1.0),
    ]
    assert [
        (one.arrival_s, one.input_length, one.output_length, one.status, one.hash_ids)
        for one in uniform(trace, trace)
    ] == [(0.0, 20, 100, "ok", ()), (1.0, 20, 100, "ok", ())]


def test_the_time_per_token_is_the_clients_and_of_a_reply_that_comes_whole_the_engines() -> None:
    streamed = record(0, tpot_s=0.5, engine_first_s=1.0, engine_last_s=1.8)
    whole = record(1, tpot_s=None, engine_first_s=1.0, engine_last_s=1.8)
    of_streamed, of_whole = (numbers_of([replay_of([one])]).tpot_s for one in (streamed, whole))
    assert of_streamed is not None
    assert of_whole is not None
    assert [of_streamed.p50, of_whole.p50] == pytest.approx([0.5, 0.2])


class Stays(Workload):
    """At an engine without limits everybody stays 2 s, however many there are."""

    def in_flight(self, sent: Sequence[TraceRequest], window: Window) -> float:
        begin_s = np.array([one.arrival_s for one in sent])
        end_s = window.start_s + window.length_s
        return mean_in_flight(begin_s, begin_s + 2.0, from_s=window.start_s, to_s=end_s)


@pytest.mark.parametrize("recorded_rps", [1.0, 4.0, 20.0])
def test_a_level_is_reached_by_littles_law(recorded_rps: float) -> None:
    """Eight in flight that stay 2 s each: 4 a second, whether thinned out or filled up."""
    window = Window(start_s=10.0, length_s=40.0, run_in_s=10.0)
    requests = [request(row, arrival_s=row / recorded_rps) for row in range(1200)]
    traffic = Stays(requests, [window], ["medium", "recorded"], None, 16)
    assert set(traffic.rates_rps) == {"medium"}
    assert traffic.rates_rps["medium"] == [pytest.approx(4.0, rel=0.06)]
    sent = traffic.sent("medium", 0)
    assert len(sent) == pytest.approx(200, rel=0.06)
    assert all(0.0 <= one.arrival_s < 50.0 for one in sent)
    assert [one.row for one in traffic.sent("recorded", 0)] == [
        one.row for one in requests if one.arrival_s < 50.0
    ]


def test_every_block_has_a_window_that_begins_with_a_request() -> None:
    trace = [request(row, arrival_s=10.0 * row) for row in range(100)]
    found = windows_of(trace, step_s=16.0, blocks=3)
    assert [(one.start_s, one.length_s, one.run_in_s) for one in found] == [
        (160.0, 16.0, 4.0), (500.0, 16.0, 4.0), (830.0, 16.0, 4.0),
    ]  # fmt: skip
    sparse = [request(0, arrival_s=0.0), request(1, arrival_s=86400.0)]
    for window in windows_of(sparse, step_s=16.0, blocks=3):
        assert any(0 <= one.arrival_s - window.start_s + 4.0 <= 20.0 for one in sparse)


def test_a_trace_without_room_gives_every_block_the_same_window() -> None:
    found = windows_of([request(row) for row in range(11)], step_s=60.0, blocks=3)
    assert len(set(found)) == 1
    assert found[0].replay_s == pytest.approx(10.0, abs=0.01)
