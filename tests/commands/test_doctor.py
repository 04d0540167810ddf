"""``tuner doctor``: a line for each check, and the exit code."""

import json
from pathlib import Path

import pytest

from tests.support import fake_nvml
from tests.support.fake_nvml import Card
from tests.support.in_process import tuner
from tuner.engines import devices

IDLE = devices.Cpu(busy=0.1, others=0.1, steal=0.0)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.commands.doctor.WATCHED_S", 0.0)
    monkeypatch.setattr(devices.CpuMeter, "sample", lambda _: IDLE)


def result(folder: Path) -> tuple[int, dict[str, str]]:
    done = tuner(folder, "doctor", "--json")
    checks = json.loads(done.stdout)["checks"]
    return done.returncode, {check["name"]: check["status"] for check in checks}


@pytest.mark.vllm
def test_a_quiet_machine_without_a_gpu_passes_in_eight_lines(tmp_path: Path) -> None:
    done = tuner(tmp_path, "doctor")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 8


@pytest.mark.parametrize(
    ("card", "failed"),
    [
        (Card("GPU-a"), set()),
        (Card("GPU-a", reasons=8), {"throttling"}),  # hardware slowdown
        (Card("GPU-a", processes={1}), {"processes on the GPU"}),
        (Card("GPU-a", memory_used=8 * fake_nvml.GIB), {"GPU memory"}),
    ],
    ids=["well", "hot", "shared", "full"],
)
def test_what_disturbs_a_gpu_fails_with_6(
    card: Card, failed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, card)
    code, checks = result(tmp_path)
    checks.pop("vllm")
    assert {name for name, status in checks.items() if status == "FAIL"} == failed
    assert code == 6 or not failed


def test_a_build_for_cuda_without_a_gpu_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch)
    code, checks = result(tmp_path)
    assert (code, checks["device"]) == (6, "FAIL")


def test_busy_cores_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = devices.Cpu(busy=0.9, others=0.8, steal=0.0)
    monkeypatch.setattr(devices.CpuMeter, "sample", lambda _: busy)
    code, checks = result(tmp_path)
    assert (code, checks["cores"]) == (6, "FAIL")
