"""What besides the engine shaped the numbers."""

import numpy as np
import pytest

from tuner.replay.device_use import DeviceUse, device_use, disturbance
from tuner.replay.records import DEVICE

CALM = {
    "utilisation_mean": 0.9,
    "memory_peak_bytes": None,
    "others_mean": 0.02,
    "steal_mean": 0.0,
    "clock_drop": None,
    "throttled_share": None,
}


def test_a_machine_of_ones_own_is_not_disturbed() -> None:
    assert disturbance(DeviceUse(**CALM)) is None
    assert disturbance(None) is None


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ({"others_mean": 0.4}, "other processes took 40% of the CPU cores"),
        ({"steal_mean": 0.2}, "the hypervisor gave 20% of the CPU to other machines"),
        ({"throttled_share": 0.5}, "heat or a fault slowed the GPU down 50% of time"),
        ({"foreign_share": 0.2}, "other processes were on the GPU 20% of time"),
        ({"clock_drop": 0.3}, "the GPU's clock fell by 30% on average"),
    ],
)
def test_what_disturbs_is_named_with_its_size(seen: dict[str, float], message: str) -> None:
    assert disturbance(DeviceUse(**{**CALM, **seen})) == message


def test_of_readings_what_the_device_does_not_tell_is_none() -> None:
    rows = [
        (0.0, np.nan, 100.0, 0.0, 0.0, 2000.0, 0.0, np.nan),
        (1.0, np.nan, 300.0, 0.5, 0.1, 1000.0, 0.5, 0.5),
    ]
    assert device_use([np.array(rows, DEVICE)]) == DeviceUse(
        utilisation_mean=0.5,
        memory_peak_bytes=None,
        others_mean=0.25,
        steal_mean=0.05,
        clock_drop=0.25,
        throttled_share=0.5,
        foreign_share=1.0,
    )
    assert device_use([np.zeros(0, DEVICE)]) is None
