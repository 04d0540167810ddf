"""What the hardware is, and who is busy on it: GPUs on a fake driver, for few machines have one."""

import asyncio
import math
import os
import subprocess
import sys
from typing import Any

import pynvml
import pytest

from tests.support.fake_nvml import GIB, Card, install
from tuner.engines import devices
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.replay.records import DEVICE

US = os.getpid()
STRANGER = 1
POWER_CAP = pynvml.nvmlClocksThrottleReasonSwPowerCap


def read() -> dict[str, float]:
    """Return one reading of the device by the names of its fields."""
    return dict(zip(DEVICE.names or (), devices.DeviceMeter(1).read(), strict=True))


def test_our_own_work_and_that_of_our_children_is_ours() -> None:
    meter = devices.DeviceMeter()
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    sample = dict(zip(DEVICE.names or (), meter.read(), strict=True))
    assert 0.0 <= sample["others"] < sample["utilisation"] <= 1
    assert 0 <= sample["steal"] <= 1


@pytest.mark.parametrize(
    ("card", "field", "value"),
    [
        ({"processes": {US, STRANGER}}, "foreign", 1.0),
        ({"processes": {900001}}, "foreign", math.nan),  # in a container it may be us
        ({"memory_used": 60 * GIB}, "memory_bytes", 60.0 * GIB),
        ({"reasons": POWER_CAP}, "throttled", 0.0),  # at full load it is normal
        ({"reasons": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown}, "throttled", 1.0),
        ({"reasons": None}, "throttled", math.nan),
        ({"utilisation": 90}, "clock_mhz", 1980.0),
        ({"utilisation": 10}, "clock_mhz", math.nan),
        ({"utilisation": 90, "reasons": POWER_CAP}, "clock_mhz", math.nan),
    ],
    ids=range(9),
)
def test_a_gpu_is_read_as_nvml_reports_it(
    monkeypatch: pytest.MonkeyPatch, card: dict[str, Any], field: str, value: float
) -> None:
    install(monkeypatch, Card("GPU-a", **card), Card("GPU-b", memory_used=1))
    assert read()[field] == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, ["GPU-aaaa", "GPU-bbbb"]),
        ("1,0", ["GPU-bbbb", "GPU-aaaa"]),
        ("GPU-bbbb", ["GPU-bbbb"]),
        ("0,7,1", ["GPU-aaaa"]),  # CUDA stops at the first that is none
        ("", []),
    ],
)
def test_the_gpus_that_are_visible_are_those_that_cuda_sees(
    listed: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Card("GPU-aaaa"), Card("GPU-bbbb"))
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert [gpu.uuid for gpu in devices.gpus()] == seen


@pytest.mark.parametrize("left", [3 * GIB, 30 * GIB])
def test_the_memory_of_an_engine_is_waited_for(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    """The driver frees it some looks after the process has ended."""
    install(monkeypatch, Card("GPU-a", memory_used=3 * GIB))
    before = devices.memory_used()
    held = [60 * GIB, 30 * GIB, left]

    def looked() -> dict[str, int]:
        return {"GPU-a": held.pop(0) if len(held) > 1 else held[0]}

    monkeypatch.setattr(devices, "memory_used", looked)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(devices.given_back(before)) is (left == 3 * GIB)


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    assert devices.gpus() == ()
    assert asyncio.run(devices.given_back({}))
