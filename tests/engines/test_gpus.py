"""Which GPU is ours, and what it says: on a fake driver, for a real one is on few machines."""

import asyncio
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pynvml
import pytest

from tests.support.builders import facts
from tests.support.fake_nvml import GIB, Card, install
from tuner.engines import devices, gpus
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.errors import RunError
from tuner.replay.device_use import crowded, device_use
from tuner.replay.records import DEVICE
from tuner.runs import journal
from tuner.runs.events import EngineStart
from tuner.runs.evidence import Evidence

if TYPE_CHECKING:
    from tuner.engines.seam import ArgumentValue

US = os.getpid()
STRANGER = 1


def read() -> dict[str, float]:
    """Return one reading of the device by the names of its fields."""
    row = devices.DeviceMeter(1).read()
    assert row is not None
    return dict(zip(DEVICE.names or (), row, strict=True))


def test_the_gpu_that_is_read_is_the_one_our_engine_runs_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Card("GPU-aaaaaaaa-1", name="slow", memory_used=7 * GIB, processes={STRANGER})
    fast = Card("GPU-bbbbbbbb-2", name="fast", memory_used=60 * GIB, processes={US})
    install(monkeypatch, slow, fast)
    assert read()["memory_bytes"] == 60 * GIB
    used = devices.used_facts(1)
    assert (used["name"], used["uuids"], used["count"]) == ("fast", ["GPU-bbbbbbbb"], 2)


def test_in_a_container_our_gpu_is_the_one_that_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver numbers processes as the host does: none of them is ours."""
    busy = Card("GPU-a", memory_used=50 * GIB, processes={900001})
    ours = Card("GPU-b")
    install(monkeypatch, busy, ours)
    meter = devices.DeviceMeter(1)
    ours.memory_used, ours.processes = 20 * GIB, {900002}
    row = dict(zip(DEVICE.names or (), meter.read() or (), strict=True))
    assert row["memory_bytes"] == 20 * GIB
    assert math.isnan(row["foreign"])  # it may be us


def test_of_two_gpus_of_which_one_is_busy_ours_is_the_one_that_fills_and_not_the_busy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until we are there the busy one, which NVML counts first, is taken; it says itself whose."""
    busy = Card("GPU-aaaaaaaa-1", memory_used=70 * GIB, utilisation=100, processes={STRANGER})
    idle = Card("GPU-bbbbbbbb-2", utilisation=0)
    install(monkeypatch, busy, idle)
    meter = devices.DeviceMeter(1)
    idle.memory_used, idle.utilisation, idle.processes = 30 * GIB, 60, {US}
    row = dict(zip(DEVICE.names or (), meter.read() or (), strict=True))
    assert (row["memory_bytes"], row["utilisation"], row["foreign"]) == (30 * GIB, 0.6, 0)
    assert devices.used_facts(1)["uuids"] == ["GPU-bbbbbbbb"]


