"""Records and iterations become numbers."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import iterations, record, replay_of
from tuner.replay.numbers import measure
from tuner.traffic.slo import Slo

LAX = Slo(ttft_s=100.0)


def test_a_failed_request_counts_as_a_miss_and_has_no_latency() -> None:
    failed = record(row=1, outcome="failed", last_s=None, first_s=None)
    item = measure([replay_of([record(), failed])], LAX)
    assert item.attainment == 0.5
    assert item.goodput_rps == 1 / 10


def test_an_aborted_request_is_good_when_nothing_it_saw_broke_a_limit() -> None:
    aborted: dict[str, Any] = {
        "outcome": "aborted", "last_s": None, "end_s": 2.0, "tpot_s": None,
    }  # fmt: skip
    served = record(**aborted)
    waited = record(row=1, **{**aborted, "first_s": None})
    assert measure([replay_of([served, waited])], Slo(ttft_s=1.5)).attainment == 0.5


def test_of_a_cut_replay_both_bounds_of_the_attainment_are_told() -> None:
    good = record()
    open_ = record(row=1, outcome="cut", last_s=None, tpot_s=None, end_s=1.5)
    lost = record(row=2, outcome="cut", first_s=None, last_s=None, end_s=3.0)
    item = measure(
        [replay_of([good, open_, lost], cut="hopeless", unsent=1, attainment_bound=0.75)],
        Slo(ttft_s=2.0),
    )
    assert (item.requests, item.attainment, item.attainment_bound) == (4, 0.25, 0.75)


def test_of_another_slo_than_it_was_cut_by_a_replay_tells_what_its_requests_leave_open() -> None:
    """Its bound was of that one."""
    late = Slo(ttft_s=0.5)
    lost = replay_of([record()], unsent=3, slo=late, cut="hopeless", attainment_bound=0.3)
    words = [measure([lost], slo) for slo in (late, Slo(ttft_s=2.0))]
    assert [(each.attainment, each.attainment_bound) for each in words] == [(0.0, 0.3), (0.25, 1.0)]
    assert measure([replace(lost, slo=None)], LAX).attainment_bound == 0.3
    assert measure([replay_of([record()], slo=late)], LAX).attainment == 1.0


def test_throughput_counts_what_came_out_in_the_window_whoever_asked() -> None:
    run_in = record(scored=False, planned_s=-1.0, end_s=1.0)
    inside = record(row=1, end_s=3.0)
    after = record(row=2, end_s=11.0, first_s=10.5)
    log = iterations(
        [
            {"start_s": 1.0, "duration_s": 1.0, "decode_seqs": 2, "prefill_tokens": 10},
            {"start_s": 11.0, "duration_s": 1.0, "decode_seqs": 5},
        ]
    )
    item = measure([replay_of([run_in, inside, after], iterations=log)], LAX)
    assert item.requests_per_s == 2 / 10
    assert item.output_tokens_per_s == (2 + 2) / 10  # two decoded, two first tokens


def test_kv_usage_is_weighted_by_time() -> None:
    log = iterations(
        [
            {"start_s": 0, "duration_s": 3.0, "kv_blocks_used": 20},
            {"start_s": 3, "duration_s": 1.0, "kv_blocks_used": 60},
        ]
    )
    usage = measure([replay_of([record()], iterations=log)], LAX).kv_cache_usage
    assert usage is not None
    assert usage.mean == pytest.approx(0.3)
    assert (usage.p99, usage.peak) == (0.6, 0.6)


def test_waiting_is_told_apart_by_what_binds() -> None:
    log = iterations(
        [
            {"start_s": 0, "duration_s": 1.0, "running": 4, "waiting": 2},
            {"start_s": 1, "duration_s": 2.0, "running": 3, "waiting": 2},
            {"start_s": 3, "duration_s": 1.0, "running": 3, "waiting": 0},
            {"start_s": 4, "duration_s": 4.0, "running": 3, "waiting": 2, "decode_seqs": 2,
             "prefill_tokens": 62},
        ]
    )  # fmt: skip
    item = measure([replay_of([record()], iterations=log, token_budget=64)], LAX)
    assert (item.cap_bound_share, item.kv_bound_share) == (0.125, 0.75)
    assert item.token_bound_share == 0.5
