"""A worker process behind queues, in front of a synchronous engine: one request at a time."""

from tuner.approaches.seam import Approach, Batching, Setup, Site
from tuner.engines.seam import Engine


async def _start(site: Site, _setup: Setup) -> Engine:
    return await site.workers(1, Batching())


APPROACH = Approach("worker", "one worker", _start)
