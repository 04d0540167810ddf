"""Continuous batching with every argument of a serving profile."""

from tuner.engines.seam import Engine
from tuner.engines.workers.seam import Approach, Setup, Testbed


async def _start(testbed: Testbed, setup: Setup) -> Engine:
    assert setup.of_profile is not None  # or it is not chosen
    return await testbed.continuous(max_num_seqs=setup.of_profile, of_profile=True)


APPROACH = Approach("profile", "the whole profile", _start)
