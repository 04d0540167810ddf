"""The hardware: what identifies it, how busy it is, and which share of that is not ours.

An engine runs on the first GPUs of CUDA_VISIBLE_DEVICES, as NVML reports them. NVML counts in the
order of the PCI bus: a host with several kinds of GPU needs CUDA_DEVICE_ORDER=PCI_BUS_ID, as vLLM
asks for too. What a device does not report is None.
"""

import asyncio
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import psutil
import pynvml

from tuner.engines import provenance
from tuner.engines.arguments import ArgumentValue
from tuner.errors import EngineError

PARALLEL_SIZES = tuple(
    f"{kind}_parallel_size" for kind in ("tensor", "pipeline", "prefill_context")
)
"""Arguments that multiply the GPUs of one engine."""

SLOWED = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)
"""Reasons for which a GPU is slower than it should be. The power limit is normal at full load."""

BUSY = 0.5
"""Utilization from which on a GPU's clock is that of its work."""

GIVEN_BACK_S = 30.0
"""Time that the driver may take to free the memory of an engine that has ended."""

_GROWN_BYTES = 256 << 20
"""A CUDA context alone takes that much."""

_LOOK_S = 0.2
_GIB = 1 << 30


class Gpu(NamedTuple):
    """One GPU as it is now."""

    uuid: str
    name: str
    memory_bytes: int | None
    memory_used_bytes: int | None
    power_limit_w: float | None
    power_w: float | None
    utilisation: float | None
    """Share of the last moments (device dependent, 1/6 to 1 s) in which a kernel ran, 0-1."""

    clock_mhz: int | None
    """None while it idles or is at its power limit: the clock is rightly lower then."""

    is_slowed: bool | None
    """By heat, a fault or a power brake."""

    processes: frozenset[int]
    """Those that compute on it, by the driver's numbers: in a container not ours."""

    driver: str
    cuda: str
    """The newest that the driver knows."""


def device_facts() -> dict[str, ArgumentValue]:
    """Return what identifies the hardware that vLLM would run on here, the same for two of a kind.

    A GPU that NVML does not describe has only its kind.
    """
    if not provenance.is_cpu_build():
        if seen := gpus():
            return {
                "kind": "gpu",
                "name": seen[0].name,
                "count": len(seen),
                "memory_bytes": seen[0].memory_bytes,
                "driver": seen[0].driver,
                "power_limit_w": seen[0].power_limit_w,
            }
        if provenance.installed():
            return {"kind": "cuda", "name": "cuda device"}
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    return {
        "kind": "cpu",
        "name": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
    }


def gpus_of(arguments: Mapping[str, ArgumentValue]) -> int:
    """Return how many GPUs an engine with these arguments takes: the first that it can see."""
    sizes = (arguments.get(name) for name in PARALLEL_SIZES)
    return math.prod(size for size in sizes if isinstance(size, int))


def _cpu_name() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if name := re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", text, re.MULTILINE):
            return name[1].strip()
    return platform.processor() or platform.machine()


class DeviceMeter:
    """Reads what the engine runs on: its first ``count`` GPUs, or the cores."""

    def __init__(self, count: int | None = None) -> None:
        self._last, self._count = _cpu_times(), count
        self._kind = device_facts()["kind"]

    def read(self) -> tuple[float, ...]:
        """Return the fields of ``records.DEVICE`` since the last call; NaN where unknown."""
        before, self._last = self._last, _cpu_times()
        total, busy, ours, steal = np.subtract(self._last, before).tolist()
        # the time of a child that has just ended may be counted nowhere for a moment
        others = busy - min(max(ours, 0.0), busy)
        total = total if total > 0 else math.nan
        seen = gpus()[: self._count] if self._kind == "gpu" else ()
        mine = {each.pid for each in _family()} if seen else set()
        return (
            busy / total if self._kind == "cpu" else _mean(gpu.utilisation for gpu in seen),
            _mean(gpu.memory_used_bytes for gpu in seen) * len(seen),
            _mean(gpu.power_w for gpu in seen) * len(seen),
            others / total,
            steal / total,
            _mean(gpu.clock_mhz for gpu in seen),
            _mean(gpu.is_slowed for gpu in seen),
            # in a container ours are not among those that the driver names
            _mean(bool(gpu.processes - mine) if gpu.processes & mine else None for gpu in seen),
        )


