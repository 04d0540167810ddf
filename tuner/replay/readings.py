"""Readings of the device during other work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np

from tuner.replay.records import DEVICE, DeviceLog

EVERY_S = 1.0
"""More readings would take time from what is measured: each asks a driver in a thread."""

Result = TypeVar("Result")
Read = Callable[[], tuple[float, ...] | None]
"""Returns the fields of DEVICE since its last call; None when no time has passed."""


async def while_reading(work: Awaitable[Result], read: Read | None) -> tuple[Result, DeviceLog]:
    """Await ``work`` and read the device every second meanwhile; without ``read`` the log is
    empty."""
    rows: list[tuple[float, ...]] = []

    async def keep_reading(read: Read) -> None:
        await asyncio.to_thread(read)  # the first says nothing of this work
        while True:
            await asyncio.sleep(EVERY_S)
            rows.extend(filter(None, [await asyncio.to_thread(read)]))

    reading = None if read is None else asyncio.ensure_future(keep_reading(read))
    try:
        result = await work
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
    return result, np.array(rows, DEVICE)
