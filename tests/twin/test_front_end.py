"""The front end on cases that fit in the head, and against one that serves chunk by chunk."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import record
from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import ITERATION, IterationLog
from tuner.replay.records import Requests
from tuner.twin.front_end import (
    FrontEnd,
    Passages,
    contention_of,
    fit_front_end,
    passages_of,
    reaches_scheduler,
    through,
)
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, simulate

TICK_S = 0.01
"""How long an iteration of the engine here takes."""

SHAPE = EngineShape(
    max_num_batched_tokens=10_000, block_size=16, kv_blocks=90_000, max_model_len=10_000
)
LAW = StepLaw(np.full(400, TICK_S), 0.0, 0.0, 0.0, 0.0)


def served(traffic: Traffic, front_end: FrontEnd) -> tuple[TwinReplay, TwinReplay]:
    """Return what the engine did behind a front end, and what clients saw of it."""
    replay = simulate(reaches_scheduler(front_end, traffic), LAW, SHAPE, max_num_seqs=256)
    return replay, through(front_end, traffic, replay)


def test_requests_are_read_one_after_the_other() -> None:
    front_end = FrontEnd(request_s=0.1, input_token_s=0.01)
    traffic = Traffic.of([(0, 10, 1), (0, 20, 1), (5, 10, 1)])
    assert reaches_scheduler(front_end, traffic).arrival_s == pytest.approx([0.2, 0.5, 5.2])


def test_two_processes_halve_the_wait_and_not_the_reading() -> None:
    front_end = FrontEnd(request_s=0.2, processes=2)
    traffic = Traffic.of([(0, 1, 1), (0, 1, 1), (5, 1, 1)])
    assert reaches_scheduler(front_end, traffic).arrival_s == pytest.approx([0.2, 0.3, 5.2])


def test_a_lone_chunk_takes_its_delivery_and_its_own_time() -> None:
    engine, client = served(Traffic.of([(0, 1, 3)]), FrontEnd(delivery_s=0.002, chunk_s=0.001))
    assert client.ttft_s - engine.ttft_s == pytest.approx([0.003])
    assert client.e2el_s - engine.e2el_s == pytest.approx([0.003])
    assert client.tpot_s == pytest.approx(engine.tpot_s)


def test_the_newest_sequence_waits_for_all_others_of_its_iteration() -> None:
    traffic = Traffic.of([(0, 1, 99), (0, 1, 99), (0.5, 1, 9)])
    engine, client = served(traffic, FrontEnd(chunk_s=0.001))
    assert client.ttft_s[2] - engine.ttft_s[2] == pytest.approx(0.003)
    assert client.e2el_s[2] - engine.e2el_s[2] == pytest.approx(0.002)


def test_a_front_end_that_cannot_keep_up_falls_behind_by_its_share_of_the_time() -> None:
    # ten sequences of 101 tokens: 20 ms of chunks every 10 ms
    engine, client = served(Traffic.of([(0, 1, 101)] * 10), FrontEnd(chunk_s=0.002))
    late_s = client.e2el_s - engine.e2el_s
    assert late_s == pytest.approx(1.0 + 5.5 * 0.002)
    _, shared = served(Traffic.of([(0, 1, 101)] * 10), FrontEnd(chunk_s=0.002, processes=4))
    assert shared.e2el_s - engine.e2el_s == pytest.approx(5.5 * 0.0005)


def test_without_a_front_end_clients_see_what_the_engine_does() -> None:
    engine, client = served(Traffic.of([(0, 5, 3), (0.013, 5, 1)]), FrontEnd())
    assert client.ttft_s.tolist() == pytest.approx(engine.ttft_s.tolist())
    assert client.e2el_s.tolist() == pytest.approx(engine.e2el_s.tolist())
    assert np.isnan(client.tpot_s).tolist() == [False, True]


def test_what_was_never_served_has_no_times_and_delays_nobody() -> None:
    traffic = Traffic.of([(0, 20_000, 2), (0.5, 5, 2)])
    engine, client = served(traffic, FrontEnd(chunk_s=0.001))
    assert np.isnan(client.e2el_s).tolist() == [True, False]
    assert client.e2el_s[1] - engine.e2el_s[1] == pytest.approx(0.001)
    assert not len(served(Traffic.of([]), FrontEnd(chunk_s=0.001))[1].e2el_s)


def test_the_utilisation_is_work_by_time_and_process() -> None:
    front_end = FrontEnd(request_s=0.01, input_token_s=1e-5, chunk_s=1e-4, processes=2)
    # 10 ms, 10 ms for the prompt and 20 ms for the reply: 40 ms a request
    assert front_end.utilisation(20, 1000, 200) == pytest.approx(0.4)


# -- against chunks served one by one


def ways(front_end: FrontEnd, seed: int, requests: int, over_s: float) -> Passages:
    """Return ways of random traffic through a front end that serves each chunk by itself; the
    engine makes a token for each of its sequences every TICK_S."""
    rng = np.random.default_rng(seed)
    sent_s = np.sort(rng.uniform(0, over_s, requests))
    inputs = rng.integers(10, 4000, requests)
    outputs = rng.integers(1, 60, requests)
    free_s, reached = 0.0, []
    for at_s, length in zip(sent_s.tolist(), inputs.tolist(), strict=True):
        free_s = max(free_s, at_s) + front_end.request_s + front_end.input_token_s * length
        reached.append(free_s)
    first_tick = np.ceil(np.array(reached) / TICK_S).astype(int) + 1
    last_tick = first_tick + outputs - 1
    seen: dict[tuple[int, int], float] = {}
    free_s = 0.0
    for tick in range(int(last_tick.max()) + 1):
        for one in np.flatnonzero((first_tick <= tick) & (tick <= last_tick)).tolist():
            free_s = max(free_s, tick * TICK_S) + front_end.chunk_s
            seen[one, tick] = free_s + front_end.delivery_s
    ends = [(first_tick[one], last_tick[one]) for one in range(requests)]
    return Passages(
        sent_s=sent_s,
        input_length=inputs,
        output_length=outputs,
        reached_s=(first_tick - 2) * TICK_S,
        queued_s=(first_tick - 1) * TICK_S,
        engine_first_s=first_tick * TICK_S,
        engine_last_s=np.asarray(last_tick * TICK_S, float),
        first_s=np.array([seen[one, first] for one, (first, _) in enumerate(ends)]),
        last_s=np.array([seen[one, last] for one, (_, last) in enumerate(ends)]),
    )


def twin_of(front_end: FrontEnd, one: Passages) -> tuple[Floats, Floats]:
    """Return when clients see the first and the last tokens of these ways by the model."""
    traffic = Traffic(
        one.engine_first_s, one.input_length, one.output_length, np.zeros_like(one.input_length)
    )
    engine = replace(
        simulate(Traffic.of([]), LAW, SHAPE, max_num_seqs=1),
        ttft_s=np.zeros(len(one)),
        e2el_s=one.engine_last_s - one.engine_first_s,
    )
    client = through(replace(front_end, request_s=0, input_token_s=0), traffic, engine)
    return one.engine_first_s + client.ttft_s, one.engine_first_s + client.e2el_s


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.floats(0.0, 0.002), st.integers(50, 300))
def test_the_flow_is_as_late_as_chunks_served_one_by_one(
    seed: int, chunk_s: float, requests: int
) -> None:
    front_end = FrontEnd(chunk_s=chunk_s)
    one = ways(front_end, seed, requests, over_s=20.0)
    first_s, last_s = twin_of(front_end, one)
    at_once = max(
        int(((one.engine_first_s <= at) & (at <= one.engine_last_s)).sum())
        for at in one.engine_first_s.tolist()
    )
    assert np.abs(first_s - one.first_s).max() <= at_once * chunk_s + 1e-9
    assert np.abs(last_s - one.last_s).max() <= at_once * chunk_s + 1e-9
    assert abs((last_s - one.last_s).mean()) <= 0.2 * at_once * chunk_s + 1e-9


@settings(max_examples=10)
@given(
    st.integers(0, 2**32),
    st.floats(0.001, 0.02),
    st.floats(1e-6, 5e-6),
    st.floats(0.0005, 0.005),
    st.floats(5e-5, 4e-4),
)
def test_the_parts_of_a_known_front_end_are_found_in_what_passed_it(
    seed: int, request_s: float, input_token_s: float, delivery_s: float, chunk_s: float
) -> None:
    true = FrontEnd(1.0, request_s, input_token_s, delivery_s, chunk_s)
    parts = [ways(true, seed + number, 300, over_s=20.0) for number in range(2)]
    found = fit_front_end(parts)
    assert found is not None
    lengths = float(np.mean([one.input_length.mean() for one in parts]))
    before_s = true.work_s(lengths, 0)
    assert found.work_s(lengths, 0) == pytest.approx(before_s, rel=0.1)
    assert found.input_token_s == pytest.approx(input_token_s, abs=0.15 * before_s / lengths)
    assert found.chunk_s == pytest.approx(chunk_s, rel=0.15)
    assert found.delivery_s == pytest.approx(delivery_s, abs=chunk_s)  # where in its iteration


def test_a_process_that_was_not_run_for_a_while_does_not_count_as_usual() -> None:
    true = FrontEnd(1.0, 0.004, 1e-6, 0.001, 2e-4)
    one = ways(true, 3, 300, over_s=20.0)
    stalled = np.arange(300) % 30 == 0
    late = replace(
        one,
        first_s=one.first_s + 0.2 * stalled,
        last_s=one.last_s + 0.2 * stalled,
    )
    usual, found = fit_front_end([one]), fit_front_end([late])
    assert usual is not None
    assert found is not None
    assert found.chunk_s == pytest.approx(usual.chunk_s, rel=0.15)
    assert found.delivery_s == pytest.approx(usual.delivery_s, rel=0.15)


def test_fewer_than_five_requests_tell_nothing() -> None:
    assert fit_front_end([]) is None
    assert fit_front_end([ways(FrontEnd(), 1, 4, over_s=1.0)]) is None


# -- what is fitted


def sent(row: int = 0, **more: object) -> Requests:
    of_engine = {"queued_s": 1.0, "engine_first_s": 2.0, "engine_last_s": 3.75}
    return record(row, **{"sent_s": 0.5, **of_engine, **more})


def log(*rows: tuple[float, float]) -> IterationLog:
    found = np.zeros(len(rows), ITERATION)
    found["start_s"], found["duration_s"] = np.array(rows, dtype=float).reshape(-1, 2).T
    found["decode_seqs"] = 1
    return found


def test_a_request_reached_a_busy_engine_within_the_iteration_before_it_was_found() -> None:
    one = passages_of(sent(queued_s=1.001), log((0.2, 0.8), (1.0, 1.0)))
    assert one.reached_s.tolist() == [0.2]
    assert one.queued_s.tolist() == [1.001]


def test_an_idle_engine_has_a_request_as_soon_as_it_comes() -> None:
    one = passages_of(sent(), log((0.2, 0.1), (1.001, 1.0)))
    assert one.reached_s.tolist() == [1.0]
    assert passages_of(sent(), log()).reached_s.tolist() == [1.0]


def test_only_what_was_served_whole_and_told_of_counts_in_the_order_of_sending() -> None:
    every = [
        sent(0, sent_s=0.75),
        sent(1),
        sent(2, outcome="aborted"),
        sent(3, engine_first_s=None),
    ]
    assert passages_of(np.concatenate(every), log((5.0, 1.0))).sent_s.tolist() == [0.5, 0.75]


def test_contention_is_what_the_same_work_took_longer_and_never_shorter() -> None:
    law = StepLaw(np.full(2, 1.0), 0.0, 0.0, 0.0, 0.0)
    assert contention_of(law, [log((0, 1.5), (2, 1.0))]) == 1.25
    assert contention_of(law, [log((0, 0.5))]) == 1.0
    assert contention_of(law, []) == 1.0
