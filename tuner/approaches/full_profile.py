"""Continuous batching with every argument of a serving profile."""

from tuner.approaches.seam import Approach, Setup, Site
from tuner.engines.seam import Engine


async def _start(site: Site, setup: Setup) -> Engine:
    return await site.continuous(max_num_seqs=setup.tuned, of_profile=True)


APPROACH = Approach("profile", "the whole profile", _start)
