"""Worker processes behind queues: what they report, and how they end."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.engines.conftest import generate, request
from tests.support.processes import cores, lives
from tuner.engines.seam import ArgumentValue, Reply
from tuner.engines.vllm.start import VllmStarter
from tuner.engines.workers import Batching, Workers, start_workers
from tuner.errors import EngineError

pytestmark = pytest.mark.vllm


def starter(log: Path, **changes: ArgumentValue) -> VllmStarter:
    base: dict[str, ArgumentValue] = {
        "model": "tuner:tiny",
        "max_model_len": 1024,
        "max_num_batched_tokens": 512,
    }
    return VllmStarter({**base, **changes}, log=log)


@dataclass(frozen=True, slots=True)
class Batcher:
    """A worker that makes batches of three, and the loop that it lives on."""

    runner: asyncio.Runner
    engine: Workers
    process: int


@pytest.fixture(scope="module")
def batcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batcher]:
    log, others = tmp_path_factory.mktemp("workers") / "vllm.log", cores()
    with asyncio.Runner() as runner:
        engine = runner.run(start_workers(starter(log), 1, Batching(3, 0.5), log=log))
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
    short, slowest, middle = (reply.seen_s[-1] - reply.last_s for reply in replies)
    assert slowest < middle < short
    for reply in replies:
        assert len(reply.seen_s) == 1
        assert reply.first_s < reply.last_s < reply.seen_s[0]
    log = batcher.runner.run(engine.iterations())
    assert log["decode_seqs"].tolist() == [3]
    assert log["start_s"][0] < replies[1].first_s
    assert len(batcher.runner.run(engine.iterations())) == 0


@pytest.mark.alone
def test_a_batch_that_does_not_fill_leaves_after_its_time(batcher: Batcher) -> None:
    async def main() -> float:
        reply = await generate(batcher.engine, request(1, prompt=20, output=5))
        return reply.seen_s[-1] - reply.last_s

    assert batcher.runner.run(main()) < 0.5
    log = batcher.runner.run(batcher.engine.iterations())
    assert log["decode_seqs"].tolist() == [1]


@pytest.mark.alone
def test_what_nobody_waits_for_any_more_is_not_served(batcher: Batcher) -> None:
    engine = batcher.engine

    async def main() -> np.ndarray[tuple[int], np.dtype[np.void]]:
        asked = [request(n, prompt=20, output=200) for n in range(30)]
        waiting = [asyncio.create_task(generate(engine, one)) for one in asked]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await engine.prepare()
        return await engine.iterations()

    assert batcher.runner.run(main())["decode_seqs"].sum() < 30


@pytest.mark.alone
def test_a_worker_that_is_killed_fails_all_who_wait(batcher: Batcher) -> None:
    engine = batcher.engine

    async def main() -> None:
        waiting = asyncio.create_task(generate(engine, request(1, prompt=20, output=900)))
        await asyncio.sleep(0)
        os.kill(batcher.process, signal.SIGKILL)
        with pytest.raises(EngineError, match="SIGKILL"):
            await waiting
        with pytest.raises(EngineError, match="SIGKILL"):
            await engine.prepare()

    batcher.runner.run(main())
    batcher.runner.run(engine.stop())
    assert not lives(batcher.process)


@pytest.mark.long
def test_two_workers_that_do_not_fit_say_why_and_leave_nothing(tmp_path: Path) -> None:
    """One has room for a request of 1,024 tokens (6 MiB), half of it has not."""
    before, log = cores(), tmp_path / "log"
    small = starter(log, kv_cache_memory_bytes=10 << 20)
    with pytest.raises(EngineError, match="did not start") as refused:
        asyncio.run(start_workers(small, 2, Batching(), log=log))
    assert "kv_cache_memory_bytes" in refused.value.hint
    assert cores() == before


def test_no_worker_survives_a_start_that_is_cancelled(tmp_path: Path) -> None:
    before, log = cores(), tmp_path / "log"

    async def main() -> None:
        start = asyncio.create_task(start_workers(starter(log), 2, Batching(), log=log))
        while len(cores() - before) < 1:  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.01)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert cores() == before

    asyncio.run(main())
