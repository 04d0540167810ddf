"""Probes and the ramp on the simulated engine, on which an iteration takes a second."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tests.support.builders import request
from tuner.engines.seam import Engine, IterationLog
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World, WorldKv, WorldStep
from tuner.errors import EngineError
from tuner.replay.ramp import PROBES, probe, ramp
from tuner.trace.trace import TraceRequest

WORLD = World(step=WorldStep(a=1.0), kv=WorldKv(blocks=4000), engine_start=10.0)
REQUESTS = [TraceRequest(i, float(i), input_length=5 + i, output_length=40) for i in range(10)]


async def started() -> Engine:
    return await SimStarter(WORLD).start(max_num_seqs=8)


async def ramped(engine: Engine, *, length_s: float = 200.0) -> tuple[IterationLog, float]:
    return await ramp(
        REQUESTS,
        engine,
        ceiling=8,
        length_s=length_s,
        tpot_s=1.0,
        prompt=lambda request: range(request.input_length),
    )


def test_every_size_is_visited_on_the_way_up_and_down() -> None:
    async def main() -> None:
        log, begin_s = await ramped(await started())
        assert begin_s == 10
        running = log["running"]
        turns = running[np.flatnonzero(np.diff(running, prepend=0))]
        assert turns[:16].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 1, 2]

    run(main())


def test_it_lasts_as_long_as_asked_and_leaves_the_engine_idle() -> None:
    async def main() -> None:
        engine = await started()
        log, begin_s = await ramped(engine, length_s=33.0)
        assert asyncio.get_running_loop().time() - begin_s == pytest.approx(35, abs=1)
        assert log["start_s"][0] == 0
        await engine.prepare()  # it is idle

    run(main())


def test_an_engine_that_dies_ends_it() -> None:
    async def main() -> None:
        engine = await started()
        task = asyncio.create_task(ramped(engine))
        await asyncio.sleep(20)
        await engine.stop()
        with pytest.raises(EngineError, match="stopped"):
            await task

    run(main())


@pytest.mark.parametrize(("kind", "warm_ups"), [("cpu", 1), ("gpu", PROBES)])
def test_an_accelerator_gets_every_length_twice_and_the_second_time_counts(
    kind: str, warm_ups: int
) -> None:
    sent: list[int] = []

    async def main() -> int:
        engine = await SimStarter(World(step=WorldStep(a=1.0))).start(max_num_seqs=4)
        engine.facts = replace(engine.facts, device={"kind": kind})

        def prompt(item: TraceRequest) -> list[int]:
            sent.append(item.row)
            return [7] * 10

        result, _ = await probe([request(row) for row in range(PROBES)], engine, prompt=prompt)
        return len(result)

    assert run(main()) == PROBES
    assert sent[-PROBES:] == list(range(PROBES))
    assert len(sent) == warm_ups + PROBES
