"""The checks of ``tuner doctor``: whether an engine can be measured on this machine."""

import os
from dataclasses import dataclass
from typing import Literal

from tuner.engines import devices, provenance
from tuner.engines.vllm import installed, supported
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
    on_gpu = provenance.accelerator() == "cuda"
    return [
        _vllm(),
        *_of_gpus(devices.gpus() if on_gpu else (), on_gpu=on_gpu),
        _cores(cpu),
        _shared_memory(),
    ]


def _check(name: str, result: str, cure: str, *, ok: bool | None) -> Check:
    """Return a check; ``ok`` None skips it."""
    if ok is None or ok:
        return Check(name, "SKIP" if ok is None else "PASS", result)
    return Check(name, "FAIL", result, cure)


def _vllm() -> Check:
    try:
        installed.check()
    except EngineError as problem:
        return Check("vllm", "FAIL", str(problem), problem.hint)
    version, supports = installed.version(), f"tuner supports {supported.statement()}"
    return _check(
        "vllm",
        f"vLLM {version}, {supports}" if version else supports,
        "Install one: pip install 'tuner[vllm]' (NVIDIA) or 'tuner[cpu]'.",
        ok=version is not None,
    )


def _of_gpus(seen: tuple[devices.Gpu, ...], *, on_gpu: bool) -> list[Check]:
    """Return the device, its driver, throttling, other processes and memory."""
    driver = devices.driver() if seen else {"driver": "no GPU", "cuda": "0.0"}
    alarms = sorted({alarm for gpu in seen for alarm in gpu.alarms or ()})
    count = sum(len(gpu.processes) for gpu in seen)
    used = [
        gpu.memory_used_bytes / gpu.memory_bytes
        for gpu in seen
        if gpu.memory_bytes and gpu.memory_used_bytes is not None
    ]
    facts = devices.device_facts()
    names = ", ".join(f"{gpu.name} {(gpu.memory_bytes or 0) / _GIB:.0f} GiB" for gpu in seen)
    here = f"{facts['name']}, {facts.get('cores')} cores, no GPU"

    def of_gpu(name: str, result: str, cure: str, *, ok: bool) -> Check:
        return _check(name, result if seen else "no GPU", cure, ok=ok if seen else None)

    return [
        _check(
            "device",
            (names or "NVML shows no GPU") if on_gpu else here,
            "See nvidia-smi and CUDA_VISIBLE_DEVICES, or install the CPU build: tuner[cpu].",
            ok=bool(seen) or not on_gpu,
        ),
        of_gpu(
            "driver",
            f"{driver['driver']}, CUDA {driver['cuda']}",
            f"Install a driver for CUDA {CUDA}, unless your vLLM is built for an older one.",
            ok=int(driver["cuda"].partition(".")[0]) >= CUDA,
        ),
        of_gpu(
            "throttling",
            ", ".join(alarms) or "none",
            "Check cooling and power: nvidia-smi -q -d PERFORMANCE.",
            ok=not alarms,
        ),
        of_gpu(
            "processes on the GPU",
            str(count or "none"),
            "End them (nvidia-smi), or choose another GPU: CUDA_VISIBLE_DEVICES.",
            ok=not count,
        ),
        _check(
            "GPU memory",
            f"{1 - max(used):.0%} free" if used else "no GPU",
            "End the process that holds it, or lower gpu_memory_utilization.",
            ok=max(used) <= MAX_MEMORY_USED if used else None,
        ),
    ]


def _cores(cpu: devices.CpuSample | None) -> Check:
    if cpu is None:
        return Check("cores", "SKIP", "this system does not report them")
    others = cpu.others + cpu.steal
    return _check(
        "cores",
        f"{others:.0%} taken by other processes",
        "Stop them, or measure when nothing else runs.",
        ok=others <= MAX_OTHERS,
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
        "Give the container more: docker run --shm-size 8g, or an emptyDir of medium Memory.",
        ok=free_bytes >= MIN_SHARED_BYTES,
    )
