"""An engine that lives and does not move."""

import asyncio

import pytest

from tests.engines.conftest import request
from tuner.engines.seam import EngineRequest, Reply
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World, WorldKv, WorldNoise, WorldStep
from tuner.errors import StoodStillError


def machine(*, iteration_s: float, hang_at: float = 0.0, hang_len: float = 0.0) -> World:
    return World(
        step=WorldStep(a=iteration_s),
        kv=WorldKv(blocks=1000, block_size=16),
        engine_start=0.0,
        noise=WorldNoise(hang_at=hang_at, hang_len=hang_len),
    )


def served(world: World, *sent: EngineRequest) -> tuple[list[float], float]:
    """Return the stalls while these were served at once, and when all was done."""

    async def main() -> tuple[list[float], float]:
        engine = await SimStarter(world).start(max_num_seqs=8)
        await asyncio.gather(*(engine.generate(one, Reply()) for one in sent))
        done_s = asyncio.get_running_loop().time()
        await engine.stop()
        return engine.stalls.lengths_s, done_s

    return run(main())


def test_an_engine_that_stands_still_for_a_while_is_waited_for_and_noticed() -> None:
    """1,000 iterations of 10 ms, and in between 20 s without one."""
    stalls, done_s = served(
        machine(iteration_s=0.01, hang_at=5.0, hang_len=20.0), request(0, prompt=10, output=1000)
    )
    assert done_s == pytest.approx(30.0, abs=0.1)
    assert stalls == [pytest.approx(20.0, abs=1.0)]


@pytest.mark.parametrize("hang_len", [40.0, 1e6])
def test_one_that_stands_still_for_half_a_minute_is_ended(hang_len: float) -> None:
    async def main() -> float:
        world = machine(iteration_s=0.01, hang_at=5.0, hang_len=hang_len)
        engine = await SimStarter(world).start(max_num_seqs=8)
        both = [
            asyncio.create_task(engine.generate(request(n, prompt=10, output=1000), Reply()))
            for n in range(2)
        ]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert all(isinstance(one, StoodStillError) for one in found)
        with pytest.raises(StoodStillError, match=r"no iteration for 3[01] s with work waiting"):
            await engine.take_iterations()
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(36.0, abs=1.0)


def test_an_engine_is_idle_as_long_as_it_likes() -> None:
    async def main() -> list[float]:
        engine = await SimStarter(machine(iteration_s=0.01)).start(max_num_seqs=8)
        for number in range(80):  # 0.8 s each: none of them is seen to move before it is done
            await engine.generate(request(number, prompt=10, output=80), Reply())
            await asyncio.sleep(10.0)
        return engine.stalls.lengths_s

    assert run(main()) == []


def test_a_long_prompt_brings_no_token_and_is_no_stall() -> None:
    """10,000 tokens in iterations of 2,048, which take 2 s each."""
    world = World(
        step=WorldStep(a=0.01, c=0.001), kv=WorldKv(blocks=1000, block_size=16), engine_start=0.0
    )
    stalls, done_s = served(world, request(0, prompt=10_000, output=2))
    assert not stalls
    assert done_s == pytest.approx(10.0, abs=0.1)


def test_what_takes_long_each_time_is_the_engines_way_from_the_third_time_on() -> None:
    stalls, done_s = served(machine(iteration_s=4.0), request(0, prompt=10, output=20))
    assert len(stalls) == 2
    assert done_s == pytest.approx(80.0, abs=0.1)


def test_the_timeout_grows_with_what_an_iteration_takes() -> None:
    """Of 4 s each: 60 s without one are fewer than twenty of them."""
    world = machine(iteration_s=4.0, hang_at=30.0, hang_len=60.0)
    assert served(world, request(0, prompt=10, output=20))[1] == pytest.approx(140.0, abs=0.1)
