"""The scheduler model on cases that fit in the head: an iteration takes one second unless said."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines.scheduler.model import abort, advance, let_go
from tuner.engines.scheduler.state import (
    ABORTED,
    FINISHED,
    NO_NOISE,
    REACHED,
    Records,
    Scheduler,
    StepLaw,
    new_requests,
    new_scheduler,
)
from tuner.engines.seam import IterationLog

SECOND = StepLaw(np.ones(99), 0.0, 0.0, 0.0, 0.0)
Lengths = tuple[float, int, int]
"""Arrival, prompt tokens, output tokens."""


def scheduler_of(  # noqa: PLR0913 - the engine's arguments, with values that never bind
    requests: Sequence[Lengths],
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 1000,
    kv_blocks: int = 1000,
    block_size: int = 1,
    async_scheduling: bool = False,
    reserves_prompts: bool = False,
    log_length: int = 10_000,
) -> Scheduler:
    arrival_s, inputs, outputs = (np.array(column) for column in zip(*requests, strict=True))
    scheduler = new_scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        kv_blocks=kv_blocks,
        async_scheduling=async_scheduling,
        reserves_prompts=reserves_prompts,
        rows=len(requests),
        log_length=log_length,
    )
    scheduler.requests[:] = new_requests(arrival_s.astype(float), inputs, outputs)
    scheduler.state["rows"] = len(requests)
    return scheduler


def play(scheduler: Scheduler, law: StepLaw = SECOND) -> tuple[Records, IterationLog]:
    """Run to the end."""
    assert advance(scheduler, law, NO_NOISE, np.inf, False) == REACHED
    return scheduler.requests, scheduler.log[: scheduler.state["logged"][0]]


def test_a_request_alone_takes_one_iteration_per_token() -> None:
    requests, log = play(scheduler_of([(5, 10, 3)]))
    assert requests["scheduled_s"].tolist() == [5]
    assert requests["first_token_s"].tolist() == [6]
    assert requests["last_token_s"].tolist() == [8]
    assert log["prefill_tokens"].tolist() == [10, 0, 0]
    assert log["prefill_seqs"].tolist() == [1, 0, 0]
    assert log["decode_seqs"].tolist() == [0, 1, 1]
    assert log["context_tokens"].tolist() == [0, 10, 11]
    assert log["kv_blocks_used"].tolist() == [10, 11, 12]
    assert log["start_s"].tolist() == [5, 6, 7]


def test_aborted_requests_leave_slot_and_blocks_to_others() -> None:
    scheduler = scheduler_of([(0, 4, 9), (0, 4, 9), (0, 4, 1)], max_num_seqs=1, kv_blocks=14)
    advance(scheduler, SECOND, NO_NOISE, 2.5, False)
    abort(scheduler, 0)
    abort(scheduler, 1)
    requests, _ = play(scheduler)
    assert requests["status"].tolist() == [ABORTED, ABORTED, FINISHED]
    assert requests["generated"].tolist() == [2, 0, 1]
    assert requests["scheduled_s"][2] == 3
    assert scheduler.state["free_blocks"] == 14


REQUESTS = st.lists(
    st.tuples(st.integers(0, 30).map(float), st.integers(1, 40), st.integers(1, 10)),
    min_size=1,
    max_size=25,
).map(sorted)


LIMITS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(4, 40),
        "kv_blocks": st.integers(13, 40),
        "async_scheduling": st.booleans(),
        "reserves_prompts": st.booleans(),
    }
)


@given(requests=REQUESTS, limits=LIMITS)
def test_whatever_the_traffic_no_limit_is_broken_and_every_token_comes_out(
    requests: list[Lengths], limits: dict[str, int]
) -> None:
    scheduler = scheduler_of(requests, block_size=4, **limits)  # type: ignore[arg-type]
    done, log = play(scheduler)
    assert (done["generated"] == done["output_length"]).all()
    assert (log["running"] <= limits["max_num_seqs"]).all()
    assert (log["decode_seqs"] + log["prefill_tokens"] <= limits["max_num_batched_tokens"]).all()
    assert (log["decode_seqs"] + log["prefill_seqs"] >= 1).all()
    assert (log["kv_blocks_used"] <= limits["kv_blocks"]).all()
    computed = log["prefill_tokens"].sum() + log["decode_seqs"].sum()
    needed = done["input_length"].sum() + done["output_length"].sum() - len(requests)
    lost = log["recomputed_tokens"].sum()
    if limits["async_scheduling"]:  # preempted with its last token under way, it computes no more
        assert needed <= computed <= needed + lost
        assert log["preemptions"].sum() >= done["preemptions"].sum()
    else:
        assert computed == needed + lost
        assert log["preemptions"].sum() == done["preemptions"].sum()
    assert (np.diff(done["scheduled_s"]) >= 0).all()
    let_go(scheduler.state[0], scheduler.requests, scheduler.running)
    assert scheduler.state["free_blocks"] == limits["kv_blocks"]


@given(requests=REQUESTS, limits=LIMITS, until=st.floats(1, 200))
def test_fast_forwarding_over_iterations_gives_the_times_of_one_by_one(
    requests: list[Lengths], limits: dict[str, int], until: float
) -> None:
    """Without a log to write the model hurries; to the last bit that must not show."""
    law = StepLaw(np.array([0.3, 0.31, 0.32, 0.35, 0.4, 0.5, 0.7]), 0.01, 0.001, 0.1, 0.0007)
    result = []
    for log_length in (10_000, 0):
        scheduler = scheduler_of(
            requests,
            block_size=4,
            log_length=log_length,
            **limits,  # type: ignore[arg-type]
        )
        for end_s in (until, np.inf):
            assert advance(scheduler, law, NO_NOISE, end_s, False) == REACHED
        result.append((scheduler.requests.tobytes(), scheduler.state[0]))
    (one_by_one, slow), (at_once, fast) = result
    assert one_by_one == at_once
    for total in ("now", "recomputed_tokens", "most_running"):
        assert slow[total] == fast[total]
    assert fast["busy_s"] == pytest.approx(slow["busy_s"])
