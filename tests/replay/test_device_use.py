"""What else than the engine the numbers are of."""

import pytest

from tuner.replay.device_use import DeviceUse, disturbance

CALM = {
    "utilisation_mean": 0.9,
    "utilisation_sd": 0.1,
    "idle_share": 0.0,
    "memory_peak_bytes": None,
    "power_mean_w": None,
    "others_mean": 0.02,
    "steal_mean": 0.0,
    "clock_drop": None,
    "throttled_share": None,
}


def test_a_machine_of_ones_own_is_not_disturbed() -> None:
    assert disturbance(DeviceUse(**CALM)) is None
    assert disturbance(None) is None


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"others_mean": 0.4}, "other processes took 40% of the CPU cores"),
        ({"steal_mean": 0.2}, "the hypervisor gave 20% of the CPU to other machines"),
        ({"throttled_share": 0.5}, "heat or a fault slowed the GPU down 50% of time"),
        ({"foreign_share": 0.2}, "other processes were on the GPU 20% of time"),
        ({"clock_drop": 0.3}, "the GPU's clock fell by 30% on average"),
    ],
)
def test_what_disturbs_is_named_with_its_size(seen: dict[str, float], said: str) -> None:
    assert disturbance(DeviceUse(**{**CALM, **seen})) == said
