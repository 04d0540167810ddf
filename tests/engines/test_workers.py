"""Worker processes behind a queue: what they report, and how they end."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.engines.conftest import generate, request
from tests.support.processes import cores, lives
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError

pytestmark = pytest.mark.vllm


def starter(log: Path, workers: int, **changes: ArgumentValue) -> VllmStarter:
    base: dict[str, ArgumentValue] = {
        "model": "tuner:tiny",
        "max_model_len": 1024,
        "max_num_batched_tokens": 512,
    }
    return VllmStarter({**base, **changes}, log, kind="workers", workers=workers)


@pytest.mark.alone
def test_a_worker_serves_one_after_the_other_and_fails_all_who_wait_when_it_is_killed(
    tmp_path: Path,
) -> None:
    others = cores()

    async def main() -> None:
        engine = await starter(tmp_path / "log", 1).start(max_num_seqs=1)
        (worker,) = cores() - others
        outputs = (5, 60, 20)
        wanted = [request(n, prompt=20, output=tokens) for n, tokens in enumerate(outputs)]
        replies = await asyncio.gather(*(generate(engine, each) for each in wanted))
        assert [reply.output_tokens for reply in replies] == [5, 60, 20]
        for before, after in zip(replies, [*replies[1:], None], strict=True):
            assert len(before.seen_s) == 1
            assert before.first_s < before.last_s < before.seen_s[0]
            assert after is None or before.last_s < after.scheduled_s

        waiting = [asyncio.create_task(generate(engine, request(n, prompt=9, output=200)))
                   for n in range(30)]  # fmt: skip
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await engine.prepare()  # what nobody waits for is not served
        assert (await generate(engine, request(1, prompt=9, output=3))).output_tokens == 3

        left = asyncio.create_task(generate(engine, request(1, prompt=20, output=900)))
        await asyncio.sleep(0)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(EngineError, match="SIGKILL"):
            await left
        with pytest.raises(EngineError, match="SIGKILL"):
            await engine.prepare()
        await engine.stop()
        assert not lives(worker)

    asyncio.run(main())


@pytest.mark.long
def test_two_workers_that_do_not_fit_say_why_and_leave_nothing(tmp_path: Path) -> None:
    """One has room for a request of 1,024 tokens (6 MiB), half of it has not."""
    before = cores()
    small = starter(tmp_path / "log", 2, kv_cache_memory_bytes=10 << 20)
    with pytest.raises(EngineError, match="did not start") as refused:
        asyncio.run(small.start(max_num_seqs=1))
    assert "kv_cache_memory_bytes" in refused.value.hint
    assert cores() == before


def test_no_worker_survives_a_start_that_is_cancelled(tmp_path: Path) -> None:
    before = cores()

    async def main() -> None:
        start = asyncio.create_task(starter(tmp_path / "log", 2).start(max_num_seqs=1))
        while len(cores() - before) < 1:  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.01)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert cores() == before

    asyncio.run(main())
