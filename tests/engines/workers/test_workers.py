"""Worker processes behind queues: what they report, and how they end."""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.engines.conftest import generate, request
from tests.support.processes import cores, lives
from tuner.engines.seam import ArgumentValue, Engine, Reply, RequestFailedError
from tuner.engines.workers.seam import Batching, Setup
from tuner.engines.workers.vllm import VllmTestbed
from tuner.errors import EngineError
from tuner.replay.measure import Measurement
from tuner.runs.compare.approaches import chosen
from tuner.runs.compare.blocks import Blocks
from tuner.runs.compare.evidence import Comparing
from tuner.runs.compare.load_levels import Level
from tuner.runs.compare.run import Comparison, calibrate
from tuner.runs.compare.settings import CompareSettings
from tuner.runs.journal import create
from tuner.trace.trace import TraceRequest

pytestmark = pytest.mark.vllm

BASE: Mapping[str, ArgumentValue] = {
    "model": "tuner:tiny",
    "max_model_len": 1024,
    "max_num_batched_tokens": 512,
}
QUEUE = 6


def vllm_testbed(log: Path, **changes: int) -> VllmTestbed:
    return VllmTestbed({**BASE, **changes}, None, queue_size=QUEUE, log=log)


@dataclass(frozen=True, slots=True)
class Batcher:
    """A worker that makes batches of three, and the loop that it lives on."""

    runner: asyncio.Runner
    engine: Engine
    worker: int
    """Its process."""


@pytest.fixture(scope="module")
def batcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batcher]:
    log, others = tmp_path_factory.mktemp("workers") / "vllm.log", cores()
    with asyncio.Runner() as runner:
        engine = runner.run(vllm_testbed(log).workers(1, Batching(size=3, wait_s=0.5)))
        (worker,) = cores() - others
        yield Batcher(runner, engine, worker)
        runner.run(engine.stop())


@pytest.mark.alone
def test_a_batch_is_answered_when_its_slowest_is_done(batcher: Batcher) -> None:
    engine = batcher.engine

    async def main() -> list[Reply]:
        outputs = (5, 60, 20)
        asked = [request(n, prompt=20, output=tokens) for n, tokens in enumerate(outputs)]
        return await asyncio.gather(*(generate(engine, one) for one in asked))

    replies = batcher.runner.run(main())
    assert [reply.output_tokens for reply in replies] == [5, 60, 20]
    assert [len(reply.output_s) for reply in replies] == [5, 60, 20]
    held_s = [reply.held_s for reply in replies]
    assert None not in held_s
    short, slowest, middle = (float(held or 0) for held in held_s)
    assert slowest < 0.2 * middle < 0.2 * short
    for reply in replies:
        assert reply.first_token_s == reply.last_token_s
        assert reply.transfer_s is not None
        assert reply.last_token_s is not None
        assert 0 < reply.transfer_s < reply.last_token_s - reply.output_s[0]
        assert reply.output_s == sorted(reply.output_s)
    log = batcher.runner.run(engine.take_iterations())
    assert log["decode_seqs"].max() == 3
    ends = log["start_s"] + log["duration_s"]
    nearest = np.abs(ends[:, None] - np.array(replies[1].output_s)).min(axis=0)
    assert np.median(nearest) < 0.005


@pytest.mark.alone
def test_a_batch_that_does_not_fill_leaves_after_its_time(batcher: Batcher) -> None:
    reply = batcher.runner.run(generate(batcher.engine, request(1, prompt=5, output=2)))
    assert reply.queue_s is not None
    assert 0.45 < reply.queue_s < 5


