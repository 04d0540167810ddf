"""Two such workers on one device, with half of its memory each."""

from tuner.engines.seam import Engine
from tuner.engines.workers.seam import Approach, Batching, Setup, Testbed


async def _start(testbed: Testbed, _setup: Setup) -> Engine:
    return await testbed.workers(2, Batching())


APPROACH = Approach("two-workers", "two workers", _start)
