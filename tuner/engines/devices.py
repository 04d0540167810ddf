"""Describe the hardware, and measure how busy it is and how much of that is not ours."""

import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tuner.engines import gpus, provenance
from tuner.engines.seam import ArgumentValue

PARALLEL_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
)
"""Arguments that multiply the GPUs of one engine."""

BUSY = 0.5
"""Utilisation from which on a GPU's clock is that of its work."""

_UUID_PREFIX = len("GPU-") + 8
"""Characters of a UUID that tell GPUs apart. vLLM wants all of it."""


_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+)(?: attention)? backend")
"""What vLLM's log says of its choice, which its configuration does not."""

_GRAPH_MODE = re.compile(
    r"(?:setting cudagraph_mode=|Overriding (?:cudagraph_mode (?:from )?(?:\w+ )?)?to )"
    r"(?:CUDAGraphMode\.)?(FULL_AND_PIECEWISE|FULL_DECODE_ONLY|PIECEWISE|FULL|NONE)\b"
)
"""What it says where it lowers the mode of CUDA graphs. A worker does so for a backend, and its
front end's configuration does not know."""


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
    """Return what identifies the hardware that vLLM would run on here, the same for two of a kind.

    A GPU that NVML does not describe has only its kind.
    """
    if provenance.accelerator() == "cuda":
        if seen := gpus.visible():
            return _gpu_facts(seen)
        if provenance.is_vllm_here():
            return {"kind": "cuda", "name": "cuda device"}
    return {
        "kind": "cpu",
        "name": _cpu_name(),
        "cores": _cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


PER_CARD = frozenset({"uuids"})
"""Keys of ``used_facts`` in which two machines of a kind differ."""

BY_LOG = frozenset({"attention_backend"})
"""Keys of ``device_of`` that a log need not tell, even on the same machine."""


def used_facts(count: int) -> dict[str, ArgumentValue]:
    """Return ``device_facts`` of the GPUs that an engine of ours now runs on, and what identifies
    them."""
    seen = gpus.visible() if provenance.accelerator() == "cuda" else ()
    if not seen:
        return device_facts()
    mine = gpus.ours(seen, processes=family(), count=count)
    return {
        **_gpu_facts(mine),
        "count": len(seen),
        "uuids": [gpu.uuid[:_UUID_PREFIX] for gpu in mine],
    }


def device_of(
    arguments: Mapping[str, ArgumentValue], how: Mapping[str, ArgumentValue], said: str
) -> dict[str, ArgumentValue]:
    """Return the facts of the device that a running engine is on, the same in tuner's process and
    behind a server: two attention backends are two machines.

    ``how`` is what its configuration says of its computing, ``said`` what its log says.
    """
    facts = used_facts(gpus_of(arguments))
    if facts["kind"] == "cpu":
        return facts
    if (backend := _BACKEND.search(said)) is not None:
        facts["attention_backend"] = backend[1]
    facts |= {name: value for name, value in how.items() if "sizes" not in name}
    lowered = _GRAPH_MODE.findall(said)
    return facts | ({"cudagraph_mode": lowered[-1]} if lowered else {})


def at_the_end(facts: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
    """Return the facts of an engine's GPU with the power limit that it has now."""
    uuids = facts.get("uuids")
    if not isinstance(uuids, list):
        return dict(facts)
    limits = (gpu.power_limit_w for gpu in gpus.visible() if gpu.uuid[:_UUID_PREFIX] in uuids)
    return {**facts, "power_limit_end_w": next(limits, None)}


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
    """Reads what the engine runs on: its GPUs, or the cores. Other accelerators do not tell how
    busy they are.

    Make it before the engine is started: where the driver numbers processes otherwise, the engine's
    GPUs are those that fill from then on.
    """

    def __init__(self, count: int | None = None) -> None:
        self._cpu, self._count = CpuMeter(), count
        self._kind = device_facts()["kind"]
        self._used = gpus.memory_used()

    def read(self) -> tuple[float, ...] | None:
        """Return the fields of ``records.DEVICE`` since the last call; NaN where unknown, None when
        no time has passed."""
        cpu, mine = self._cpu.sample(), family()
        there = gpus.visible() if self._kind == "gpu" else ()
        seen = gpus.ours(there, processes=mine, count=self._count, used_before=self._used)
        if cpu is None and not seen:
            return None
        host = (math.nan, math.nan) if cpu is None else (cpu.others, cpu.steal)
        if not seen:
            assert cpu is not None
            busy = cpu.busy if self._kind == "cpu" else math.nan
            return (busy, math.nan, math.nan, *host, math.nan, math.nan, math.nan)
        foreign = (gpus.foreign(gpu, processes=mine) for gpu in seen)
        return (
            _mean(gpu.utilisation for gpu in seen),
            _total(gpu.memory_used_bytes for gpu in seen),
            _total(gpu.power_w for gpu in seen),
            *host,
            _mean(_own_clock(gpu) for gpu in seen),
            _mean(None if gpu.alarms is None else float(bool(gpu.alarms)) for gpu in seen),
            _mean(None if number is None else float(number > 0) for number in foreign),
        )


def _own_clock(gpu: gpus.Gpu) -> float | None:
    """Return a GPU's clock. None while it idles or is at its power limit, because the clock is
    rightly lower then; and where it does not tell whether that is so, as a MIG instance."""
    busy = gpu.utilisation is not None and gpu.utilisation >= BUSY
    return gpu.clock_mhz if busy and gpu.at_power_limit is False else None


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _total(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(sum(known)) if known else math.nan


def family() -> set[int]:
    """Return the numbers of this process and all its descendants that live."""
    return {process.pid for process in _family()}


def alive() -> set[int]:
    """Return those of ``family`` that have not ended. A process that has ended stays until somebody
    asks after it."""
    return {one.pid for one in _family() if _is_running(one)}


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


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _family() -> list[psutil.Process]:
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


def _gpu_facts(seen: Sequence[gpus.Gpu]) -> dict[str, ArgumentValue]:
    first = seen[0]
    return {
        "kind": "gpu",
        "name": first.name,
        "count": len(seen),
        "memory_bytes": first.memory_bytes,
        "driver": gpus.driver()["driver"],
        "compute_capability": first.compute_capability,
        "power_limit_w": first.power_limit_w,
    }
