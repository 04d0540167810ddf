"""The twin against windows that the scheduler model itself 'measured' under a known law."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.builders import replay_of
from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import ITERATION, IterationLog
from tuner.replay.records import ProbeResult, Replay, Requests, e2el_s, ttft_s
from tuner.traffic.slo import Slo
from tuner.twin.check import Number, alarm, check_at_own_speed, driven, fit_front_end
from tuner.twin.law import fit_law
from tuner.twin.simulation import EngineShape, FrontEnd, Traffic, clock_of, simulate

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
    behind: FrontEnd | None = None,
) -> Replay:
    """Return a window as a machine that is so much slower would have shown it."""
    slow = clock_of(np.array([0.0, slowdown]), np.ones(1))
    item = simulate(
        traffic(), TRUE, shape, max_num_seqs=cap, clock=slow, front_end=behind, log=True
    )
    return seen(cap, item.requests, item.iterations)


def seen(cap: int, rows: Requests, log: IterationLog) -> Replay:
    """Return what clients and engine tell of a window."""
    rows["output_tokens"] = rows["output_length"]
    window_s = float(rows["end_s"].max()) + 1.0
    return replay_of([rows], max_num_seqs=cap, iterations=log, window_s=window_s)


def fit(*windows: Replay) -> StepLaw:
    return fit_law([window.iterations for window in windows], max_num_seqs=16).law


def at_own_speed(
    window: Replay, law: StepLaw, front_end: FrontEnd | None = None
) -> tuple[Number, ...]:
    return check_at_own_speed(window, SLO, law, SHAPE, front_end)


def test_a_twin_behind_the_same_front_end_is_right_and_one_without_it_is_not() -> None:
    window = measured(16, behind=FrontEnd(delay_s=0.5))
    assert alarm(at_own_speed(window, fit(window)))
    with_it = at_own_speed(window, fit(window), FrontEnd(2.0, 0.5))
    assert all(each.off <= 1 for each in with_it)  # the speed has how it slows the engine


def test_the_twin_is_right_about_what_it_can_represent() -> None:
    window = measured(8)
    result = at_own_speed(window, fit(window))
    assert {number.name for number in result} == {
        *("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms", "e2el_p95_ms", "attainment"),
    }
    assert all(number.off <= 1 for number in result)


def test_a_window_is_driven_at_the_speed_that_the_machine_had_in_it() -> None:
    slow = measured(8, slowdown=1.1)
    law = fit(measured(8), measured(16), slow)
    tpot_s = np.median(slow.requests["tpot_s"])
    assert np.median(driven(slow, law, SHAPE)["tpot_s"]) == pytest.approx(tpot_s, rel=0.01)
    calm = simulate(traffic(), law, SHAPE, max_num_seqs=8)
    assert np.median(calm.requests["tpot_s"]) < 0.97 * tpot_s


def last_come_first_served(cap: int, traffic: Traffic, law: StepLaw) -> Replay:
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
        for each in running:
            first_s[each] = now_s if np.isnan(first_s[each]) else first_s[each]
            left[each] -= 1
            end_s[each] = now_s
        running = [each for each in running if left[each]]
    log = np.zeros(len(rows), ITERATION)
    names = ("start_s", "duration_s", "decode_seqs", "prefill_seqs", "prefill_tokens", "waiting")
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        log[name] = column
    log["running"] = log["decode_seqs"] + log["prefill_seqs"]
    log["kv_blocks_used"] = 10 * log["running"]
    sent = simulate(traffic, law, SHAPE, max_num_seqs=cap).requests
    sent["first_s"], sent["last_s"], sent["end_s"] = first_s, end_s, end_s
    sent["tpot_s"] = (end_s - first_s) / (traffic.output_length - 1)
    return seen(cap, sent, log)


def test_an_engine_that_serves_its_queue_in_another_order_is_found_out() -> None:
    """At 2 slots half of all see 0.8 s to their first token instead of 20 s; throughput and TPOT
    are the same, and a check that takes the median of errors says that nothing is wrong."""
    rng = np.random.default_rng(5)
    arrivals = np.sort(rng.uniform(0, 60, 125)).tolist()
    some = Traffic.of((at_s, 100, int(rng.integers(40, 100))) for at_s in arrivals)
    lifo = last_come_first_served(2, some, TRUE)
    twin = driven(lifo, fit(lifo), SHAPE)
    assert np.median(ttft_s(lifo.requests)) < 0.1 * np.median(ttft_s(twin))
    assert np.median(twin["tpot_s"]) == pytest.approx(np.median(lifo.requests["tpot_s"]), rel=0.05)
    assert alarm(at_own_speed(lifo, fit(lifo)))


def test_a_window_of_another_token_budget_is_compared_with_the_twin_of_that_budget() -> None:
    """As where the budget changes live."""
    window = measured(8, shape=replace(SHAPE, max_num_batched_tokens=12))
    assert not alarm(at_own_speed(replace(window, token_budget=12), fit(window)))


def test_a_request_that_was_late_outside_of_the_scheduler_is_no_error_of_its_model() -> None:
    """Two of 150 first tokens come 0.4 s later: all of the p99. All 0.4 s later are an error."""
    window = measured(8)
    for late_rows, fails in (([40, 90], False), (slice(None), True)):
        rows = window.requests.copy()
        rows["first_s"][late_rows] += 0.4
        late = replace(window, requests=rows)
        assert bool(alarm(at_own_speed(late, fit(window)))) == fails


def test_what_was_cut_is_not_checked() -> None:
    lost = replace(measured(8), cut="hopeless", attainment_bound=0.45)
    assert at_own_speed(lost, TRUE) == ()


def test_one_number_far_off_is_an_alarm_and_others_just_outside_are_not() -> None:
    outside, far = (Number("e2el_p95_ms", 10.0, 9.0, 11.0, at) for at in (11.5, 11.7))
    assert alarm((outside,) * 6) is None
    assert alarm((far, outside)) == far


EVEN = StepLaw(np.full(9, 0.020), 0.0, 0.0, 0.0, 0.0)
STEADY = Traffic.of((float(at_s), 10, 11) for at_s in range(20))


def probe(at_s: float) -> ProbeResult:
    """Return a lone request: 5 ms ahead, ten gaps of 25 ms instead of 20, 3 ms of delivery."""
    times = (0.0, 0.005, 0.030, 0.280, 0.033, 0.283)
    return ProbeResult(10, 0.033, 0.025, 11, tuple(at_s + each for each in times))


def test_what_probes_show_is_found() -> None:
    result = fit_front_end(EVEN, [probe(float(at_s)) for at_s in range(6)])
    assert result is not None
    assert (result.contention, result.delay_s) == pytest.approx((1.25, 0.008))
    assert fit_front_end(EVEN, [probe(0.0)] * 4) is None


def test_clients_feel_both() -> None:
    plain = simulate(STEADY, EVEN, SHAPE, max_num_seqs=8).requests
    front_end = FrontEnd(1.5, 0.3)
    behind = simulate(STEADY, EVEN, SHAPE, max_num_seqs=8, front_end=front_end).requests
    assert behind["tpot_s"] == pytest.approx(1.5 * plain["tpot_s"])
    assert ttft_s(behind) == pytest.approx(0.3 + 1.5 * ttft_s(plain))
    assert e2el_s(behind) == pytest.approx(ttft_s(behind) + 10 * behind["tpot_s"])
