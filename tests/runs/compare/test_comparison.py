"""The numbers of a comparison, from replays that can be computed in the head."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from tests.support.builders import iterations, record, replay_of, request
from tuner.engines.scheduler.state import StepLaw
from tuner.errors import TraceError
from tuner.runs.compare.calibration import ReferenceEngine, as_json, from_json
from tuner.runs.compare.comparison import Busy, compared, numbers_of
from tuner.runs.compare.load_levels import (
    Level,
    Reference,
    at_rate,
    end_to_end,
    mean_in_flight,
    rate_of,
    uniform,
)
from tuner.runs.compare.notes import note_against, notes_on
from tuner.runs.compare.ratios import Ratio, Sample, ratios
from tuner.runs.compare.windows import windows_of
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import Window
from tuner.twin.simulation import EngineShape


def test_what_was_served_is_a_part_of_what_was_offered_run_in_and_all() -> None:
    """A window of 10 s after a run-in of 2 s: four are due in these 12 s, three end in them."""
    run_in = record(0, scored=False, planned_s=1.0, end_s=4.0)
    late = record(1, planned_s=9.0, end_s=12.5, last_token_s=12.5)
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
    gave_up = record(1, outcome="aborted", last_token_s=None, end_s=1.5)
    one = numbers_of([replay_of([record(0), gave_up])])
    assert (one.offered_rps, one.requests_per_s, one.aborted) == (0.1, 0.1, 1)
    assert one.e2el_p95_s == 3.0


def test_what_was_unfinished_at_the_end_makes_the_tail_a_lower_bound() -> None:
    waited = record(1, outcome="cut", first_token_s=None, last_token_s=None, end_s=12.0)
    one = numbers_of([replay_of([record(0), waited])])
    assert one.e2el_at_least
    assert one.ttft_at_least
    assert one.e2el_p95_s == pytest.approx(3.0 + 0.95 * 9.0)
    assert (one.completed, one.unfinished) == (1, 1)


def test_what_failed_is_in_the_tail_as_if_it_had_waited_to_the_end() -> None:
    refused = record(1, outcome="failed", error="full", last_token_s=None, end_s=0.1)
    one = numbers_of([replay_of([record(0), refused], elapsed_s=13.0)])
    assert one.e2el_at_least
    assert one.e2el_p95_s == pytest.approx(3.0 + 0.95 * 10.0)


def test_few_unfinished_ones_beyond_the_p95_leave_it_exact() -> None:
    done = [record(row) for row in range(99)]
    waited = record(99, outcome="cut", last_token_s=None, end_s=12.0)
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
    assert one.iteration_s == 2.0


def test_an_engine_that_never_ran_was_idle() -> None:
    assert numbers_of([replay_of([record(0)])]).busy == Busy(0.0, 0.0, 1.0)


ROWS = frozenset(range(1000))


def samples(**values: Sequence[float]) -> dict[str, dict[int, Sample]]:
    """Return the same number of requests in every block of every approach."""
    return {
        name: {block: Sample(value, ROWS) for block, value in enumerate(blocks)}
        for name, blocks in values.items()
    }


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


def test_a_count_is_not_surer_than_counting_allows() -> None:
    """Each has 100 requests in each of 4 blocks, 50 of them its own: 400 differ, of 400 and 400."""
    mine, its = frozenset(range(100)), frozenset(range(50, 150))
    same = {
        "worker": {block: Sample(2.0, mine) for block in range(4)},
        "a": {block: Sample(2.0, its) for block in range(4)},
    }
    assert ratios(same, "worker")["a"].high == pytest.approx(1.0)
    counted = ratios(same, "worker", counted=True)["a"]
    assert counted.high == pytest.approx(math.exp(3.182 * math.sqrt(400 / 400 / 400)), rel=0.01)


def test_few_requests_have_no_interval() -> None:
    few = {
        "worker": {block: Sample(1.0, frozenset({1, 2, 3})) for block in range(4)},
        "a": {block: Sample(2.0, ROWS) for block in range(4)},
    }
    assert ratios(few, "worker")["a"] == Ratio(2.0, None, None)


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
    cut = record(1, outcome="cut", last_token_s=None, end_s=12.0)
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
        "50% failed: the queue is full",
    )


def test_shares_are_never_said_to_be_nothing_or_all_when_they_are_not() -> None:
    cut = [record(row, outcome="cut", last_token_s=None, end_s=12.0) for row in range(1, 2001)]
    one = numbers_of([replay_of([record(0), *cut])])
    assert "99% unfinished" in notes_on(one, alone=None)[0]


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


LEVEL = Level("medium", 8)


def stays(seconds: float) -> Reference:
    """Return an engine without limits: everybody stays so long, however many there are."""

    def in_flight(sent: Sequence[TraceRequest], window: Window) -> float:
        begin_s = np.array([one.arrival_s for one in sent])
        end_s = window.start_s + window.length_s
        return mean_in_flight(begin_s, begin_s + seconds, from_s=window.start_s, to_s=end_s)

    return in_flight


def test_a_level_is_reached_by_littles_law() -> None:
    """Eight in flight that stay 2 s each: 4 a second, whether thinned out or filled up."""
    window = Window(start_s=10.0, length_s=40.0, run_in_s=10.0)
    for recorded_rps in (1.0, 4.0, 20.0):
        requests = [request(row, arrival_s=row / recorded_rps) for row in range(1200)]
        rate = rate_of(LEVEL, requests, window, stays(2.0), seed=0)
        assert rate == pytest.approx(4.0, rel=0.06)


def test_the_load_as_recorded_has_no_rate_of_its_own() -> None:
    requests = [request(row) for row in range(40)]
    window = Window(start_s=10.0, length_s=20.0, run_in_s=10.0)
    assert rate_of(Level("recorded", None), requests, window, stays(2.0), seed=0) is None


def test_the_engine_of_reference_is_the_scheduler_with_its_law() -> None:
    """One token a second and slot: five at a time that need four iterations of 1 s each."""
    law = StepLaw(np.ones(5), 0.0, 0.0, 0.0, 0.0)
    engine = ReferenceEngine(law, EngineShape(512, 16, 1000, 1024), 4, 16)
    requests = [request(row, arrival_s=0.0, output_length=4) for row in range(4)]
    found = engine.in_flight(requests, Window(start_s=0.0, length_s=8.0, run_in_s=0.0))
    assert found == pytest.approx(4 * 4 / 8, rel=0.01)
    assert from_json(json.loads(json.dumps(as_json(engine)))).in_flight(
        requests, Window(0.0, 8.0, 0.0)
    ) == pytest.approx(found)


def test_every_block_has_a_window_of_its_own() -> None:
    """300 s in which 100-116 s and 200-216 s are busy; 16 s after a run-in of 4 s."""
    busy = [request(row, arrival_s=100 + row / 10) for row in range(160)]
    less = [request(row, arrival_s=200 + row / 5) for row in range(80)]
    calm = [request(row, arrival_s=float(row)) for row in range(300)]
    trace = sorted([*busy, *less, *calm], key=lambda one: one.arrival_s)
    _, windows = windows_of(trace, "busiest", step_s=16.0, blocks=3)
    assert [one.start_s for one in windows[:2]] == pytest.approx([100, 200], abs=1.0)
    assert {one.length_s for one in windows} == {16.0}
    assert [one.run_in_s for one in windows[:2]] == [4.0, 4.0]
    spans = sorted((one.start_s - one.run_in_s, one.start_s + one.length_s) for one in windows)
    assert all(end <= after for (_, end), (after, _) in pairwise(spans))


def test_the_busiest_time_of_a_sparse_trace_has_its_requests_in_it() -> None:
    trace = [request(0, arrival_s=0.0), request(1, arrival_s=86400.0)]
    _, windows = windows_of(trace, "busiest", step_s=16.0, blocks=2)
    assert [one.start_s for one in windows] == pytest.approx([0.0, 86384.0], abs=0.01)
    assert [one.run_in_s for one in windows] == [0.0, 4.0]
    with pytest.raises(TraceError, match=r"nothing arrives in .* of the trace"):
        windows_of(trace, "all", step_s=16.0, blocks=2)


def test_all_of_a_trace_is_spread_over_the_blocks() -> None:
    trace = [request(row) for row in range(101)]
    _, windows = windows_of(trace, "all", step_s=16.0, blocks=3)
    assert [one.start_s - one.run_in_s for one in windows] == pytest.approx([0, 40, 80], abs=0.1)
    _, (only,) = windows_of(trace, "20s+40s", step_s=16.0, blocks=1)
    assert only.start_s - only.run_in_s == pytest.approx(30.0)


def test_a_trace_without_room_gives_every_block_the_same_window() -> None:
    trace = [request(row) for row in range(11)]
    for asked in ("busiest", "all"):
        _, windows = windows_of(trace, asked, step_s=60.0, blocks=3)
        assert len(set(windows)) == 1
        assert windows[0].replay_s == pytest.approx(10.0, abs=0.01)
    _, windows = windows_of(trace, "busiest", step_s=6.0, blocks=3)
    assert len(set(windows)) == 1


def test_windows_laid_end_to_end_are_one_trace() -> None:
    window = Window(start_s=12.0, length_s=8.0, run_in_s=2.0)
    sent = [request(5, arrival_s=11.0, session_id="a"), request(7, arrival_s=19.0)]
    found = end_to_end([(window, sent), (window, sent)])
    assert [(one.row, one.arrival_s) for one in found] == [(0, 1.0), (1, 9.0), (2, 11.0), (3, 19.0)]
    assert found[0].session_id is None


def test_the_time_per_token_is_the_clients_and_of_a_reply_that_comes_whole_the_engines() -> None:
    streamed = record(0, tpot_s=0.5, engine_tpot_s=0.2)
    whole = record(1, tpot_s=None, engine_tpot_s=0.2)
    of_streamed, of_whole = (numbers_of([replay_of([one])]).tpot_s for one in (streamed, whole))
    assert of_streamed is not None
    assert of_whole is not None
    assert (of_streamed.p50, of_whole.p50) == (0.5, 0.2)
