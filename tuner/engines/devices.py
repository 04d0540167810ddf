"""The hardware: what identifies it, how busy it is, and how much of that is not ours.

An engine is on the first GPUs of CUDA_VISIBLE_DEVICES, of which NVML tells. NVML counts in the
order of the PCI bus: a host with several kinds of GPU needs CUDA_DEVICE_ORDER=PCI_BUS_ID, as vLLM
asks for too.
"""

import asyncio
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from tuner.engines import provenance
from tuner.engines.seam import ArgumentValue

PARALLEL_SIZES = (
    *("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size"),
)
"""Arguments that multiply the GPUs of one engine."""

PER_CARD = frozenset({"uuids"})
"""Facts in which two machines of a kind differ."""

BY_LOG = frozenset({"attention_backend"})
"""Facts that a log need not tell, even on the same machine."""

ALARMING = {
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "software thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}
"""Reasons for which a GPU is slower than it should be. To be at its power limit is normal at full
load."""

BUSY = 0.5
"""Utilisation from which on a GPU's clock is that of its work."""

GIVEN_BACK_S = 30.0
"""Time that the driver may take to free the memory of an engine that has ended."""

_GROWN_BYTES = 256 << 20
"""A CUDA context alone takes that much."""

_LOOK_S = 0.2

_UUID_PREFIX = len("GPU-") + 8
"""Characters of a UUID that tell GPUs apart. vLLM wants all of it."""

_POWER_CAP = pynvml.nvmlClocksThrottleReasonSwPowerCap

_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+)(?: attention)? backend")
"""What vLLM's log says of its choice, which its configuration does not."""

_GRAPH_MODE = re.compile(
    r"(?:setting cudagraph_mode=|Overriding (?:cudagraph_mode (?:from )?(?:\w+ )?)?to )"
    r"(?:CUDAGraphMode\.)?(FULL_AND_PIECEWISE|FULL_DECODE_ONLY|PIECEWISE|FULL|NONE)\b"
)
"""What it says where a worker lowers the mode of CUDA graphs, which its front end does not know."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as it is now; None where it does not tell."""

    uuid: str
    name: str
    memory_bytes: int | None
    memory_used_bytes: int | None
    compute_capability: str | None
    power_limit_w: float | None
    power_w: float | None
    utilisation: float | None
    """Share of the last moments (device dependent, 1/6 to 1 s) in which a kernel ran, 0-1."""

    clock_mhz: int | None
    at_power_limit: bool | None
    alarms: tuple[str, ...] | None
    """Of ALARMING."""

    processes: frozenset[int]
    """Those that compute on it, as the driver numbers them: in a container not as we do."""

    @property
    def own_clock_mhz(self) -> float | None:
        """Its clock. None while it idles or is at its power limit, because the clock is rightly
        lower then; and where it does not tell whether that is so."""
        busy = self.utilisation is not None and self.utilisation >= BUSY
        return self.clock_mhz if busy and self.at_power_limit is False else None


@dataclass(frozen=True, slots=True)
class CpuSample:
    """Shares of all cores' time since the sample before, 0-1."""

    busy: float
    ours: float
    """Of this process and its descendants."""

    others: float
    """Busy, but not ours: who disturbs the measurement."""

    steal: float
    """Taken by the hypervisor for other machines."""


# -- what it is


