"""The numbers of a comparison, from replays that can be computed in the head."""

import math

import pytest

from tests.builders import iterations, record, replay_of, request
from tuner.compare.comparison import Busy, notes_on, numbers_of, ratios
from tuner.compare.load_levels import at_rate, uniform
from tuner.window import Window


def test_throughput_counts_what_was_finished_in_the_window_whoever_sent_it() -> None:
    run_in = record(0, scored=False, planned_s=-1.0, end_s=2.0)
    late = record(1, end_s=10.5)
    one = numbers_of([replay_of([run_in, record(2), late])])
    assert one.requests_per_s == 2 / 10
    assert one.offered_rps == 2 / 10
    assert (one.requests, one.completed) == (2, 2)


def test_what_was_unfinished_at_the_end_makes_the_tail_a_lower_bound() -> None:
    waited = record(1, outcome="cut", first_token_s=None, last_token_s=None, end_s=12.0)
    one = numbers_of([replay_of([record(0), waited])])
    assert one.e2el_at_least
    assert one.e2el_p95_s == pytest.approx(3.0 + 0.95 * 9.0)
    assert (one.completed, one.unfinished) == (1, 1)


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
    assert one.iteration_s == 2.0


def test_an_engine_that_never_ran_was_idle() -> None:
    assert numbers_of([replay_of([record(0)])]).busy == Busy(0.0, 0.0, 1.0)


def test_ratios_are_paired_by_block_so_that_a_slow_block_costs_nothing() -> None:
    found = ratios(
        {"worker": {0: 2.0, 1: 1.0, 2: 4.0}, "tuned": {0: 6.0, 1: 3.0, 2: 12.0}}, "worker"
    )
    assert found["worker"].value == 1.0
    assert found["worker"].low is None
    assert found["tuned"].value == pytest.approx(3.0)
    assert found["tuned"].low == pytest.approx(3.0)
    assert found["tuned"].high == pytest.approx(3.0)


def test_the_interval_of_a_ratio_is_students_over_all_approaches() -> None:
    e = math.e
    found = ratios(
        {"worker": {0: 1.0, 1: 1.0}, "a": {0: e, 1: e**3}, "b": {0: 1.0, 1: e**2}}, "worker"
    )
    # each has squares 1 + 1 around its mean, 2 degrees of freedom: sd = sqrt(4 / 2), t = 4.303
    reach = 4.303 * math.sqrt(2.0) / math.sqrt(2)
    assert found["a"].value == pytest.approx(e**2)
    assert found["a"].low == pytest.approx(math.exp(2 - reach), rel=0.05)
    assert found["b"].high == pytest.approx(math.exp(1 + reach), rel=0.05)


def test_one_block_has_no_interval_and_a_baseline_of_nothing_no_ratio() -> None:
    assert ratios({"worker": {0: 1.0}, "a": {0: 2.0}}, "worker")["a"].low is None
    assert ratios({"worker": {0: 0.0}, "a": {0: 2.0}}, "worker") == {}


def test_notes_name_what_costs_and_nothing_else() -> None:
    calm = numbers_of([replay_of([record(0, queue_s=0.0)])])
    assert notes_on(calm, alone=None) == ()
    held = numbers_of([replay_of([record(0, queue_s=0.0, held_s=1.5, transfer_s=0.002)])])
    assert notes_on(held, alone=None) == (
        "head of line: finished requests waited 1.5 s for their batch",
        "queue: 2 ms a request to pickle and transfer (p95 2 ms)",
    )
    failed = record(1, outcome="failed", error="the queue is full", last_token_s=None)
    assert notes_on(numbers_of([replay_of([record(0, queue_s=0.0), failed])]), alone=None) == (
        "50.0% failed: the queue is full",
    )


def test_a_window_is_thinned_out_or_filled_to_its_rate_and_never_stretched() -> None:
    requests = [request(row, arrival_s=row / 2) for row in range(40)]
    window = Window(start_s=4.0, length_s=8.0, run_in_s=2.0)
    for rate in (0.5, 2.0, 7.0):
        sent = at_rate(requests, window, rate, seed=0)
        assert len(sent) == rate * 10
        assert all(2.0 <= one.arrival_s < 12.0 for one in sent)
    assert at_rate(requests, window, None, seed=0) == requests[4:24]


def test_uniform_lengths_are_the_traces_mean_at_the_same_times() -> None:
    trace = [
        request(0, input_length=10, output_length=50, hash_ids=(7,)),
        request(1, input_length=30, output_length=150, status="aborted", e2e_s=1.0),
    ]
    assert [
        (one.arrival_s, one.input_length, one.output_length, one.status, one.hash_ids)
        for one in uniform(trace, trace)
    ] == [(0.0, 20, 100, "ok", ()), (1.0, 20, 100, "ok", ())]
