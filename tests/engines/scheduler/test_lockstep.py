"""The scheduler model beside vLLM's own scheduler, iteration by iteration."""

# ruff: noqa: ANN401 - vLLM's objects, and modules that import it

import base64
import importlib
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.engines.scheduler.model import advance
from tuner.engines.scheduler.state import NO_NOISE, StepLaw, new_requests, new_scheduler
from tuner.engines.seam import ITERATION, IterationLog

pytestmark = pytest.mark.vllm

CASES = int(os.environ.get("TUNER_LOCKSTEP_CASES", "100"))
"""Of each kind."""

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
        self._configs: dict[tuple[int, bool], Any] = {}

    def config(self, interval: int, *, is_async: bool) -> Any:
        if (interval, is_async) not in self._configs:
            config = self.lone.configured(
                max_num_seqs=8, max_num_batched_tokens=128, prefill_schedule_interval=interval
            )
            config.scheduler_config.async_scheduling = is_async
            self._configs[interval, is_async] = config
        return self._configs[interval, is_async]

    def interval(self, asked: int) -> int:
        """Return the interval that this vLLM keeps to."""
        from tuner.engines.vllm.config import prefill_interval  # noqa: PLC0415 - imports vLLM

        return prefill_interval(self.config(asked, is_async=False))

    def play(
        self, traffic: list[Arrival], *, interval: int, blocks: int, is_async: bool
    ) -> IterationLog:
        """Run the traffic in the order of vLLM's EngineCore: with asynchronous scheduling it
        schedules a second batch before it waits for the first. A batch takes a second."""
        lone, config = self.lone, self.config(interval, is_async=is_async)
        scheduler = lone.scheduler_of(lone.live.LiveScheduler, config, blocks=blocks)
        scheduler.take_log()
        coming = deque(enumerate(traffic))
        under_way = deque[tuple[float, Any]]()
        now_s = busy_until_s = 0.0
        while coming or under_way or scheduler.has_requests():
            while coming and coming[0][1][0] <= now_s:
                row, (_, prompt, tokens) = coming.popleft()
                lone.add(scheduler, str(row), prompt=prompt, tokens=tokens)
            if scheduler.has_requests():
                batch = lone.schedule(scheduler)
                if batch.output.total_num_scheduled_tokens:
                    busy_until_s = max(now_s, busy_until_s) + 1
                under_way.append((busy_until_s, batch))
                if len(under_way) < 1 + is_async:
                    continue
            if under_way:
                end_s, batch = under_way.popleft()
                now_s = max(now_s, end_s)
                lone.compute(scheduler, batch)
            else:
                now_s = coming[0][1][0]
        return np.frombuffer(base64.b64decode(scheduler.take_log().rows), ITERATION)


@pytest.fixture(scope="module")
def vllm() -> Iterator[Vllm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")  # two batches under way
        yield Vllm()


def model(traffic: list[Arrival], *, interval: int, blocks: int, is_async: bool) -> IterationLog:
    """Play the same in the model. An iteration takes a second; vLLM keeps one block for itself."""
    arrivals, prompts, tokens = (np.array(column) for column in zip(*traffic, strict=True))
    scheduler = new_scheduler(
        max_num_seqs=8,
        max_num_batched_tokens=128,
        block_size=16,
        kv_blocks=blocks - 1,
        async_scheduling=is_async,
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
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@settings(max_examples=CASES)
@given(traffic=TRAFFIC)
def test_the_model_schedules_as_vllm_does(
    vllm: Vllm, is_async: bool, interval: int, blocks: int, traffic: list[Arrival]
) -> None:
    here = vllm.play(traffic, interval=interval, blocks=blocks, is_async=is_async)
    ours = model(traffic, interval=vllm.interval(interval), blocks=blocks, is_async=is_async)
    for name in COMPARED:
        assert ours[name].tolist() == here[name].tolist(), name
