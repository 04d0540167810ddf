"""Two such workers on one device, with half of its memory each."""

from tuner.approaches.seam import Approach, Batching, Setup, Site
from tuner.engines.seam import Engine


async def _start(site: Site, _setup: Setup) -> Engine:
    return await site.workers(2, Batching())


APPROACH = Approach("two-workers", "two workers", _start)
