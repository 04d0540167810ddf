"""vLLM with all but a model: its own processes, scheduler and front end as on a fast device."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.conftest import generate_all, request
from tuner.engines.seam import ArgumentValue, Engine, IterationLog, Reply
from tuner.engines.vllm.start import VllmStarter, hollow
from tuner.replay.plan import PlannedRequest
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule, replay
from tuner.replay.soundness import flaws_of
from tuner.traffic.slo import Slo

pytestmark = pytest.mark.vllm

STEP_S = 0.02

HOLLOW = hollow(step_s=STEP_S).arguments
REAL: dict[str, ArgumentValue] = {
    "model": "tuner:tiny",
    "gpu_memory_utilization": 0.1,
    "worker_cls": "tests.support.async_worker.AsyncWorker",
}


class _Asynchronous(VllmStarter):
    """Schedules ahead, as on a GPU: vLLM's platform for CPUs sets no more than this word."""

    def _configure(self, max_num_seqs: int) -> Any:  # noqa: ANN401 - with vLLM's own
        found = super()._configure(max_num_seqs)
        found.config.scheduler_config.async_scheduling = True
        assert found.config.max_concurrent_batches == 2
        return found


@pytest.mark.parametrize("arguments", [HOLLOW, REAL], ids=["hollow", "a model"])
def test_an_engine_that_schedules_ahead_logs_every_token_once_and_changes_limits_after_a_cut(
    arguments: dict[str, ArgumentValue], tmp_path: Path
) -> None:
    """vLLM's EngineCore with two batches under way. 12 requests of 10 tokens on 4 slots: there is
    always work, so that the rows tile the time."""

    async def main() -> tuple[list[Reply], IterationLog]:
        engine = await _Asynchronous(arguments, log=tmp_path / "vllm.log").start(max_num_seqs=8)
        try:
            assert engine.facts.arguments["async_scheduling"] is True
            await cut(engine)
            await engine.set_limits(max_num_seqs=4, max_num_batched_tokens=64)
            await engine.reset_prefix_cache()
            await engine.take_iterations()
            replies = await generate_all(
                engine, *(request(n, prompt=10, output=10) for n in range(12))
            )
            return replies, await engine.take_iterations()
        finally:
            await engine.stop()

    replies, log = asyncio.run(main())
    assert [one.output_tokens for one in replies] == [10] * 12
    assert log["prefill_tokens"].sum() == 12 * 10
    assert log["decode_seqs"].sum() == 12 * 9
    assert log["running"].max() == 4
    np.testing.assert_allclose(log["start_s"][1:], (log["start_s"] + log["duration_s"])[:-1])
    if arguments is HOLLOW:  # batches do not overtake their device
        assert np.median(log["duration_s"]) >= 0.9 * STEP_S


async def cut(engine: Engine) -> None:
    """Abort all while two batches are under way."""
    replies = [Reply() for _ in range(8)]
    tasks = [
        asyncio.create_task(engine.generate(request(n, prompt=10, output=1000), reply))
        for n, reply in enumerate(replies)
    ]
    while not any(one.output_tokens for one in replies):  # noqa: ASYNC110 - a reply tells nobody
        await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.quiet
def test_ten_thousand_tokens_a_second_are_sent_and_read_in_time(tmp_path: Path) -> None:
    """32 sequences, an iteration each 3.2 ms, for six seconds: as if a GPU had served them."""
    plan = [PlannedRequest(row, row * 0.001, [16 + row % 900] * 40, 600) for row in range(96)]

    async def main() -> tuple[Engine, Replay]:
        starter = _Asynchronous(hollow(step_s=0.0032).arguments, log=tmp_path / "vllm.log")
        engine = await starter.start(max_num_seqs=32)
        try:
            found = await replay(
                plan,
                engine,
                max_num_seqs=32,
                scored_from_s=0.0,
                window_s=2.0,
                cut_rule=CutRule(Slo(), floor=0.0),
            )
        finally:
            await engine.stop()
        return engine, found

    engine, found = asyncio.run(main())
    tokens = sum(one.output_tokens for one in found.records)
    busy_s = float(found.iterations["duration_s"].sum())
    assert tokens == 57_600
    assert tokens / busy_s > 9_000  # three times 32 begin and end together
    assert not flaws_of(found, replace(engine.facts, device={"kind": "gpu", "name": "as if"}))
