"""The simulated engine behind the seam. An iteration takes one second unless said."""

import asyncio
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.engines.conftest import generate
from tuner.engines.scheduler.model import advance
from tuner.engines.scheduler.state import NO_NOISE, new_requests, new_scheduler
from tuner.engines.seam import Engine, EngineRequest, Reply, Starter
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World, WorldKv, WorldNoise, WorldStep, step_law

CALM_WORLD = World(
    step=WorldStep(a=1.0), kv=WorldKv(blocks=100, block_size=4), budget=50, engine_start=60.0
)
NOISY_WORLD = replace(
    CALM_WORLD,
    noise=WorldNoise(
        sigma_iter=0.1,
        sigma_drift=0.1,
        sigma_start=0.1,
        stall_rate=0.1,
        stall_mean=0.5,
        episode_rate=0.01,
        episode_mult=2.0,
    ),
)


async def started(world: World = CALM_WORLD, *, max_num_seqs: int = 8) -> Engine:
    starter: Starter = SimStarter(world)
    return await starter.start(max_num_seqs=max_num_seqs)


async def served(engine: Engine, prompt: int, output: int) -> Reply:
    return await generate(engine, EngineRequest(range(prompt), output))


async def served_all(engine: Engine, requests: Sequence[tuple[float, int, int]]) -> list[Reply]:
    """Send requests in their order, also those of the same time."""
    begin_s = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for at_s, prompt, output in requests:
            await asyncio.sleep(begin_s + at_s - asyncio.get_running_loop().time())
            tasks.append(group.create_task(served(engine, prompt, output)))
    return [task.result() for task in tasks]


async def replies_of(world: World, starts: int = 1) -> list[list[float]]:
    starter = SimStarter(world)
    result = []
    for _ in range(starts):
        engine = await starter.start(max_num_seqs=8)
        begin_s = asyncio.get_running_loop().time()
        reply = await served(engine, 1, 300)
        result.append([at_s - begin_s for at_s in reply.seen_s])
        await engine.stop()
    return result


def test_noise_is_the_same_in_every_run_and_new_at_every_start() -> None:
    first, second = run(replies_of(NOISY_WORLD, starts=2))
    assert first != second
    assert run(replies_of(NOISY_WORLD)) == [first]
    assert run(replies_of(replace(NOISY_WORLD, seed=2))) != [first]


TRAFFIC = st.lists(
    st.tuples(st.integers(0, 40).map(lambda half: half / 2), st.integers(1, 60), st.integers(1, 9)),
    min_size=1,
    max_size=20,
).map(sorted)


@given(traffic=TRAFFIC, max_num_seqs=st.integers(1, 5), late=st.booleans())
def test_one_by_one_or_all_at_once_the_times_are_the_same(
    traffic: list[tuple[float, int, int]], max_num_seqs: int, late: bool
) -> None:
    """The engine and the twin are one model: the same trace, the same times to the last bit."""
    step = WorldStep(a=0.5, b=0.125, c=0.0625, d=0.03125, async_release=late)
    world = World(step=step, kv=WorldKv(blocks=20, block_size=4), budget=16, engine_start=0.0)

    async def main() -> list[Reply]:
        return await served_all(await started(world, max_num_seqs=max_num_seqs), traffic)

    scheduler = new_scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=16,
        block_size=4,
        kv_blocks=20,
        async_scheduling=late,
        rows=len(traffic),
    )
    arrival_s, inputs, outputs = (np.array(column) for column in zip(*traffic, strict=True))
    scheduler.requests[:] = new_requests(arrival_s, inputs, outputs)
    scheduler.state["rows"] = len(traffic)
    advance(scheduler, step_law(step, max_num_seqs), NO_NOISE, np.inf, False)
    replies = run(main())
    assert [reply.last_s for reply in replies] == scheduler.requests["last_token_s"].tolist()
    assert [reply.first_s for reply in replies] == scheduler.requests["first_token_s"].tolist()
