"""What the hardware is, and who is busy on it."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tuner.engines import devices


def test_the_device_is_named_and_json_can_carry_it() -> None:
    facts = devices.device_facts()
    assert facts["kind"] in {"cpu", "gpu"}
    assert facts["name"]
    assert int(str(facts["memory_bytes"])) > 1 << 28
    assert json.loads(json.dumps(facts)) == facts


def test_our_own_work_and_that_of_our_children_is_ours() -> None:
    meter = devices.CpuMeter()
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    sample = meter.sample()
    assert sample is not None
    assert 0.1 < sample.ours <= sample.busy <= 1
    assert sample.others == pytest.approx(sample.busy - sample.ours)
    assert 0 <= sample.steal <= 1


def test_what_is_busy_and_not_ours_is_others() -> None:
    before = devices.CpuTimes(total=10.0, busy=1.0, ours=0.5, steal=0.0)
    now = devices.CpuTimes(total=20.0, busy=9.0, ours=3.5, steal=1.0)
    assert now.since(before) == devices.CpuSample(busy=0.8, ours=0.3, others=0.5, steal=0.1)


def test_no_time_and_no_share() -> None:
    now = devices.CpuTimes(total=10.0, busy=1.0, ours=0.5, steal=0.0)
    assert now.since(now) is None


def test_a_child_that_ended_takes_nothing_from_our_share() -> None:
    """Its time moves from it to its parent, and may be seen in neither for a moment."""
    before = devices.CpuTimes(total=10.0, busy=5.0, ours=5.0, steal=0.0)
    now = devices.CpuTimes(total=20.0, busy=10.0, ours=2.0, steal=0.0)
    assert now.since(before) == devices.CpuSample(busy=0.5, ours=0.0, others=0.5, steal=0.0)


def test_without_proc_the_meter_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "none"))
    assert devices.CpuMeter().sample() is None
    assert devices.device_facts()["name"]
