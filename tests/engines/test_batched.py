"""Static batching over any engine, on virtual time."""

import asyncio

import pytest

from tests.engines.conftest import generate_all, request, world
from tuner.engines.batched import Batched, BatchedStarter, Batching
from tuner.engines.seam import Reply
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.errors import EngineError

WAIT_S = 0.5


async def started(size: int) -> Batched:
    starter = BatchedStarter(SimStarter(world(blocks=300, block_size=128)), Batching(size, WAIT_S))
    return await starter.start(max_num_seqs=size)


async def served(engine: Batched, *outputs: int) -> list[Reply]:
    requests = [request(n, prompt=20, output=tokens) for n, tokens in enumerate(outputs)]
    return await generate_all(engine, *requests)


def test_a_batch_is_answered_at_once_when_its_slowest_is_done() -> None:
    async def main() -> None:
        engine = await started(3)
        replies = await served(engine, 5, 60, 20, 9)
        assert [reply.output_tokens for reply in replies] == [5, 60, 20, 9]
        assert len({reply.seen_s[0] for reply in replies[:3]}) == 1
        assert replies[0].last_s < replies[2].last_s < replies[1].last_s == replies[1].seen_s[0]
        last = replies[3]  # nobody fills its batch, whose time has passed meanwhile
        assert last.scheduled_s == pytest.approx(max(replies[0].seen_s[0], last.queued_s + WAIT_S))
        assert (await engine.iterations())["decode_seqs"].max() == 3

    run(main())


def test_what_nobody_waits_for_is_not_begun_and_a_batch_goes_on() -> None:
    async def main() -> None:
        engine, loop = await started(2), asyncio.get_running_loop()
        tasks = [loop.create_task(served(engine, tokens)) for tokens in (50, 900, 7, 7)]
        await asyncio.sleep(0.05)
        for task in tasks[1:]:
            task.cancel()
        (reply,) = await tasks[0]
        assert reply.output_tokens == 50
        await engine.prepare(max_num_seqs=2)
        assert len(await engine.iterations()) == 0
        await engine.stop()
        with pytest.raises(EngineError, match="stopped"):
            await served(engine, 1)

    run(main())
