"""Keeps a request that is due from being delayed in the thread that sends it."""

import gc
import os
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.system import cores


@contextmanager
def sending_priority(loop: AbstractEventLoop) -> Iterator[None]:
    """Keep requests that are due from being delayed in this thread, for the time of the block.

    Garbage collection is off. Where the system lets it, the thread goes before other processes, and
    where there are three cores it has one for itself; the engine keeps its own priority and the
    other cores. On virtual time nothing can be late: there it does nothing.
    """
    if isinstance(loop, VirtualTimeLoop):
        yield
        return
    gc.disable()
    with ExitStack() as undo:
        undo.callback(gc.enable)
        with suppress(OSError, AttributeError):  # not allowed, or not a system that can
            before = os.sched_getscheduler(0), os.sched_getparam(0)
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            undo.callback(os.sched_setscheduler, 0, *before)
        with suppress(OSError, AttributeError):
            mask = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores.split(mask)[0])
            undo.callback(os.sched_setaffinity, 0, mask)
        yield
