"""The idle engine is timed on lengths that it has seen."""

from dataclasses import replace

import pytest

from tests.support.builders import request
from tuner.engines.sim.start import SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World, WorldStep
from tuner.replay.probe import PROBES, probe
from tuner.trace.trace import TraceRequest


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