def _cpu_times() -> tuple[float, ...]:
    """Return the seconds of all cores since boot: all, busy, ours and stolen."""
    fields, ours = psutil.cpu_times()._asdict(), 0.0
    for process in _family():
        with suppress(psutil.Error):  # it has ended
            ours += sum(process.cpu_times()[:4])  # with its children that have ended
    idle, steal = fields["idle"] + fields.get("iowait", 0.0), fields.get("steal", 0.0)
    guests = fields.get("guest", 0.0) + fields.get("guest_nice", 0.0)  # in user and nice too
    total = sum(fields.values()) - guests
    return total, total - idle - steal, ours, steal


def _family() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean of those that are known; NaN of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def memory_used() -> dict[str, int]:
    """Return UUID → bytes in use, of the GPUs that CUDA would see; of none where vLLM uses none."""
    seen = () if provenance.is_cpu_build() else gpus()
    return {gpu.uuid: gpu.memory_used_bytes or 0 for gpu in seen}


async def given_back(before: Mapping[str, int]) -> bool:
    """Wait until no GPU has much more memory in use than before; return whether that came in time.

    A process is gone before the driver has freed what it held, and the next engine takes a share of
    what it finds free.
    """
    for _ in range(round(GIVEN_BACK_S / _LOOK_S) if before else 0):
        now = await asyncio.to_thread(memory_used)
        if all(now.get(uuid, 0) - used < _GROWN_BYTES for uuid, used in before.items()):
            return True
        await asyncio.sleep(_LOOK_S)
    return not before


def gpus() -> tuple[Gpu, ...]:
    """Read the GPUs that CUDA would see; empty without one, or a driver. Costs some milliseconds.

    CUDA_VISIBLE_DEVICES names them by number or UUID, in its order, until a name that is none.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        numbers = range(pynvml.nvmlDeviceGetCount())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in numbers]
        by_name = dict(zip(map(str, numbers), handles, strict=True))
        by_name |= {str(_ask("UUID", handle)): handle for handle in handles}
        listed = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, numbers)))
        names = takewhile(by_name.__contains__, map(str.strip, listed.split(",")))
        return tuple(_read(by_name[name]) for name in names)
    finally:
        pynvml.nvmlShutdown()


def _read(gpu: Any) -> Gpu:  # noqa: ANN401 - an NVML handle
    rates, memory = _ask("UtilizationRates", gpu), _ask("MemoryInfo", gpu)
    reasons = _ask("CurrentClocksThrottleReasons", gpu)
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    limit_mw, power_mw = _ask("EnforcedPowerLimit", gpu), _ask("PowerUsage", gpu)
    is_busy = rates is not None and rates.gpu >= 100 * BUSY
    is_free = reasons is not None and not reasons & pynvml.nvmlClocksThrottleReasonSwPowerCap
    return Gpu(
        uuid=str(_ask("UUID", gpu)),
        name=str(_ask("Name", gpu)),
        memory_bytes=memory and memory.total,
        memory_used_bytes=memory and memory.used,
        power_limit_w=limit_mw and limit_mw * 1e-3,
        power_w=power_mw and power_mw * 1e-3,
        utilisation=rates and rates.gpu / 100,
        clock_mhz=_ask("ClockInfo", gpu, pynvml.NVML_CLOCK_SM) if is_busy and is_free else None,
        is_slowed=None if reasons is None else bool(reasons & SLOWED),
        processes=frozenset(each.pid for each in _ask("ComputeRunningProcesses", gpu) or ()),
        driver=str(pynvml.nvmlSystemGetDriverVersion()),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _ask(what: str, *about: Any) -> Any:  # noqa: ANN401 - NVML's answers
    """Return NVML's answer, or None where this device or driver has none."""
    try:
        return getattr(pynvml, f"nvmlDeviceGet{what}")(*about)
    except pynvml.NVMLError:
        return None


# tuner doctor

MAX_OTHERS = 0.2
"""Share of the cores that other processes may take while an engine is measured."""

