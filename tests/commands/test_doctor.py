"""``tuner doctor``: a line for each check, and the exit code."""

import json
from pathlib import Path

import pytest

from tests.support import fake_nvml
from tests.support.fake_nvml import Card
from tests.support.in_process import tuner
from tuner.engines.devices import DeviceMeter
from tuner.replay.records import DEVICE

IDLE, BUSY = (dict.fromkeys(DEVICE.names or (), 0.05 + 0.4 * busy) for busy in (False, True))


@pytest.mark.vllm
def test_a_quiet_machine_without_a_gpu_passes_in_eight_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceMeter, "read", lambda _: tuple(IDLE.values()))
    done = tuner(tmp_path, "doctor")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 8


@pytest.mark.parametrize(
    ("cards", "cpu", "failed"),
    [
        ([Card("GPU-a")], IDLE, set()),
        ([Card("GPU-a", reasons=8)], IDLE, {"throttling"}),  # hardware slowdown
        ([Card("GPU-a", processes={1})], IDLE, {"processes on the GPU"}),
        ([Card("GPU-a", memory_used=8 * fake_nvml.GIB)], IDLE, {"GPU memory"}),
        ([], IDLE, {"device"}),
        ([Card("GPU-a")], BUSY, {"cores"}),
    ],
    ids=["well", "hot", "shared", "full", "none for a build of CUDA", "busy cores"],
)
def test_what_disturbs_a_measurement_fails_with_6(
    cards: list[Card],
    cpu: dict[str, float],
    failed: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tuner.commands.doctor.WATCHED_S", 0.0)
    monkeypatch.setattr(DeviceMeter, "read", lambda _: tuple(cpu.values()))
    fake_nvml.install(monkeypatch, *cards)
    done = tuner(tmp_path, "doctor", "--json")
    checks = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    checks.pop("vllm")
    assert {name for name, status in checks.items() if status == "FAIL"} == failed
    assert done.returncode == 6 or not failed
