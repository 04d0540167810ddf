"""A sender of requests that are due is not held up, and where time is virtual nobody else is."""

import asyncio
import gc
import os

from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.replay.priority import sending_priority


def state() -> tuple[bool, int, int]:
    """Return whether garbage is collected, what is kept out of that, and how we are scheduled."""
    return gc.isenabled(), gc.get_freeze_count(), os.sched_getscheduler(0)


def test_no_garbage_is_collected_while_requests_are_due_and_all_is_undone() -> None:
    before = state()
    loop = asyncio.new_event_loop()
    with sending_priority(loop):
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    loop.close()
    assert state() == before


def test_on_virtual_time_nothing_can_be_late_and_nothing_is_changed() -> None:
    before = state()
    loop = VirtualTimeLoop()
    with sending_priority(loop):
        assert state() == before
    loop.close()
