"""The scheduler model beside vLLM's own scheduler, iteration by iteration."""

# ruff: noqa: ANN401 - vLLM's objects, and modules that import it

import base64
import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.engines.scheduler.model import advance
from tuner.engines.scheduler.state import NO_NOISE, StepLaw, new_requests, new_scheduler
from tuner.engines.seam import ITERATION, IterationLog

pytestmark = pytest.mark.vllm

Arrival = tuple[int, int, int]
"""Iteration in which it arrives, prompt tokens, output tokens."""

COMPARED = (
    *("decode_seqs", "prefill_seqs", "prefill_tokens", "context_tokens"),
    *("running", "waiting", "kv_blocks_used", "preemptions", "recomputed_tokens"),
)

TRAFFIC = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 200), st.integers(1, 20)),
    min_size=1,
    max_size=25,
).map(sorted)


class Vllm:
    """vLLM's schedulers."""

    def __init__(self) -> None:
        self.lone: Any = importlib.import_module("tests.support.lone_scheduler")
        self._configs: dict[int, Any] = {}

    def config(self, interval: int) -> Any:
        if interval not in self._configs:
            self._configs[interval] = self.lone.configured(
                max_num_seqs=8, max_num_batched_tokens=128, prefill_schedule_interval=interval
            )
        return self._configs[interval]

    def interval(self, asked: int) -> int:
        """Return the interval that this vLLM keeps to."""
        from tuner.engines.vllm.config import prefill_interval  # noqa: PLC0415 - imports vLLM

        return prefill_interval(self.config(asked))

    def play(self, traffic: list[Arrival], *, interval: int, blocks: int) -> IterationLog:
        lone, config = self.lone, self.config(interval)
        scheduler = lone.scheduler_of(lone.live.LiveScheduler, config, blocks=blocks)
        scheduler.take_log()
        coming, now = list(enumerate(traffic)), 0
        while coming or scheduler.has_requests():
            if not scheduler.has_requests():
                now = max(now, coming[0][1][0])
            while coming and coming[0][1][0] <= now:
                row, (_, prompt, tokens) = coming.pop(0)
                lone.add(scheduler, str(row), prompt=prompt, tokens=tokens)
            lone.step(scheduler)
            now += 1
        return np.frombuffer(base64.b64decode(scheduler.take_log().rows), ITERATION)


@pytest.fixture(scope="module")
def vllm() -> Vllm:
    return Vllm()


def model(traffic: list[Arrival], *, interval: int, blocks: int) -> IterationLog:
    """Play the same in the model. An iteration takes a second; vLLM keeps one block for itself."""
    arrivals, prompts, tokens = (np.array(column) for column in zip(*traffic, strict=True))
    scheduler = new_scheduler(
        max_num_seqs=8,
        max_num_batched_tokens=128,
        block_size=16,
        kv_blocks=blocks - 1,
        reserves_prompts=True,
        prefill_schedule_interval=interval,
        rows=len(traffic),
        log_length=10_000,
    )
    scheduler.requests[:] = new_requests(arrivals.astype(float), prompts, tokens)
    scheduler.state["rows"] = len(traffic)
    advance(scheduler, StepLaw(np.ones(9), 0.0, 0.0, 0.0, 0.0), NO_NOISE, np.inf, False)
    return scheduler.log[: scheduler.state["logged"][0]]


@pytest.mark.parametrize("blocks", [4000, 30], ids=["roomy", "cramped"])
@pytest.mark.parametrize("interval", [1, 2, 8])
@settings(max_examples=25)
@given(traffic=TRAFFIC)
def test_the_model_schedules_as_vllm_does(
    vllm: Vllm, interval: int, blocks: int, traffic: list[Arrival]
) -> None:
    here = vllm.play(traffic, interval=interval, blocks=blocks)
    ours = model(traffic, interval=vllm.interval(interval), blocks=blocks)
    for name in COMPARED:
        assert ours[name].tolist() == here[name].tolist(), name
