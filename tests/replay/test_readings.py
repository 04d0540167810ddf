"""Readings of the device go on while something else does, and end with it."""

import asyncio

import numpy as np

from tuner.engines.sim.virtual_time import run
from tuner.replay.device_use import while_reading
from tuner.replay.records import DEVICE


def test_the_device_is_read_once_a_second_until_the_work_is_done() -> None:
    calls = iter(range(100))

    def read() -> tuple[float, ...]:
        return (float(next(calls)), *[np.nan] * (len(DEVICE.names or ()) - 1))

    result, log = run(while_reading(asyncio.sleep(3.5, "done"), read))
    assert result == "done"
    assert log["utilisation"].tolist() == [1.0, 2.0, 3.0]
