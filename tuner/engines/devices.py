"""Describe the hardware, and measure how busy it is and how much of that is not ours."""

import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from tuner.engines import provenance
from tuner.engines.seam import ArgumentValue

PARALLEL_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
)
"""What multiplies the GPUs of one engine."""

_THROTTLE_REASONS = {
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "software thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksThrottleReasonSyncBoost: "sync boost",
}
"""Why clocks are lower than asked for. An idle or a clock-limited GPU is not throttled."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU; None where the device does not tell."""

    utilisation: float | None
    """Share of the last moments (device dependent, 1/6 to 1 s) in which a kernel ran, 0-1."""

    memory_used_bytes: int | None
    power_w: float | None
    clock_mhz: int | None
    throttle_reasons: tuple[str, ...]


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


def device_facts() -> dict[str, ArgumentValue]:
    """Return what identifies the hardware that vLLM would run on here."""
    if not provenance.is_cpu_build():
        with _gpus() as gpus:
            if gpus:
                return _gpu_facts(gpus)
    return {
        "kind": "cpu",
        "name": _cpu_name(),
        "cores": _cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def sample_gpus(count: int | None = None) -> tuple[GpuSample, ...]:
    """Read the first ``count`` visible GPUs, or all; empty where there is none. Costs a few
    milliseconds."""
    with _gpus() as gpus:
        return tuple(_sample_gpu(gpu) for gpu in gpus[:count])


def gpus_of(arguments: Mapping[str, ArgumentValue]) -> int:
    """Return how many GPUs an engine with these arguments takes: the first that it can see."""
    sizes = (arguments.get(name) for name in PARALLEL_SIZES)
    return math.prod(size for size in sizes if isinstance(size, int))


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since boot, of all cores together."""

    total: float
    busy: float
    ours: float
    steal: float

    @classmethod
    def now(cls) -> "CpuTimes | None":
        """Read the counters; None where the system has none, as in a container without /proc."""
        try:
            cores = psutil.cpu_times()
            ours = sum(map(_process_s, _family()))
        except (psutil.Error, OSError):
            return None
        fields = cores._asdict()
        idle = fields["idle"] + fields.get("iowait", 0.0)
        steal = fields.get("steal", 0.0)
        guests = fields.get("guest", 0.0) + fields.get("guest_nice", 0.0)  # in user and nice too
        total = sum(fields.values()) - guests
        return cls(total, total - idle - steal, ours, steal)

    def since(self, before: "CpuTimes") -> CpuSample | None:
        """Return the shares of the time in between, or None when none has passed."""
        total = self.total - before.total
        if total <= 0:
            return None
        busy = (self.busy - before.busy) / total
        ours = min(max(self.ours - before.ours, 0.0) / total, busy)
        return CpuSample(busy, ours, busy - ours, (self.steal - before.steal) / total)


class CpuMeter:
    """Tells what the cores did between two readings."""

    def __init__(self) -> None:
        self._last = CpuTimes.now()

    def sample(self) -> CpuSample | None:
        """Return the shares since the last call; None when no time has passed, or nothing tells."""
        before, now = self._last, CpuTimes.now()
        sample = now.since(before) if before and now else None
        self._last = now if sample else before
        return sample


class DeviceMeter:
    """Reads what the engine runs on: the GPUs where there are some, the cores elsewhere."""

    def __init__(self, gpus: int | None = None) -> None:
        self._cpu, self._count = CpuMeter(), gpus

    def read(self) -> tuple[float, ...] | None:
        """Return the fields of ``records.DEVICE`` since the last call; NaN where unknown, None when
        no time has passed."""
        cpu, gpus = self._cpu.sample(), sample_gpus(self._count)
        if cpu is None and not gpus:
            return None
        host = (math.nan, math.nan) if cpu is None else (cpu.others, cpu.steal)
        if not gpus:
            assert cpu is not None
            return (cpu.busy, math.nan, math.nan, *host, math.nan, math.nan)
        return (
            _mean(gpu.utilisation for gpu in gpus),
            _total(gpu.memory_used_bytes for gpu in gpus),
            _total(gpu.power_w for gpu in gpus),
            *host,
            _mean(gpu.clock_mhz for gpu in gpus),
            _mean(float(bool(gpu.throttle_reasons)) for gpu in gpus),
        )


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _total(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(sum(known)) if known else math.nan


def _family() -> list[psutil.Process]:
    """Return this process and all its descendants that live."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _process_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its children that have ended; 0 if it has too."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in {"model name", "Hardware"}:
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@contextmanager
def _gpus() -> Iterator[list[Any]]:
    """Give the NVML handles of the GPUs that CUDA would see; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        yield _visible()
    finally:
        pynvml.nvmlShutdown()


def _visible() -> list[Any]:
    count = pynvml.nvmlDeviceGetCount()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    handles = []
    for name in filter(None, (part.strip() for part in listed.split(","))):
        try:
            if name.isdecimal():
                handles.append(pynvml.nvmlDeviceGetHandleByIndex(int(name)))
            else:
                handles.append(pynvml.nvmlDeviceGetHandleByUUID(name))
        except pynvml.NVMLError:
            break  # CUDA too stops at the first name that is none
    return handles


def _gpu_facts(gpus: list[Any]) -> dict[str, ArgumentValue]:
    first = gpus[0]
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, first)
    return {
        "kind": "gpu",
        "name": str(_ask(pynvml.nvmlDeviceGetName, first)),
        "count": len(gpus),
        "memory_bytes": getattr(_ask(pynvml.nvmlDeviceGetMemoryInfo, first), "total", None),
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "compute_capability": ".".join(map(str, capability)) if capability else None,
        "power_limit_w": _scaled(_ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, first), 1e-3),
    }


def _sample_gpu(gpu: Any) -> GpuSample:  # noqa: ANN401 - an NVML handle
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, gpu)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, gpu)
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu) or 0
    return GpuSample(
        utilisation=None if rates is None else rates.gpu / 100,
        memory_used_bytes=None if memory is None else memory.used,
        power_w=_scaled(_ask(pynvml.nvmlDeviceGetPowerUsage, gpu), 1e-3),
        clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        throttle_reasons=tuple(text for bit, text in _THROTTLE_REASONS.items() if reasons & bit),
    )


def _ask(question: Any, gpu: Any, *more: int) -> Any:  # noqa: ANN401 - NVML's answers
    """Return NVML's answer, or None where this device has none."""
    try:
        return question(gpu, *more)
    except pynvml.NVMLError:
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
