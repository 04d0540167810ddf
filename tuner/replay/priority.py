"""Keeps a request that is due from being delayed in the thread that sends it."""

import gc
import os
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tuner.engines.sim.virtual_time import VirtualTimeLoop


@contextmanager
def sending_priority(loop: AbstractEventLoop) -> Iterator[None]:
    """Keep requests that are due from being delayed in this thread, for the time of the block.

    Garbage collection is off and, where the system lets us, this thread goes before other
    processes. The engine's own priority stays as it is. On virtual time nothing can be late: there
    it does nothing.
    """
    if isinstance(loop, VirtualTimeLoop):
        yield
        return
    before: tuple[int, os.sched_param] | None = None
    gc.collect()
    gc.freeze()
    gc.disable()
    with suppress(OSError, AttributeError):  # not allowed, or not a system that can
        now = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        before = now
    try:
        yield
    finally:
        if before is not None:
            os.sched_setscheduler(0, *before)
        gc.enable()
        gc.unfreeze()