def device_facts() -> dict[str, ArgumentValue]:
    """Return what identifies the hardware that vLLM would run on here, the same for two of a kind.

    A GPU that NVML does not describe has only its kind.
    """
    if provenance.accelerator() == "cuda":
        if seen := gpus():
            return _gpu_facts(seen)
        if provenance.is_vllm_here():
            return {"kind": "cuda", "name": "cuda device"}
    return {
        "kind": "cpu",
        "name": _cpu_name(),
        "cores": _cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def device_of(
    arguments: Mapping[str, ArgumentValue], how: Mapping[str, ArgumentValue], log_text: str
) -> dict[str, ArgumentValue]:
    """Return the facts of the device that a running engine is on, the same in tuner's process and
    behind a server: two attention backends are two machines.

    ``how`` is what its configuration says of its computing.
    """
    seen = gpus() if provenance.accelerator() == "cuda" else ()
    if not seen:
        return device_facts()
    mine = seen[: gpus_of(arguments)]
    uuids = list[object](one.uuid[:_UUID_PREFIX] for one in mine)
    facts = _gpu_facts(mine) | {"count": len(seen), "uuids": uuids}
    if (backend := _BACKEND.search(log_text)) is not None:
        facts["attention_backend"] = backend[1]
    facts |= {name: value for name, value in how.items() if "sizes" not in name}
    lowered = _GRAPH_MODE.findall(log_text)
    return facts | ({"cudagraph_mode": lowered[-1]} if lowered else {})


def gpus_of(arguments: Mapping[str, ArgumentValue]) -> int:
    """Return how many GPUs an engine with these arguments takes: the first that it can see."""
    sizes = (arguments.get(name) for name in PARALLEL_SIZES)
    return math.prod(size for size in sizes if isinstance(size, int))


def _gpu_facts(seen: Sequence[Gpu]) -> dict[str, ArgumentValue]:
    first = seen[0]
    return {
        "kind": "gpu",
        "name": first.name,
        "count": len(seen),
        "memory_bytes": first.memory_bytes,
        "driver": driver()["driver"],
        "compute_capability": first.compute_capability,
        "power_limit_w": first.power_limit_w,
    }


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in {"model name", "Hardware"}:
                return value.strip()
    return platform.processor() or platform.machine()


# -- what it does


class CpuMeter:
    """Tells what the cores did between two readings."""

    def __init__(self) -> None:
        self._last = _cpu_times()

    def sample(self) -> CpuSample | None:
        """Return the shares since the last call; None when no time has passed, or nothing tells."""
        before, now = self._last, _cpu_times()
        if before is None or now is None or now[0] <= before[0]:
            self._last = before or now
            return None
        self._last = now
        return cpu_sample(before, now)


CpuTimes = tuple[float, float, float, float]
"""Seconds since boot of all cores together: in all, busy, ours and stolen."""


def cpu_sample(before: CpuTimes, now: CpuTimes) -> CpuSample:
    """Return the shares of the time in between."""
    total, *passed = (end - begin for begin, end in zip(before, now, strict=True))
    busy, ours, steal = (one / total for one in passed)
    ours = min(max(ours, 0.0), busy)  # a child's time may be seen nowhere for a moment
    return CpuSample(busy, ours, busy - ours, steal)


def _cpu_times() -> CpuTimes | None:
    """Read the counters; None where the system has none, as in a container without /proc."""
    try:
        fields = psutil.cpu_times()._asdict()
        ours = sum(map(_process_s, _family()))
    except (psutil.Error, OSError):
        return None
    idle, steal = fields["idle"] + fields.get("iowait", 0.0), fields.get("steal", 0.0)
    guests = fields.get("guest", 0.0) + fields.get("guest_nice", 0.0)  # in user and nice too
    total = sum(fields.values()) - guests
    return total, total - idle - steal, ours, steal


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
        host = (math.nan, math.nan) if cpu is None else (cpu.others, cpu.steal)
        if not seen:
            busy = cpu.busy if cpu is not None and self._kind == "cpu" else math.nan
            return (busy, math.nan, math.nan, *host, math.nan, math.nan, math.nan)
        mine = {one.pid for one in _family()}
        return (
            _mean(gpu.utilisation for gpu in seen),
            _total(gpu.memory_used_bytes for gpu in seen),
            _total(gpu.power_w for gpu in seen),
            *host,
            _mean(gpu.own_clock_mhz for gpu in seen),
            _mean(None if gpu.alarms is None else float(bool(gpu.alarms)) for gpu in seen),
            # in a container ours are not among those that the driver names
            _mean(
                float(bool(gpu.processes - mine)) if gpu.processes & mine else None for gpu in seen
            ),
        )


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _total(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(sum(known)) if known else math.nan


def state_of(pids: Iterable[int]) -> str:
    """Say which of these processes, or of those that they have started, is stopped or waits for the
    kernel; empty where none is."""
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                if one.status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}:
                    return f": process {one.pid} was stopped by a signal"
                if one.status() == psutil.STATUS_DISK_SLEEP:
                    return f": process {one.pid} waits for the kernel, as for a driver that hangs"
    return ""


def _family() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _process_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children that have ended; 0 if it has too."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


# -- the memory of its GPUs


def memory_used() -> dict[str, int]:
    """Return UUID → bytes in use, of the GPUs that CUDA would see; of none where vLLM uses none."""
    if provenance.accelerator() != "cuda":
        return {}
    return {gpu.uuid: gpu.memory_used_bytes or 0 for gpu in gpus()}


async def given_back(
    before: Mapping[str, int], *, device: Mapping[str, object] | None = None
) -> bool:
    """Wait until no GPU has much more memory in use than before; return whether that came in time.

    A process is gone before the driver has freed what it held, and the next engine takes a share of
    what it finds free. ``device`` is what an engine's facts say of its own: what others do on other
    GPUs is not waited for. All of them where it names none.
    """
    uuids = (device or {}).get("uuids")
    named = tuple(map(str, uuids)) if isinstance(uuids, list) else ("",)
    own = {uuid: used for uuid, used in before.items() if uuid.startswith(named)}
    with suppress(TimeoutError):
        async with asyncio.timeout(GIVEN_BACK_S if own else None):
            while own:
                now = await asyncio.to_thread(memory_used)
                if all(now.get(uuid, 0) - used < _GROWN_BYTES for uuid, used in own.items()):
                    break
                await asyncio.sleep(_LOOK_S)
            return True
    return False


# -- NVML


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
        return tuple(_read(handle) for handle in _handles()) if there else ()


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
    every = [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return every
    by_name = {str(index): handle for index, handle in enumerate(every)}
    by_name |= {str(_ask(pynvml.nvmlDeviceGetUUID, handle)): handle for handle in every}
    handles = []
    for name in filter(None, (part.strip() for part in listed.split(","))):
        if name not in by_name:  # CUDA stops at the first name that is none, too
            break
        handles.append(by_name[name])
    return handles


def _read(gpu: Any) -> Gpu:  # noqa: ANN401 - an NVML handle
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, gpu)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, gpu)
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu)
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, gpu)
    alarms = [text for bit, text in ALARMING.items() if reasons and reasons & bit]
    running = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ()
    return Gpu(
        uuid=str(_ask(pynvml.nvmlDeviceGetUUID, gpu)),
        name=str(_ask(pynvml.nvmlDeviceGetName, gpu)),
        memory_bytes=None if memory is None else memory.total,
        memory_used_bytes=None if memory is None else memory.used,
        compute_capability=".".join(map(str, capability)) if capability else None,
        power_limit_w=_watts(_ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu)),
        power_w=_watts(_ask(pynvml.nvmlDeviceGetPowerUsage, gpu)),
        utilisation=None if rates is None else rates.gpu / 100,
        clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        at_power_limit=None if reasons is None else bool(reasons & _POWER_CAP),
        alarms=None if reasons is None else tuple(alarms),
        processes=frozenset(process.pid for process in running),
    )


def _ask(question: Any, about: Any, *more: int) -> Any:  # noqa: ANN401 - NVML's answers
    """Return NVML's answer, or None where this device or driver has none."""
    try:
        return question(about, *more)
    except pynvml.NVMLError:
        return None


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts * 1e-3
