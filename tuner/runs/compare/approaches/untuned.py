"""Continuous batching with a ``max_num_seqs`` that nobody has measured."""

from tuner.engines.seam import Engine
from tuner.engines.workers.seam import Approach, Setup, Testbed


async def _start(testbed: Testbed, setup: Setup) -> Engine:
    return await testbed.continuous(max_num_seqs=setup.untuned)


APPROACH = Approach("untuned", "continuous, untuned", _start)
