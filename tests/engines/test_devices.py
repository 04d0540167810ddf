"""What the hardware is, and who is busy on it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.engines import devices

LINUX = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")


def test_the_device_is_named_and_json_can_carry_it() -> None:
    facts = devices.device_facts()
    assert facts["kind"] in {"cpu", "gpu"}
    assert facts["name"]
    assert int(str(facts["memory_bytes"])) > 1 << 28
    assert json.loads(json.dumps(facts)) == facts


def test_without_a_gpu_there_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.sample_gpus() == ()


@LINUX
def test_our_own_work_and_that_of_our_children_is_ours() -> None:
    meter = devices.CpuMeter()
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    sample = meter.sample()
    assert sample is not None
    assert 0.1 < sample.ours <= sample.busy <= 1
    assert sample.others == pytest.approx(sample.busy - sample.ours)
    assert 0 <= sample.steal <= 1


def write_proc(folder: Path, *, cpu: str, ticks: dict[int, int], children: str) -> None:
    """Write what Linux tells of all cores, of this process and its children."""
    (folder / "stat").write_text(f"cpu  {cpu} 0 0\ncpu0 {cpu} 0 0\n")
    for pid, user in ticks.items():
        (folder / str(pid) / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        (folder / str(pid) / "stat").write_text(
            f"{pid} (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 {user} 0 0 0 20 0\n"
        )
    (folder / str(os.getpid()) / "task" / str(os.getpid()) / "children").write_text(children)


def test_what_is_busy_and_not_ours_is_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_PROC", tmp_path)
    me = os.getpid()
    # user nice system idle iowait irq softirq steal
    write_proc(tmp_path, cpu="100 0 0 900 0 0 0 0", ticks={me: 10, 7: 5}, children="7 ")
    meter = devices.CpuMeter()
    assert meter.sample() is None  # no time has passed
    write_proc(tmp_path, cpu="160 0 20 910 0 0 0 10", ticks={me: 30, 7: 15}, children="7 ")
    sample = meter.sample()
    assert sample == devices.CpuSample(busy=0.8, ours=0.3, others=0.5, steal=0.1)


def test_without_proc_the_meter_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_PROC", tmp_path / "none")
    assert devices.CpuMeter().sample() is None
    assert devices.device_facts()["name"]
