"""The twin on cases that fit in the head: an iteration takes one second."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.builders import request
from tuner.engines.scheduler.state import StepLaw
from tuner.replay.records import e2el_s, met, queue_s, ttft_s
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo
from tuner.twin.simulation import (
    EngineShape,
    Traffic,
    clock_of,
    simulate,
    traffic_of,
)

SECOND = StepLaw(np.ones(9), 0.0, 0.0, 0.0, 0.0)
SHAPE = EngineShape(max_num_batched_tokens=100, block_size=4, kv_blocks=100, max_model_len=400)

CACHING = replace(SHAPE, prefix_caching=True)


def test_every_request_gets_its_times() -> None:
    traffic = Traffic.of([(0, 10, 3), (1.5, 10, 1)])
    replay = simulate(traffic, SECOND, SHAPE, max_num_seqs=1)
    rows = replay.requests
    assert ttft_s(rows).tolist() == [1, 2.5]
    assert e2el_s(rows).tolist() == [3, 2.5]
    assert queue_s(rows).tolist() == [0, 1.5]
    assert rows["tpot_s"][0] == 1
    assert math.isnan(rows["tpot_s"][1])
    assert replay.running_peak == 1


def test_what_the_engine_would_refuse_is_a_miss_and_blocks_nobody() -> None:
    traffic = Traffic.of([(0, 399, 2), (0, 500, 1), (0, 10, 1)])
    rows = simulate(traffic, SECOND, SHAPE, max_num_seqs=4).requests
    assert np.isnan(e2el_s(rows)).tolist() == [False, True, True]
    assert met(rows, Slo(e2el_s=99.0)).tolist() == [True, False, False]
    assert np.nanmax(e2el_s(rows)) == 1


def test_traffic_is_what_production_served() -> None:
    requests = [
        TraceRequest(0, 0.0, 40, 7, hash_ids=(1, 2, 3)),
        TraceRequest(1, 1.0, 40, 0, status="aborted", hash_ids=(1, 2, 4)),
        TraceRequest(2, 2.0, 40, 9, status="rejected", hash_ids=(5,)),
        TraceRequest(3, 3.0, 10, 5, n=2, output_lengths=(3, 5), hash_ids=(5,)),
    ]
    traffic = traffic_of(requests, CACHING, hash_block_size=16)
    assert traffic.arrival_s.tolist() == [0, 1, 3, 3]
    assert traffic.output_length.tolist() == [7, 1, 3, 5]
    assert traffic.cached_length.tolist() == [0, 32, 0, 10]
    none = traffic_of(requests, SHAPE, hash_block_size=16)
    assert none.cached_length.tolist() == [0, 0, 0, 0]


def test_a_prefix_is_found_until_the_cache_has_computed_so_much_else() -> None:
    """A session of 40 prompt tokens and 10 of output comes again after 0, and after two others."""
    session = {"input_length": 40, "output_length": 10, "hash_ids": (1, 2)}
    others = [
        request(row, input_length=40, output_length=10, hash_ids=(100 + row,)) for row in (2, 3)
    ]
    came = [request(0, **session), request(1, **session), *others, request(4, **session)]
    for blocks, result in ((1000, 32), (30, 32), (24, 0)):
        shape = replace(CACHING, kv_blocks=blocks)
        traffic = traffic_of(came, shape, hash_block_size=16)
        assert traffic.cached_length.tolist() == [0, 32, 0, 0, result]


def test_cached_prompt_tokens_are_not_computed_but_the_last_one_is() -> None:
    law = StepLaw(np.zeros(9), 1.0, 0.0, 0.0, 0.0)
    traffic = Traffic(
        np.zeros(2), np.array([10, 10]), np.array([1, 1]), cached_length=np.array([8, 99])
    )
    replay = simulate(traffic, law, SHAPE, max_num_seqs=2, log=True)
    assert replay.iterations["prefill_tokens"].tolist() == [2 + 1]


def test_a_slow_machine_stretches_the_replay_while_it_is_slow() -> None:
    clock = clock_of(np.array([0.0, 2.0, 4.0]), 2 / np.array([1.0, 3.0]))
    replay = simulate(Traffic.of([(0, 1, 4)]), SECOND, SHAPE, max_num_seqs=1, clock=clock)
    assert ttft_s(replay.requests)[0] == 1
    assert e2el_s(replay.requests)[0] == pytest.approx(1 + 1 + 3 + 3)


def test_memory_and_preemptions_are_counted() -> None:
    shape = EngineShape(100, 1, 6, 6)
    replay = simulate(Traffic.of([(0, 3, 3), (0, 3, 3)]), SECOND, shape, max_num_seqs=2)
    assert (replay.kv_usage_peak, replay.preemptions) == (1, 1)
    assert 0.5 < replay.kv_usage_mean < 1


def test_a_preempted_request_finds_what_the_cache_still_holds() -> None:
    """Preempted with 4 blocks computed; until it comes back one block is given to the other."""
    law = StepLaw(np.ones(9), 0.0, 0.0, 0.0, 0.0)
    traffic = Traffic.of([(0, 4, 3), (0, 4, 3)])
    logs = [
        simulate(
            traffic,
            law,
            EngineShape(100, 1, 8, 8, prefix_caching=cache),
            max_num_seqs=2,
            log=True,
        ).iterations
        for cache in (False, True)
    ]
    assert logs[0]["prefill_tokens"].tolist() == [8, 0, 0, 5, 0]
    assert logs[1]["prefill_tokens"].tolist() == [8, 0, 0, 3, 0]
