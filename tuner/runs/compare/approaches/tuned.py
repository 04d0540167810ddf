"""Continuous batching with the ``max_num_seqs`` that was found, and else as untuned."""

from tuner.engines.seam import Engine
from tuner.engines.workers.seam import Approach, Setup, Testbed


async def _start(testbed: Testbed, setup: Setup) -> Engine:
    return await testbed.continuous(max_num_seqs=setup.tuned)


APPROACH = Approach("tuned", "continuous, tuned", _start)
