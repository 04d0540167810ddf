"""Readings of the device during other work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np

from tuner.replay.records import DEVICE, DeviceLog

EVERY_S = 1.0
"""Rarer readings see little of a replay of seconds; more of them take time from what is measured,
because each asks a driver in a thread."""

Result = TypeVar("Result")
Read = Callable[[], tuple[float, ...] | None]
"""Returns the fields of DEVICE since its last call; None when no time has passed."""


async def while_reading(work: Awaitable[Result], read: Read | None) -> tuple[Result, DeviceLog]:
    """Await ``work`` and read the device every second meanwhile, in a thread: a driver may be slow.

    Without ``read`` there is no device, and the log is empty.
    """
    rows: list[tuple[float, ...]] = []

    async def keep_reading(read: Read) -> None:
        await asyncio.to_thread(read)  # the first says nothing of this work
        while True:
            await asyncio.sleep(EVERY_S)
            rows.extend(filter(None, [await asyncio.to_thread(read)]))

    if read is None:
        return await work, np.array(rows, DEVICE)
    reading = asyncio.ensure_future(keep_reading(read))
    try:
        result = await work
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    return result, np.array(rows, DEVICE)
