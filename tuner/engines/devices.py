"""The hardware: what identifies it, how busy it is, and which share of that is not ours.

An engine runs on the first GPUs of CUDA_VISIBLE_DEVICES, as NVML reports them. NVML counts in the
order of the PCI bus: a host with several kinds of GPU needs CUDA_DEVICE_ORDER=PCI_BUS_ID, as vLLM
asks for too. What a device does not report is None.
"""

import asyncio
import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pynvml

from tuner.engines import provenance
from tuner.engines.arguments import ArgumentValue

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


class Cpu(NamedTuple):
    """Shares of all cores' time since the sample before, 0-1."""

    busy: float
    others: float
    """Busy, but neither with this process nor with its descendants."""

    steal: float
    """Taken by the hypervisor for other machines."""


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
                "driver": driver()["driver"],
                "power_limit_w": seen[0].power_limit_w,
            }
        if provenance.is_vllm_here():
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
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in {"model name", "Hardware"}:
                return value.strip()
    return platform.processor() or platform.machine()


class CpuMeter:
    """Tells what the cores did between two readings."""

    def __init__(self) -> None:
        self._last = _cpu_times()

    def sample(self) -> Cpu | None:
        """Return the shares since the last call; None when no time has passed, or nothing tells."""
        before, self._last = self._last, _cpu_times()
        total, busy, ours, steal = np.subtract(self._last, before).tolist()
        if total <= 0:
            return None
        # the time of a child that has just ended may be counted nowhere for a moment
        return Cpu(busy / total, (busy - min(max(ours, 0.0), busy)) / total, steal / total)


def _cpu_times() -> tuple[float, ...]:
    """Return the seconds of all cores since boot: all, busy, ours and stolen; 0 where the system
    counts none, as in a container without /proc."""
    try:
        fields = psutil.cpu_times()._asdict()
        ours = sum(map(_process_s, _family()))
    except (psutil.Error, OSError):
        return (0.0,) * 4
    idle, steal = fields["idle"] + fields.get("iowait", 0.0), fields.get("steal", 0.0)
    guests = fields.get("guest", 0.0) + fields.get("guest_nice", 0.0)  # in user and nice too
    total = sum(fields.values()) - guests
    return total, total - idle - steal, ours, steal


def _family() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _process_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children that have ended; 0 if it has too."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


class DeviceMeter:
    """Reads what the engine runs on: its first ``count`` GPUs, or the cores."""

    def __init__(self, count: int | None = None) -> None:
        self._cpu, self._count = CpuMeter(), count
        self._kind = device_facts()["kind"]

    def read(self) -> tuple[float, ...] | None:
        """Return the fields of ``records.DEVICE`` since the last call; NaN where unknown, None when
        no time has passed."""
        cpu = self._cpu.sample()
        seen = gpus()[: self._count] if self._kind == "gpu" else ()
        if cpu is None and not seen:
            return None
        busy, *host = cpu or (math.nan,) * 3
        mine = {each.pid for each in _family()} if seen else set()
        return (
            busy if self._kind == "cpu" else _mean(gpu.utilisation for gpu in seen),
            _mean(gpu.memory_used_bytes for gpu in seen) * len(seen),
            _mean(gpu.power_w for gpu in seen) * len(seen),
            *host,
            _mean(gpu.clock_mhz for gpu in seen),
            _mean(gpu.is_slowed for gpu in seen),
            # in a container ours are not among those that the driver names
            _mean(bool(gpu.processes - mine) if gpu.processes & mine else None for gpu in seen),
        )


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean of those that are known; NaN of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def memory_used() -> dict[str, int]:
    """Return UUID → bytes in use, of the GPUs that CUDA would see; of none where vLLM uses none."""
    if provenance.is_cpu_build():
        return {}
    return {gpu.uuid: gpu.memory_used_bytes or 0 for gpu in gpus()}


async def given_back(before: Mapping[str, int]) -> bool:
    """Wait until no GPU has much more memory in use than before; return whether that came in time.

    A process is gone before the driver has freed what it held, and the next engine takes a share of
    what it finds free.
    """
    until_s = asyncio.get_running_loop().time() + GIVEN_BACK_S
    while before:
        now = await asyncio.to_thread(memory_used)
        if all(now.get(uuid, 0) - used < _GROWN_BYTES for uuid, used in before.items()):
            break
        if asyncio.get_running_loop().time() > until_s:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


def driver() -> Mapping[str, str]:
    """Return the versions of the driver and of the newest CUDA it knows; empty without one."""
    with _nvml() as there:
        if not there:
            return {}
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }


def gpus() -> tuple[Gpu, ...]:
    """Read the GPUs that CUDA would see; empty where there is none. Costs some milliseconds."""
    with _nvml() as there:
        return tuple(map(_read, _handles())) if there else ()


@contextmanager
def _nvml() -> Iterator[bool]:
    """Open NVML; give False without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def _handles() -> list[Any]:
    """Return the handles of the GPUs that CUDA_VISIBLE_DEVICES names by number or UUID, in its
    order; of all where it is not set."""
    every = list(map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())))
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return every
    by_name = {str(index): handle for index, handle in enumerate(every)}
    by_name |= {str(_ask("UUID", handle)): handle for handle in every}
    handles = []
    for name in filter(None, map(str.strip, listed.split(","))):
        if name not in by_name:  # CUDA stops at the first name that is none, too
            break
        handles.append(by_name[name])
    return handles


def _read(gpu: Any) -> Gpu:  # noqa: ANN401 - an NVML handle
    rates, memory = _ask("UtilizationRates", gpu), _ask("MemoryInfo", gpu)
    reasons = _ask("CurrentClocksThrottleReasons", gpu)
    limit_mw, power_mw = _ask("EnforcedPowerLimit", gpu), _ask("PowerUsage", gpu)
    is_busy = rates is not None and rates.gpu >= 100 * BUSY
    is_free = reasons is not None and not reasons & pynvml.nvmlClocksThrottleReasonSwPowerCap
    return Gpu(
        uuid=str(_ask("UUID", gpu)),
        name=str(_ask("Name", gpu)),
        memory_bytes=None if memory is None else memory.total,
        memory_used_bytes=None if memory is None else memory.used,
        power_limit_w=None if limit_mw is None else limit_mw * 1e-3,
        power_w=None if power_mw is None else power_mw * 1e-3,
        utilisation=None if rates is None else rates.gpu / 100,
        clock_mhz=_ask("ClockInfo", gpu, pynvml.NVML_CLOCK_SM) if is_busy and is_free else None,
        is_slowed=None if reasons is None else bool(reasons & SLOWED),
        processes=frozenset(each.pid for each in _ask("ComputeRunningProcesses", gpu) or ()),
    )


def _ask(what: str, *about: Any) -> Any:  # noqa: ANN401 - NVML's answers
    """Return NVML's answer, or None where this device or driver has none."""
    try:
        return getattr(pynvml, f"nvmlDeviceGet{what}")(*about)
    except pynvml.NVMLError:
        return None
