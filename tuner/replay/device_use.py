"""Readings of the device during other work, and what they say of its use."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tuner.replay.records import DEVICE, DeviceLog


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of a device, from readings one a second; None where it is not known."""

    utilisation_mean: float | None
    """Share of time busy: of the GPUs, or of all CPU cores where an engine computes on them."""

    memory_peak_bytes: float | None
    others_mean: float | None
    """Share of the CPU cores that other processes took."""

    steal_mean: float | None
    """Share of them that the hypervisor gave to other machines."""

    clock_drop: float | None
    """Fall of the GPUs' clock from its highest reading to its mean, as a share. Only readings count
    in which they were busy and not at their power limit."""

    throttled_share: float | None
    """Share of the readings in which heat, a fault or a power brake slowed a GPU down."""

    foreign_share: float | None = None
    """Share of the readings in which processes of others computed on our GPUs."""


_STATISTICS = (
    ("utilisation", np.mean),
    ("memory_bytes", np.max),
    ("others", np.mean),
    ("steal", np.mean),
    ("clock_mhz", lambda mhz: 1 - np.mean(mhz) / np.max(mhz)),
    ("throttled", lambda share: np.mean(share > 0)),
    ("foreign", lambda share: np.mean(share > 0)),
)
"""Column of DEVICE and what is made of it, for each field of DeviceUse in its order."""


def device_use(logs: Sequence[DeviceLog]) -> DeviceUse | None:
    """Return what the readings of several replays say together; None without readings."""
    log = np.concatenate(list(logs))
    if not len(log):
        return None
    known = {name: log[name][~np.isnan(log[name])] for name in DEVICE.names or ()}
    return DeviceUse(
        *(float(of(known[name])) if len(known[name]) else None for name, of in _STATISTICS)
    )


OTHERS_LIMIT = 0.25
"""Share of the CPU cores. The choice is replayed once more above it (docs/decisions): lower, and
every shared machine pays for that; higher, and its numbers are those of others too."""

_DISTURBANCES = (
    ("others_mean", OTHERS_LIMIT, "other processes took {:.0%} of the CPU cores"),
    # lower than others, because nothing is stolen from a core that is idle
    ("steal_mean", 0.05, "the hypervisor gave {:.0%} of the CPU to other machines"),
    # readings come once a second: lower, and a single one of ten would be named
    ("throttled_share", 0.10, "heat or a fault slowed the GPU down {:.0%} of time"),
    ("foreign_share", 0.10, "other processes were on the GPU {:.0%} of time"),
    # as a machine that became 10 % slower counts as drifted (``DRIFT_LIMIT`` of the knee)
    ("clock_drop", 0.10, "the GPU's clock fell by {:.0%} on average"),
)
"""Field of DeviceUse, limit above which it disturbs, and the message."""


def disturbance(use: DeviceUse | None) -> str | None:
    """Name what besides the engine shaped the numbers; None when nothing was seen."""
    values = ((getattr(use, name, None), limit, text) for name, limit, text in _DISTURBANCES)
    result = (text.format(value) for value, limit, text in values if (value or 0.0) > limit)
    return next(result, None)


CROWDED_LIMIT = 0.5
"""Beside four busy loops on two cores others took 58 to 88 %: an SLO was derived at 17 to 90 ms a
token instead of 14, and 3 to 93 % promised instead of 98."""


def crowded(use: DeviceUse | None) -> str | None:
    """Say how much of the CPU cores others took from an engine that computes on them; None where
    enough was left. Above CROWDED_LIMIT what is measured is of nobody's machine."""
    taken = share_taken(use)
    return f"others took {taken:.0%} of the CPU cores" if taken > CROWDED_LIMIT else None


def share_taken(use: DeviceUse | None) -> float:
    """Return the share of the CPU cores that others took from an engine that computes on them; 0
    where nothing was seen, and for an engine on a GPU."""
    if use is None or use.memory_peak_bytes is not None or use.utilisation_mean is None:
        return 0.0
    return (use.others_mean or 0.0) + (use.steal_mean or 0.0)


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