@pytest.mark.alone
def test_a_queue_that_is_full_refuses_at_once_and_what_nobody_waits_for_is_dropped(
    batcher: Batcher,
) -> None:
    async def main() -> tuple[int, Reply]:
        asked = [request(n, prompt=5, output=500) for n in range(QUEUE + 6)]
        tasks = [asyncio.ensure_future(generate(batcher.engine, one)) for one in asked]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        refused = [task for task in done if isinstance(task.exception(), RequestFailedError)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.engine.reset_prefix_cache()
        assert await batcher.engine.is_idle()
        log = await batcher.engine.take_iterations()
        assert log["decode_seqs"].max() <= 3
        assert len(log) < 3 * 500
        return len(refused), await generate(batcher.engine, request(99, prompt=5, output=3))

    refused, after = batcher.runner.run(main())
    assert refused >= 1
    assert after.output_tokens == 3


@pytest.mark.alone
def test_what_does_not_fit_fails_alone_and_limits_stay(batcher: Batcher) -> None:
    with pytest.raises(RequestFailedError, match="max_model_len is 1024"):
        batcher.runner.run(generate(batcher.engine, request(1, prompt=1000, output=100)))
    with pytest.raises(EngineError, match="keep their limits"):
        batcher.runner.run(batcher.engine.set_limits(max_num_seqs=1, max_num_batched_tokens=512))


@pytest.mark.alone  # and the last of those who share it
def test_when_a_worker_is_killed_everybody_who_waits_is_told_and_nothing_is_left(
    batcher: Batcher,
) -> None:
    async def main() -> list[Reply | BaseException]:
        asked = [request(n, prompt=5, output=500) for n in range(QUEUE)]
        asking = asyncio.gather(
            *(generate(batcher.engine, one) for one in asked), return_exceptions=True
        )
        while await batcher.engine.is_idle():  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.001)
        os.kill(batcher.worker, signal.SIGKILL)
        return await asking

    told = batcher.runner.run(main())
    assert all(isinstance(one, EngineError) for one in told)
    assert {str(one) for one in told} == {"The engine died: the worker was killed by SIGKILL"}
    batcher.runner.run(batcher.engine.stop())
    assert not lives(batcher.worker)


def test_two_workers_that_do_not_fit_say_why(tmp_path: Path) -> None:
    """One has room for a request of 1,024 tokens (6 MiB), half of it has not."""
    before = cores()
    with asyncio.Runner() as runner, pytest.raises(EngineError) as refused:
        runner.run(
            vllm_testbed(tmp_path / "log", kv_cache_memory_bytes=10 << 20).workers(2, Batching())
        )
    assert "vLLM did not start" in str(refused.value)
    assert "kv_cache_memory_bytes" in refused.value.hint
    assert cores() == before


class KillsWorkers:
    """Tells nobody how it goes, and kills the workers of the first replay that has some."""

    def __init__(self) -> None:
        self.spared = cores()
        self.killed = 0
        self.under_way = ""

    def stage(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def believed(self, best: int, agreeing: int, draws: int) -> None: ...
    def measured(self, what: str, measurement: Measurement) -> None: ...

    def trial(self, what: str, _length_s: float) -> None:
        self.under_way = what

    def live(self, _seen: object) -> None:
        if "two workers" in self.under_way and not self.killed:
            workers = cores() - self.spared
            self.killed = len(workers)
            os.kill(min(workers), signal.SIGKILL)


@pytest.mark.faults
@pytest.mark.long
def test_a_worker_that_dies_is_its_approachs_result_and_the_others_go_on(tmp_path: Path) -> None:
    settings = CompareSettings(
        approaches=chosen("two-workers,tuned", has_profile=False),
        levels=(Level("recorded", None),),
        untuned=8,
        window="all",
        step_s=3.0,
        repeats=1,
        budget_s=600.0,
        sweep_share=0.0,
        seed=0,
        trace_block_size=16,
    )
    requests = [TraceRequest(row, 0.2 * row, 20, 10) for row in range(15)]
    comparing = Comparing(create(tmp_path / "run", {}))
    watcher = KillsWorkers()
    place = vllm_testbed(tmp_path / "log")

    async def main() -> None:
        await calibrate(requests, place, settings, comparing, watcher)
        blocks = Blocks(requests, settings, comparing)
        blocks.choose(watcher)
        run = Comparison(blocks, place, comparing, watcher, None)
        await run.run(Setup(8, Batching(4, 0.05), 8, None), elsewhere_s=0.0)

    asyncio.run(main())
    (began, *_) = comparing.journal.of("start")
    comparing.journal.close()
    captured, _uniform = comparing.tables(settings.levels, settings.approaches)
    two, tuned = captured.rows
    assert watcher.killed == 2
    assert began["facts"]["engine"] == "vllm"
    assert two.errors[0].startswith("The engine died: the worker was killed by SIGKILL.")
    assert tuned.errors == ()
    assert tuned.numbers is not None
    assert tuned.numbers.completed == tuned.numbers.requests > 10
    assert cores() == watcher.spared


def test_no_worker_survives_a_start_that_is_cancelled(tmp_path: Path) -> None:
    """As Ctrl-C does it: once the process is there, and once it serves."""
    before = cores()

    async def main() -> None:
        for serving in (False, True):
            log = tmp_path / f"{serving}.log"
            start = asyncio.create_task(vllm_testbed(log).workers(2, Batching()))
            while len(cores() - before) < 1 + serving:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
            assert cores() == before

    asyncio.run(main())
