"""The checks of ``tuner doctor``: whether an engine can be measured on this machine."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.engines import devices, provenance
from tuner.engines.vllm import supported
from tuner.errors import EngineError

MAX_OTHERS = 0.2
"""Share of the cores that other processes may take while an engine is measured."""

MAX_MEMORY_USED = 0.05
"""Share of a GPU's memory that may be in use before an engine starts: driver and display."""

MIN_SHARED_BYTES = 1 << 30
"""Free bytes of /dev/shm: vLLM's workers exchange messages there."""

_GIB = 1 << 30

Status = Literal["PASS", "FAIL", "SKIP"]
_STATUS: Mapping[bool | None, Status] = {True: "PASS", False: "FAIL", None: "SKIP"}


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, its result, and the cure where it failed."""

    name: str
    status: Status
    result: str
    cure: str = ""


def checks(cpu: devices.Cpu | None) -> list[Check]:
    """Check the vLLM and the devices of this machine. ``cpu`` is what its cores did just now."""
    rows = (*_of_vllm(), *_of_gpus(), *_of_host(cpu))
    return [
        Check(name, _STATUS[ok], result, cure if ok is False else "")
        for name, ok, result, cure in rows
    ]


_Row = tuple[str, bool | None, str, str]
"""Name, whether it is well (None: nothing to check), result and cure."""


def _of_vllm() -> Iterator[_Row]:
    cure = "Install one: pip install 'tuner[vllm]' (NVIDIA) or 'tuner[cpu]'."
    try:
        supported.check()
    except EngineError as problem:
        yield "vllm", False, str(problem), problem.hint
        return
    version, supports = supported.installed(), f"tuner supports {supported.statement()}"
    yield "vllm", version is not None, f"vLLM {version}, {supports}" if version else supports, cure


def _of_gpus() -> Iterator[_Row]:
    """Yield the device, its driver, throttling, other processes and memory."""
    on_gpu, facts = not provenance.is_cpu_build(), devices.device_facts()
    seen = devices.gpus() if on_gpu else ()
    names = ", ".join(f"{gpu.name} {(gpu.memory_bytes or 0) / _GIB:.0f} GiB" for gpu in seen)
    here = f"{facts['name']}, {facts.get('cores')} cores, no GPU"
    cure = "See nvidia-smi and CUDA_VISIBLE_DEVICES, or install the CPU build: tuner[cpu]."
    result = (names or "NVML shows no GPU") if on_gpu else here
    yield "device", bool(seen) or not on_gpu, result, cure
    if not seen:
        for name in ("driver", "throttling", "processes on the GPU", "GPU memory"):
            yield name, None, "no GPU", ""
        return
    driver = devices.driver()
    is_slowed = any(gpu.is_slowed for gpu in seen)
    count = sum(len(gpu.processes) for gpu in seen)
    used = max((gpu.memory_used_bytes or 0) / (gpu.memory_bytes or _GIB) for gpu in seen)
    built = re.search(r"\+cu(\d+)\d$", provenance.version_of("torch") or "")  # +cu130: for CUDA 13
    needed = int(built[1]) if built else 0
    is_new = int(driver["cuda"].partition(".")[0]) >= needed
    cure = f"Install a driver for CUDA {needed}, or a torch that is built for an older one."
    yield "driver", is_new, f"{driver['driver']}, CUDA {driver['cuda']}", cure
    cure = "Check cooling and power: nvidia-smi -q -d PERFORMANCE."
    yield "throttling", not is_slowed, "by heat or a fault" if is_slowed else "none", cure
    cure = "End them (nvidia-smi), or choose another GPU: CUDA_VISIBLE_DEVICES."
    yield "processes on the GPU", not count, str(count or "none"), cure
    cure = "End the process that holds it, or lower gpu_memory_utilization."
    yield "GPU memory", used <= MAX_MEMORY_USED, f"{1 - used:.0%} free", cure


def _of_host(cpu: devices.Cpu | None) -> Iterator[_Row]:
    others = 0.0 if cpu is None else cpu.others + cpu.steal
    result = f"{others:.0%} taken by other processes" if cpu else "this system does not report them"
    cure = "Stop them, or measure when nothing else runs."
    yield "cores", None if cpu is None else others <= MAX_OTHERS, result, cure
    try:
        place = os.statvfs("/dev/shm")  # noqa: S108 - its size is read, nothing is written
    except OSError:
        yield "shared memory", None, "this system has none", ""
        return
    free_bytes = place.f_bavail * place.f_frsize
    cure = "Give the container more: docker run --shm-size 8g, or an emptyDir of medium Memory."
    yield "shared memory", free_bytes >= MIN_SHARED_BYTES, f"{free_bytes / _GIB:.1f} GiB free", cure
