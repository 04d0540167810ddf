"""A worker process behind queues, in front of a synchronous engine: one request at a time."""

from tuner.engines.seam import Engine
from tuner.engines.workers.seam import Approach, Batching, Setup, Site


async def _start(site: Site, _setup: Setup) -> Engine:
    return await site.workers(1, Batching())


APPROACH = Approach("worker", "one worker", _start)
