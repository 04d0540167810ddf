"""The twin against windows that the scheduler model itself 'measured' under a known law."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.support.builders import record, replay_of
from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import ITERATION
from tuner.replay.records import Requests
from tuner.traffic.slo import Slo
from tuner.twin.check import (
    Check,
    Foretold,
    Number,
    Observed,
    check_at_own_speed,
    check_foretold,
    driven,
    driver,
    foretell,
    lag_s,
    observed,
)
from tuner.twin.draws import MachineHistory
from tuner.twin.front_end import FrontEnd, simulate_behind
from tuner.twin.law import FittedLaw, Segment, fit_law
from tuner.twin.simulation import EngineShape, Slowdown, Traffic, simulate

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
SLO = Slo(ttft_s=2.0)
TRUE = StepLaw(np.linspace(0.020, 0.036, 17), 1e-4, 0.0, 0.0, 0.0)


def traffic() -> Traffic:
    rng = np.random.default_rng(5)
    arrivals = np.sort(rng.uniform(0, 60, 150)).tolist()
    return Traffic.of((at_s, 100, int(rng.integers(20, 100))) for at_s in arrivals)


def measured(
    cap: int,
    *,
    shape: EngineShape = SHAPE,
    slowdown: float = 1.0,
    start_s: float = 0.0,
    behind: FrontEnd | None = None,
) -> tuple[Segment, Observed]:
    """Return a window as a machine that is so much slower would have shown it."""
    slow = Slowdown(np.array([slowdown]), 0.0, 1.0)
    replayed = simulate if behind is None else partial(simulate_behind, behind)
    one = replayed(traffic(), TRUE, shape, max_num_seqs=cap, slowdown=slow, log=True)
    return Segment(one.iterations, start_s, 0), Observed(
        max_num_seqs=cap,
        traffic=traffic(),
        scored=np.ones(150, bool),
        ttft_s=one.ttft_s,
        tpot_s=one.tpot_s,
        e2el_s=one.e2el_s,
        output_tokens=one.output_tokens,
        end_s=one.duration_s + 1.0,
        iterations=one.iterations,
        cut=False,
    )


def fit(*segments: Segment) -> FittedLaw:
    return fit_law(segments, max_num_seqs=16)


def at_own_speed(windows: list[Observed], law: StepLaw, front_end: FrontEnd | None = None) -> Check:
    return check_at_own_speed(windows, SLO, driver(law, SHAPE, front_end))


def test_a_twin_behind_the_same_front_end_is_right_and_one_without_it_is_not() -> None:
    segment, window = measured(16, behind=FrontEnd(request_s=0.2, delivery_s=0.3))
    law = fit(segment).law
    alone = at_own_speed([window], law)
    with_it = at_own_speed([window], law, FrontEnd(2.0, 0.2, 0.3))
    assert alone.failed
    assert (with_it.held, with_it.failed) == (9, False)  # the slowdown has how it slows it


def test_of_a_server_that_tells_no_iterations_only_what_its_clients_see_is_checked() -> None:
    _, window = measured(8)
    plain = replace(window, iterations=window.iterations[:0])
    numbers = {name: Foretold(0.0, 0.0, math.inf) for name in ("ttft_p50_ms", "running_mean")}
    assert [one.name for one in check_foretold(numbers, [plain], SLO).numbers] == ["ttft_p50_ms"]
    assert not at_own_speed([plain], TRUE).numbers


def test_the_twin_is_right_about_what_it_can_represent() -> None:
    segment, window = measured(8)
    found = at_own_speed([window], fit(segment).law)
    assert [one.name for one in found.numbers] == [
        *("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms", "e2el_p95_ms"),
        *("attainment", "running_mean", "waiting_mean", "preemptions"),
    ]
    assert found.held == 9
    assert not found.failed


def test_a_window_is_driven_at_the_speed_that_the_machine_had_in_it() -> None:
    one, _ = measured(8)
    other, _ = measured(16, start_s=1000.0)
    slow, window = measured(8, slowdown=1.1, start_s=2000.0)
    law = fit(one, other, slow)
    twin = driven(window, law.law, SHAPE)
    assert np.median(twin.tpot_s) == pytest.approx(np.median(window.tpot_s), rel=0.01)
    calm = simulate(traffic(), law.law, SHAPE, max_num_seqs=8)
    assert np.median(calm.tpot_s) < 0.97 * np.median(window.tpot_s)


def last_come_first_served(cap: int, traffic: Traffic, law: StepLaw) -> Observed:
    """Return what clients of an engine see that admits who came last."""
    arrived_s, left = traffic.arrival_s, traffic.output_length.copy()
    first_s, end_s = np.full(len(left), np.nan), np.full(len(left), np.nan)
    waiting, running = list[int](), list[int]()
    rows = []
    now_s, came = 0.0, 0
    while came < len(left) or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, float(arrived_s[came]))
        while came < len(left) and arrived_s[came] <= now_s:
            waiting.append(came)
            came += 1
        new = [waiting.pop() for _ in range(min(cap - len(running), len(waiting)))]
        tokens = int(traffic.input_length[new].sum())
        duration_s = law.decode_s[len(running)] + law.prefill_token_s * tokens
        rows.append((now_s, duration_s, len(running), len(new), tokens, len(waiting)))
        running += new
        now_s += duration_s
        for one in running:
            first_s[one] = now_s if np.isnan(first_s[one]) else first_s[one]
            left[one] -= 1
            end_s[one] = now_s
        running = [one for one in running if left[one]]
    log = np.zeros(len(rows), ITERATION)
    names = ("start_s", "duration_s", "decode_seqs", "prefill_seqs", "prefill_tokens", "waiting")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        log[name] = column
    log["running"] = log["decode_seqs"] + log["prefill_seqs"]
    log["kv_blocks_used"] = 10 * log["running"]
    return Observed(
        max_num_seqs=cap,
        traffic=traffic,
        scored=np.ones(len(left), bool),
        ttft_s=first_s - arrived_s,
        tpot_s=(end_s - first_s) / (traffic.output_length - 1),
        e2el_s=end_s - arrived_s,
        output_tokens=int(traffic.output_length.sum()),
        end_s=now_s + 1.0,
        iterations=log,
        cut=False,
    )


def test_an_engine_that_serves_its_queue_in_another_order_is_found_out() -> None:
    """At 2 slots half of all see 0.8 s to their first token instead of 20 s; throughput and TPOT
    are the same, and a check that takes the median of errors says that nothing is wrong."""
    rng = np.random.default_rng(5)
    arrivals = np.sort(rng.uniform(0, 60, 125)).tolist()
    some = Traffic.of((at_s, 100, int(rng.integers(40, 100))) for at_s in arrivals)
    other = last_come_first_served(2, some, TRUE)
    segment = Segment(other.iterations, 0.0, 0)
    twin = driven(other, fit(segment).law, SHAPE)
    assert np.median(other.ttft_s) < 0.1 * np.median(twin.ttft_s)
    assert twin.output_tokens == other.output_tokens
    assert np.median(twin.tpot_s) == pytest.approx(np.median(other.tpot_s), rel=0.05)
    found = at_own_speed([other], fit(segment).law)
    assert found.failed
    assert found.is_far_off


def test_a_scheduler_that_does_otherwise_shows() -> None:
    """The engine computed prompts in small chunks, of which the twin does not know."""
    segment, window = measured(8, shape=replace(SHAPE, max_num_batched_tokens=12))
    assert at_own_speed([window], fit(segment).law).failed


def test_a_window_of_another_token_budget_is_held_against_the_twin_of_that_budget() -> None:
    """As where the budget changes live."""
    segment, window = measured(8, shape=replace(SHAPE, max_num_batched_tokens=12))
    small = replace(window, max_num_batched_tokens=12)
    assert not at_own_speed([small], fit(segment).law).failed


def test_a_request_that_was_late_outside_of_the_scheduler_is_no_error_of_its_model() -> None:
    """Two of 150 first tokens come 0.4 s later: all of the p99. All 0.4 s later are an error."""
    segment, window = measured(8)
    late = np.zeros(150)
    late[[40, 90]] = 0.4
    two, every = (replace(window, ttft_s=window.ttft_s + one) for one in (late, late.max()))
    law = fit(segment).law
    assert not at_own_speed([two], law).failed
    assert at_own_speed([every], law).failed


def foretold(slowdown: list[float]) -> tuple[dict[str, Foretold], list[tuple[float, float]]]:
    segment, window = measured(8)
    planned = window.planned
    laws = fit(segment).draws(40)
    return foretell([planned], laws, MachineHistory(np.array(slowdown)), SHAPE, SLO, max_num_seqs=8)


def test_a_forecast_holds_of_the_machine_that_it_is_of_and_fails_of_a_much_slower_one() -> None:
    numbers, ((ttft_s, tpot_s),) = foretold([1.0])
    _, same = measured(8)
    _, slow = measured(8, slowdown=1.5)
    assert check_foretold(numbers, [same], SLO).held == 9
    found = check_foretold(numbers, [slow], SLO)
    assert found.failed
    assert found.worst.measured > found.worst.predicted
    assert ttft_s == pytest.approx(np.mean(same.ttft_s), rel=0.1)
    assert tpot_s == pytest.approx(np.mean(same.tpot_s), rel=0.05)


def test_stalls_that_were_measured_are_in_the_forecast() -> None:
    calm, _ = foretold([1.0] * 24)
    stalled, _ = foretold([1.0] * 22 + [3.0] * 2)
    assert stalled["e2el_p95_ms"].high > 1.2 * calm["e2el_p95_ms"].high
    assert stalled["attainment"].low < calm["attainment"].low


def test_of_a_replay_that_was_cut_only_what_it_could_attain_is_held() -> None:
    numbers, _ = foretold([1.0])
    _, window = measured(8)
    found = check_foretold(numbers, [replace(window, cut=True, attainment_bound=0.45)], SLO)
    assert [(one.name, one.measured) for one in found.numbers] == [("attainment", 0.45)]
    assert found.failed
    assert not at_own_speed([replace(window, cut=True)], TRUE).numbers


def test_of_a_replay_that_another_slo_cut_nothing_is_held() -> None:
    numbers, _ = foretold([1.0])
    _, window = measured(8)
    lost = replace(window, cut=True, attainment_bound=0.45, cut_by=Slo(ttft_s=1e-3))
    assert check_foretold(numbers, [window, lost], SLO) == Check(())
    assert check_foretold(numbers, [replace(lost, cut_by=SLO)], SLO).failed


def test_one_number_far_off_or_three_outside_of_their_intervals_are_an_alarm() -> None:
    inside, outside = (Number("e2el_p95_ms", 10.0, 9.0, 11.0, at) for at in (11.0, 11.5))
    far = replace(inside, measured=11.7)
    assert not Check((inside,) * 12).failed
    assert not Check((outside,) * 2 + (inside,) * 10).failed
    assert Check((outside,) * 3 + (inside,) * 9).failed
    assert Check((far,) + (inside,) * 11).failed
    assert Check((far,) + (inside,) * 11).held == 11


def test_the_lag_of_the_front_end_is_found() -> None:
    segment, window = measured(16, shape=replace(SHAPE, lag_s=0.3))
    assert lag_s([window], fit(segment).law, SHAPE) == pytest.approx(0.3, abs=0.02)


def test_without_a_lag_none_is_found() -> None:
    segment, window = measured(16)
    assert lag_s([window], fit(segment).law, SHAPE) == pytest.approx(0.0, abs=0.003)
    assert lag_s([], fit(segment).law, SHAPE) == 0


def test_a_replay_becomes_arrays_in_order_of_its_plan() -> None:
    def turn(row: int, **changes: object) -> Requests:
        at_s = float(row)
        times = {"planned_s": at_s, "first_s": at_s + 1, "last_s": at_s + 2, "end_s": at_s + 2}
        return record(row, **{**times, **changes})

    replay = replay_of(
        [
            turn(0, scored=False, cached_tokens=3),
            turn(1, outcome="aborted", output_tokens=3, last_s=None),
            turn(2, outcome="cut", last_s=None, end_s=9.0, tpot_s=None, output_tokens=1),
        ]
    )
    window = observed(
        replay,
    )
    assert window.traffic.arrival_s.tolist() == [0, 1, 2]
    assert window.traffic.output_length.tolist() == [5, 3, 5]
    assert window.traffic.cached_length.tolist() == [3, 0, 0]
    assert window.scored.tolist() == [False, True, True]
    assert window.ttft_s.tolist() == [1, 1, 1]
    assert np.isnan(window.e2el_s).tolist() == [False, True, True]
    assert (window.output_tokens, window.end_s) == (9, 9)
    assert not window.cut
