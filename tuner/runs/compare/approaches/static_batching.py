"""A worker that waits for a batch, and answers when its slowest request is done."""

from tuner.engines.seam import Engine
from tuner.engines.workers.seam import Approach, Setup, Testbed


async def _start(testbed: Testbed, setup: Setup) -> Engine:
    return await testbed.workers(1, setup.static)


APPROACH = Approach("static", "static batching", _start)
