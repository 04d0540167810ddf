"""The log of iterations while several are under way, as on a GPU: driven in the order of vLLM's
EngineCore.step_with_batch_queue, which on a CPU never runs."""

# ruff: noqa: ANN401 - vLLM's objects, and modules that import it

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tuner.engines.page import Page
from tuner.engines.seam import IterationLog

pytestmark = pytest.mark.vllm

DEPTHS = pytest.mark.parametrize(
    ("depth", "runner"), [(1, "V1"), (2, "V1"), (1, "V2"), (2, "V2"), (3, "V2")]
)


@pytest.fixture
def scheduler(lone: Any, depth: int, runner: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    return made(lone, depth, runner, monkeypatch)


@pytest.fixture
def page(lone: Any, scheduler: Any) -> Iterator[Page]:
    with lone.logged(scheduler) as made:
        yield made


def made(
    lone: Any, depth: int, runner: str, monkeypatch: pytest.MonkeyPatch, *, blocks: int = 4000
) -> Any:
    """Return a scheduler for a queue of so many batches: three are those of a pipeline of two
    stages, in which a sequence decodes in every second batch."""
    config = lone.configured()
    # The configuration is made with the first runner, for the second needs Triton: what the
    # scheduler does for each is seen here, the runner itself is not.
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1" if runner == "V2" else "0")
    config.cache_config.num_gpu_blocks = blocks
    config.scheduler_config.async_scheduling = True
    config.parallel_config.pipeline_parallel_size = max(1, depth - 1)
    assert config.max_concurrent_batches == max(2, depth)
    scheduler = lone.scheduler_of(lone.live.LiveScheduler, config, blocks=blocks)
    assert isinstance(scheduler, lone.live.LiveAsyncScheduler)
    return scheduler


class Core:
    """As many batches under way as the queue has room for; the oldest is computed when it is full
    or nothing is left to schedule."""

    def __init__(self, lone: Any, scheduler: Any, depth: int) -> None:
        self._lone, self._scheduler, self._depth = lone, scheduler, depth
        self.queue: deque[Any] = deque()
        self.deepest = 0

    def step(self) -> None:
        if self._scheduler.has_requests():
            batch = self._lone.schedule(self._scheduler)
            self.queue.appendleft(batch)
            self.deepest = max(self.deepest, len(self.queue))
            executed = batch.output.total_num_scheduled_tokens > 0
            if len(self.queue) < self._depth and (executed or self._scheduler.has_requests()):
                return
        if self.queue:
            self._lone.compute(self._scheduler, self.queue.pop())

    def run(self) -> None:
        while self._scheduler.has_requests() or self.queue:
            self.step()


def check_tiles(log: IterationLog) -> None:
    ends = log["start_s"] + log["duration_s"]
    np.testing.assert_allclose(log["start_s"][1:], ends[:-1], atol=1e-6)
    assert (log["duration_s"] > 0).all()


@DEPTHS
def test_every_token_is_logged_once_and_the_rows_tile_the_time(
    lone: Any, scheduler: Any, page: Page, depth: int
) -> None:
    """12 requests of 10 tokens on 8 slots, that get 5 to 16: 14 to prefill each, 114 to decode."""
    for number in range(12):
        lone.add(scheduler, f"r{number}", prompt=10, tokens=5 + number)
    core = Core(lone, scheduler, depth)
    core.run()
    log, _ = page.take()
    assert core.deepest == depth
    assert log["prefill_tokens"].sum() == 12 * 10
    assert log["decode_seqs"].sum() == sum(5 + number - 1 for number in range(12)) == 114
    assert log["running"].max() == 8
    check_tiles(log)
