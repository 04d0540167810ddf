"""The checks of ``tuner doctor``: whether an engine can be measured on this machine."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.engines import devices, gpus, provenance
from tuner.engines.vllm import supported
from tuner.engines.vllm.installed import Installed
from tuner.errors import EngineError

CUDA = 13
"""Major version of CUDA that the default builds of vLLM and torch need of a driver."""

MAX_OTHERS = 0.2
"""Share of the cores that other processes may take while an engine is measured."""

MAX_MEMORY_USED = 0.05
"""Share of a GPU's memory that may be in use before an engine starts: driver and display."""

MIN_SHARED_BYTES = 1 << 30
"""Free bytes of /dev/shm: vLLM's workers exchange messages there."""

_GIB = 1 << 30
_SHARED = "/dev/shm"  # noqa: S108 - its size is read, nothing is written


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, its result, and the cure where it failed."""

    name: str
    status: Literal["PASS", "FAIL", "SKIP"]
    result: str
    cure: str = ""


def checks(cpu: devices.CpuSample | None) -> list[Check]:
    """Check the vLLM and the devices of this machine. ``cpu`` is what its cores did just now."""
    accelerator = provenance.accelerator()
    seen = gpus.visible() if accelerator == "cuda" else ()
    return [
        _vllm(),
        _device(accelerator, seen),
        _driver(seen),
        _throttling(seen),
        _other_processes(seen),
        _memory(seen),
        _cores(cpu),
        _shared_memory(),
    ]


def _check(name: str, result: str, *, ok: bool, cure: str) -> Check:
    return Check(name, "PASS", result) if ok else Check(name, "FAIL", result, cure)


def _vllm() -> Check:
    install = "Install one: pip install 'tuner[vllm]' (NVIDIA) or 'tuner[cpu]'."
    here = Installed.here()
    try:
        here.check()
    except EngineError as problem:
        return Check("vllm", "FAIL", str(problem), problem.hint)
    found = here.version is not None
    supports = f"tuner supports {supported.statement()}"
    return _check("vllm", f"{here}, {supports}" if found else supports, ok=found, cure=install)


def _device(accelerator: str, seen: Sequence[gpus.Gpu]) -> Check:
    if accelerator == "cpu":
        facts = devices.device_facts()
        return Check("device", "PASS", f"{facts['name']}, {facts['cores']} cores, no GPU")
    names = ", ".join(f"{gpu.name} {(gpu.memory_bytes or 0) / _GIB:.0f} GiB" for gpu in seen)
    cure = "See nvidia-smi and CUDA_VISIBLE_DEVICES, or install the CPU build: tuner[cpu]."
    return _check("device", names or "NVML shows no GPU", ok=bool(seen), cure=cure)


def _driver(seen: Sequence[gpus.Gpu]) -> Check:
    if not seen:
        return Check("driver", "SKIP", "no GPU")
    driver = gpus.driver()
    return _check(
        "driver",
        f"{driver['driver']}, CUDA {driver['cuda']}",
        ok=int(driver["cuda"].partition(".")[0]) >= CUDA,
        cure=f"Install a driver for CUDA {CUDA}, unless your vLLM is built for an older one.",
    )


def _throttling(seen: Sequence[gpus.Gpu]) -> Check:
    alarms = sorted({alarm for gpu in seen for alarm in gpu.alarms or ()})
    if not seen:
        return Check("throttling", "SKIP", "no GPU")
    cure = "Check cooling and power: nvidia-smi -q -d PERFORMANCE."
    return _check("throttling", ", ".join(alarms) or "none", ok=not alarms, cure=cure)


def _other_processes(seen: Sequence[gpus.Gpu]) -> Check:
    if not seen:
        return Check("processes on the GPU", "SKIP", "no GPU")
    count = sum(len(gpu.processes) for gpu in seen)
    cure = "End them (nvidia-smi), or choose another GPU: CUDA_VISIBLE_DEVICES."
    return _check("processes on the GPU", str(count or "none"), ok=not count, cure=cure)


def _memory(seen: Sequence[gpus.Gpu]) -> Check:
    used = [
        gpu.memory_used_bytes / gpu.memory_bytes
        for gpu in seen
        if gpu.memory_bytes and gpu.memory_used_bytes is not None
    ]
    if not used:
        return Check("GPU memory", "SKIP", "no GPU")
    return _check(
        "GPU memory",
        f"{1 - max(used):.0%} free",
        ok=max(used) <= MAX_MEMORY_USED,
        cure="End the process that holds it, or lower gpu_memory_utilization.",
    )


def _cores(cpu: devices.CpuSample | None) -> Check:
    if cpu is None:
        return Check("cores", "SKIP", "this system does not report them")
    others = cpu.others + cpu.steal
    return _check(
        "cores",
        f"{others:.0%} taken by other processes",
        ok=others <= MAX_OTHERS,
        cure="Stop them, or measure when nothing else runs.",
    )


def _shared_memory() -> Check:
    try:
        place = os.statvfs(_SHARED)
    except OSError:
        return Check("shared memory", "SKIP", f"no {_SHARED}")
    free_bytes = place.f_bavail * place.f_frsize
    return _check(
        "shared memory",
        f"{free_bytes / _GIB:.1f} GiB free",
        ok=free_bytes >= MIN_SHARED_BYTES,
        cure="Give the container more: docker run --shm-size 8g, or an emptyDir of medium Memory.",
    )
