"""A sender of requests that are due is not held up, and where time is virtual nobody else is."""

import asyncio
import gc
import os

import pytest

from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.replay.replay import sending_priority
from tuner.system import cores


def state() -> tuple[bool, int, set[int]]:
    """Return whether garbage is collected, and how and where we run."""
    return gc.isenabled(), os.sched_getscheduler(0), os.sched_getaffinity(0)


def test_a_sender_goes_first_on_its_own_core_and_all_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "OWN_CORE_FROM", 2)
    before = state()
    loop = asyncio.new_event_loop()
    with sending_priority(loop):
        collects, policy, mask = state()
        assert not collects
        assert policy in {os.SCHED_RR | os.SCHED_RESET_ON_FORK, before[1]}  # if it may
        assert mask == {max(before[2])}
    loop.close()
    assert state() == before


def test_on_virtual_time_nothing_can_be_late_and_nothing_is_changed() -> None:
    before = state()
    loop = VirtualTimeLoop()
    with sending_priority(loop):
        assert state() == before
    loop.close()
