"""A worker process behind queues, in front of a synchronous engine: one request at a time."""

from tuner.engines.seam import Engine
from tuner.engines.workers.seam import Approach, Batching, Setup, Testbed


async def _start(testbed: Testbed, _setup: Setup) -> Engine:
    return await testbed.workers(1, Batching())


APPROACH = Approach("worker", "one worker", _start)
