"""What the doctor makes of logs and pairs that are as they should be, and of others."""

import numpy as np
import pytest

from tuner.engines.checks.engine import (
    Burst,
    difference,
    front_end,
    log_checks,
    same_engine,
    stairs,
)
from tuner.engines.seam import ITERATION, EngineRequest, IterationLog, Reply


def log_of(*rows: tuple[float, int, int, int]) -> IterationLog:
    """Return rows of (duration, decode_seqs, prefill_seqs, prefill_tokens) that tile the time."""
    log = np.zeros(len(rows), ITERATION)
    for field, column in zip(
        ("duration_s", "decode_seqs", "prefill_seqs", "prefill_tokens"),
        zip(*rows, strict=True),
        strict=True,
    ):
        log[field] = column
    log["start_s"] = np.concatenate([[0.0], np.cumsum(log["duration_s"])[:-1]])
    return log


def burst(log: IterationLog) -> Burst:
    """Two requests of 10 tokens each that get 3: the last one at 0.4 s."""
    requests = [EngineRequest(name, [5] * 10, 3) for name in "ab"]
    replies = [Reply(output_tokens=3, output_s=[0.1, 0.2, 0.4]) for _ in requests]
    return Burst(requests, replies, log)


TWO = ((0.1, 0, 2, 20), (0.1, 2, 0, 0), (0.2, 2, 0, 0))


def statuses(one: Burst) -> list[str]:
    return [check.status for check in log_checks(one)]


def test_a_log_that_tiles_the_time_and_has_every_token_passes() -> None:
    assert statuses(burst(log_of(*TWO))) == ["PASS", "PASS"]


def test_a_log_that_misses_more_than_a_hundredth_of_the_busy_time_fails() -> None:
    log = log_of(*TWO)
    log["duration_s"][2] = 0.19
    assert statuses(burst(log)) == ["FAIL", "PASS"]


def test_a_log_that_lost_a_token_fails() -> None:
    log = log_of(*TWO)
    log["decode_seqs"][2] = 1
    assert statuses(burst(log)) == ["PASS", "FAIL"]


def test_a_preempted_sequence_computes_again_and_that_is_no_loss() -> None:
    """One sequence loses 11 computed tokens; its newest counts as prompt when it comes back."""
    log = log_of(TWO[0], (0.1, 2, 0, 0), (0.2, 1, 1, 12))
    log["preemptions"][2], log["recomputed_tokens"][2] = 1, 11
    assert statuses(burst(log)) == ["PASS", "PASS"]


def test_the_stairs_of_padded_batches_are_told() -> None:
    log = log_of((0.010, 8, 0, 0), (0.014, 9, 0, 0), (0.014, 16, 0, 0), (0.018, 17, 0, 0))
    assert stairs(log).said == "f(8) 10.00 ms, f(9) 14.00 ms, f(16) 14.00 ms, f(17) 18.00 ms"
    assert stairs(log[:3]).status == "SKIP"


@pytest.mark.parametrize(("slower", "status"), [(1.0, "PASS"), (1.09, "PASS"), (1.11, "FAIL")])
def test_a_live_cap_takes_as_long_as_a_fresh_engine(slower: float, status: str) -> None:
    fresh = log_of((0.010, 8, 0, 0), (0.050, 7, 1, 40))
    live = log_of((0.010 * slower, 8, 0, 0), (0.050, 7, 1, 40))
    assert [one.status for one in same_engine(live, fresh, cap=8)] == [status, "PASS"]
    assert {one.status for one in same_engine(live, fresh, cap=4)} == {"SKIP"}


@pytest.mark.parametrize(
    ("merged", "fails", "status"), [(0, True, "PASS"), (1, True, "FAIL"), (1, False, "PASS")]
)
def test_a_front_end_that_reads_too_late_fails_where_a_gpu_would_need_it(
    merged: int, status: str, *, fails: bool
) -> None:
    """6 tokens in 0.4 s, of which one or none of each three came with another."""
    one = burst(log_of(*TWO))
    for reply in one.replies:
        reply.merged_outputs, reply.last_token_s = merged, 0.405
    found = front_end("front end", one, fails=fails)
    assert found.status == status
    share = "33.3%" if merged else "0.0%"
    assert found.said == f"p99 5.0 ms behind at 15 tokens/s, {share} of outputs joined"


def test_three_pairs_say_which_difference_is_seen() -> None:
    """Pairs that are apart by nothing, +1 and -1 percent: sd 1 %, times 4.303, by the root of 3."""
    even = np.full(4, 0.010)
    apart = [(even * np.exp(by), even) for by in (0.0, 0.01, -0.01)]
    assert difference(apart).said.startswith("seen from 2.5% of TPOT")


def test_the_attainment_of_pairs_is_of_a_limit_that_nine_of_ten_meet() -> None:
    """Of 20 one is late in each; in one of the six replays a second one is."""
    usual, worse = (np.array([0.010] * (20 - late) + [0.020] * late) for late in (1, 2))
    found = difference([(usual, usual), (usual, worse), (usual, usual)])
    assert found.said.endswith("and 7.2% of attainment on")  # sd of (0, 0.05, 0), by the same
