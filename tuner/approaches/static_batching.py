"""A worker that waits for a batch, and answers when its slowest request is done."""

from tuner.approaches.seam import Approach, Setup, Site
from tuner.engines.seam import Engine


async def _start(site: Site, setup: Setup) -> Engine:
    return await site.workers(1, setup.static)


APPROACH = Approach("static", "static batching", _start)