def test_an_engine_is_on_the_same_machine_in_our_process_and_behind_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A log that does not tell the backend tells of no other one; another backend is another
    machine."""
    install(monkeypatch, Card("GPU-aaaaaaaa-1", processes={US}))
    how: dict[str, ArgumentValue] = {
        "model_runner": "V2", "cudagraph_mode": "FULL_AND_PIECEWISE",
        "cudagraph_capture_sizes": [1, 2],
    }  # fmt: skip
    told, silent, other = (
        devices.device_of({"tensor_parallel_size": 1}, how, said)
        for said in (
            "INFO Using FLASH_ATTN attention backend out of potential backends: ...",
            "INFO",
            "INFO Using AttentionBackendEnum.FLASHINFER backend.",
        )
    )
    assert told["attention_backend"] == "FLASH_ATTN"
    assert (told["model_runner"], told["cudagraph_mode"]) == ("V2", "FULL_AND_PIECEWISE")
    assert (told["count"], told["power_limit_w"]) == (1, 700.0)
    book = journal.create(tmp_path / "run", {"trace_digest": "sha256:1"})
    evidence = Evidence(book)
    book.add(EngineStart(purpose="ladder", max_num_seqs=8, facts=facts(device=told)))
    evidence.check_machine(facts(device=silent))
    with pytest.raises(RunError, match="attention_backend=FLASH_ATTN, here it is FLASHINFER"):
        evidence.check_machine(facts(device=other))
    del silent["model_runner"]
    with pytest.raises(RunError, match="model_runner=V2, here it is None"):
        evidence.check_machine(facts(device=silent))
    book.close()


LOWERED = """
WARNING CUDAGraphMode.FULL_AND_PIECEWISE is not supported with FLASHINFER backend \
(support: NEVER); setting cudagraph_mode=PIECEWISE because attention is compiled piecewise
WARNING Cudagraph mode PIECEWISE requires piecewise capture, but the loaded model provides neither \
a compiled submodule nor breakable CUDA graphs. Overriding to NONE.
INFO setting cudagraph_mode to FULL or FULL_DECODE_ONLY helps
"""


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("", "FULL_AND_PIECEWISE"),
        (LOWERED, "NONE"),
        ("Overriding cudagraph_mode from FULL to PIECEWISE for reliability.", "PIECEWISE"),
        ("Overriding cudagraph_mode to FULL_DECODE_ONLY.", "FULL_DECODE_ONLY"),
    ],
)
def test_the_mode_of_graphs_is_the_one_that_a_worker_has_chosen_last(
    said: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Card("GPU-a", processes={US}))
    how: dict[str, ArgumentValue] = {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    found = devices.device_of({"tensor_parallel_size": 1}, how, said)
    assert found["cudagraph_mode"] == mode


def test_the_power_limit_is_told_as_it_was_and_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card("GPU-aaaaaaaa-1", processes={US})
    install(monkeypatch, card)
    before = devices.used_facts(1)
    card.power_limit_mw = 500_000
    after = devices.at_the_end(before)
    assert (after["power_limit_w"], after["power_limit_end_w"]) == (700.0, 500.0)
    assert devices.at_the_end({"kind": "cpu"}) == {"kind": "cpu"}


def test_somebody_else_on_our_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card("GPU-a", processes={US})
    install(monkeypatch, card)
    assert read()["foreign"] == 0
    card.processes = {US, STRANGER}
    assert read()["foreign"] == 1


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        (None, ["GPU-aaaa", "GPU-bbbb"]),
        ("1", ["GPU-bbbb"]),
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
    assert [gpu.uuid for gpu in gpus.visible()] == seen


def test_of_a_gpu_that_does_not_tell_nothing_is_taken_for_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = Card("GPU-a", reasons=None, utilisation=90)
    install(monkeypatch, card)
    assert math.isnan(read()["throttled"])
    assert math.isnan(read()["clock_mhz"])
    card.reasons, card.utilisation = 0, None
    assert math.isnan(read()["clock_mhz"])


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [
        (0, 0.0),
        (pynvml.nvmlClocksThrottleReasonSwPowerCap, 0.0),  # at full load it is normal
        (pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, 1.0),
        (pynvml.nvmlClocksThrottleReasonHwSlowdown, 1.0),
        (pynvml.nvmlClocksThrottleReasonSwThermalSlowdown, 1.0),
        (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, 1.0),
    ],
)
def test_heat_and_faults_disturb_and_the_power_limit_does_not(
    reasons: int, throttled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, Card("GPU-a", reasons=reasons))
    assert read()["throttled"] == throttled


def test_the_clock_counts_only_while_the_gpu_is_busy_and_below_its_power_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = Card("GPU-a", utilisation=90)
    install(monkeypatch, card)
    assert read()["clock_mhz"] == 1980
    card.utilisation = 10
    assert math.isnan(read()["clock_mhz"])
    card.utilisation, card.reasons = 90, pynvml.nvmlClocksThrottleReasonSwPowerCap
    assert math.isnan(read()["clock_mhz"])


def test_a_build_for_cuda_without_nvml_is_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr("tuner.engines.provenance.is_vllm_here", lambda: True)
    assert devices.device_facts() == {"kind": "cuda", "name": "cuda device"}
    monkeypatch.setattr("tuner.engines.provenance.is_vllm_here", lambda: False)
    assert devices.device_facts()["kind"] == "cpu"  # where nothing of vLLM is, nothing is measured


@pytest.fixture
def _busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = devices.CpuSample(busy=0.9, ours=0.1, others=0.8, steal=0.0)
    monkeypatch.setattr(devices.CpuMeter, "sample", lambda _: sample)


@pytest.mark.usefixtures("_busy_cores")
def test_an_engine_on_the_cpu_of_a_host_with_gpus_has_nothing_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, Card("GPU-a", memory_used=60 * GIB, processes={STRANGER}))
    monkeypatch.setattr("tuner.engines.provenance.accelerator", lambda: "cpu")
    seen = read()
    assert (seen["utilisation"], math.isnan(seen["memory_bytes"])) == (0.9, True)
    assert crowded(device_use([np.array([tuple(seen.values())], DEVICE)])) is not None
    assert gpus.memory_used() == {}


def test_memory_that_an_engine_held_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver frees it some looks after the process has ended; others keep theirs."""
    card = Card("GPU-a", memory_used=3 * GIB)
    install(monkeypatch, card)
    before = gpus.memory_used()
    held = [60 * GIB, 30 * GIB, 3 * GIB]

    def looked() -> dict[str, int]:
        return {"GPU-a": held.pop(0)}

    monkeypatch.setattr(gpus, "memory_used", looked)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(gpus.given_back(before))
        assert held == []
        monkeypatch.setattr(gpus, "memory_used", lambda: {"GPU-a": 60 * GIB})
        assert not runner.run(gpus.given_back(before, within_s=30))
        assert runner.run(gpus.given_back({}))  # without a driver there is nothing to wait for


def test_the_memory_of_others_gpus_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody starts on the one while our engine ends on the other."""
    theirs, ours = Card("GPU-aaaaaaaa-1"), Card("GPU-bbbbbbbb-2")
    install(monkeypatch, theirs, ours)
    before = gpus.memory_used()
    theirs.memory_used = 60 * GIB
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        first, second = ({"uuids": [f"GPU-{8 * letter}"]} for letter in "ab")
        assert runner.run(gpus.given_back(before, device=second, within_s=0))
        assert not runner.run(gpus.given_back(before, device=first, within_s=0))
        assert not runner.run(gpus.given_back(before, within_s=0))


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    assert gpus.visible() == ()
    assert gpus.driver() == {}