MAX_MEMORY_USED = 0.05
"""Share of a GPU's memory that may be in use before an engine starts: driver and display."""

MIN_SHARED_BYTES = _GIB
"""Free bytes of /dev/shm: vLLM's workers exchange messages there."""

Status = Literal["PASS", "FAIL", "SKIP"]
_STATUS: Mapping[bool | None, Status] = {True: "PASS", False: "FAIL", None: "SKIP"}


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, its result, and the cure where it failed."""

    name: str
    status: Status
    result: str
    cure: str = ""


_Row = tuple[str, bool | None, str, str]
"""Name, whether it is well (None: nothing to check), result and cure."""


def checks_of(others: float) -> list[Check]:
    """Check the vLLM and the devices of this machine. ``others`` is the share of the cores that was
    just taken by others; NaN where the system does not tell."""
    rows = (_of_vllm(), *_of_gpus(), *_of_host(others))
    return [
        Check(name, _STATUS[ok], result, cure if ok is False else "")
        for name, ok, result, cure in rows
    ]


def _of_vllm() -> _Row:
    cure = "Install one: pip install 'tuner[vllm]' (NVIDIA) or 'tuner[cpu]'."
    try:
        provenance.check_vllm()
    except EngineError as problem:
        return "vllm", False, str(problem), problem.hint
    version, supports = provenance.installed(), f"tuner supports {provenance.SUPPORTED}"
    return "vllm", version is not None, f"vLLM {version}, {supports}" if version else supports, cure


def _of_gpus() -> Iterator[_Row]:
    """Yield the device, its driver, throttling, other processes and memory."""
    facts, seen = device_facts(), gpus()
    cure = "See nvidia-smi and CUDA_VISIBLE_DEVICES, or install the CPU build: tuner[cpu]."
    if provenance.is_cpu_build() or not seen:
        is_right = provenance.is_cpu_build()
        result = f"{facts['name']}, {facts.get('cores')} cores, no GPU"
        yield "device", is_right, result if is_right else "NVML shows no GPU", cure
        for name in ("driver", "throttling", "processes on the GPU", "GPU memory"):
            yield name, None, "no GPU", ""
        return
    names = (f"{gpu.name} {(gpu.memory_bytes or 0) / _GIB:.0f} GiB" for gpu in seen)
    yield "device", True, ", ".join(names), cure
    built = re.search(r"\+cu(\d+)\d$", provenance.version_of("torch") or "")  # +cu130: for CUDA 13
    needed = int(built[1]) if built else 0
    is_new = int(seen[0].cuda.partition(".")[0]) >= needed
    cure = f"Install a driver for CUDA {needed}, or a torch that is built for an older one."
    yield "driver", is_new, f"{seen[0].driver}, CUDA {seen[0].cuda}", cure
    is_slowed = any(gpu.is_slowed for gpu in seen)
    cure = "Check cooling and power: nvidia-smi -q -d PERFORMANCE."
    yield "throttling", not is_slowed, "by heat or a fault" if is_slowed else "none", cure
    count = sum(len(gpu.processes) for gpu in seen)
    cure = "End them (nvidia-smi), or choose another GPU: CUDA_VISIBLE_DEVICES."
    yield "processes on the GPU", not count, str(count or "none"), cure
    used = max((gpu.memory_used_bytes or 0) / (gpu.memory_bytes or _GIB) for gpu in seen)
    cure = "End the process that holds it, or lower gpu_memory_utilization."
    yield "GPU memory", used <= MAX_MEMORY_USED, f"{1 - used:.0%} free", cure


def _of_host(others: float) -> Iterator[_Row]:
    cure = "Stop them, or measure when nothing else runs."
    yield "cores", not others > MAX_OTHERS, f"{others:.0%} taken by other processes", cure
    free_bytes = 0
    with suppress(OSError):  # a system that has none
        place = os.statvfs("/dev/shm")  # noqa: S108 - its size is read, nothing is written
        free_bytes = place.f_bavail * place.f_frsize
    cure = "Give the container more: docker run --shm-size 8g, or an emptyDir of medium Memory."
    yield "shared memory", free_bytes >= MIN_SHARED_BYTES, f"{free_bytes / _GIB:.1f} GiB free", cure
