"""NVIDIA's GPUs as NVML describes them, and those of them that are ours.

NVML counts GPUs in the order of the PCI bus. A host with several kinds of GPU needs
CUDA_DEVICE_ORDER=PCI_BUS_ID, as vLLM asks for too: CUDA counts by speed. Ours is a GPU on which a
process of ours runs.
"""

import asyncio
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from tuner.engines import provenance

ALARMING = {
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "software thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hardware thermal slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}
"""Reasons for which a GPU is slower than it should be. To be at its power limit is normal at full
load."""

_POWER_CAP = pynvml.nvmlClocksThrottleReasonSwPowerCap

_GROWN_BYTES = 256 << 20
"""A CUDA context alone takes that much."""

GIVEN_BACK_S = 30.0
"""Time that the driver may take to free the memory of an engine that has ended."""

_LOOK_S = 0.2


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


def visible() -> tuple[Gpu, ...]:
    """Read the GPUs that CUDA would see; empty where there is none. Costs some milliseconds."""
    with _nvml() as there:
        return tuple(_read(handle) for handle in _handles()) if there else ()


def ours(
    gpus: Sequence[Gpu],
    *,
    processes: Collection[int],
    count: int | None = None,
    used_before: Mapping[str, int] | None = None,
) -> tuple[Gpu, ...]:
    """Return the GPUs that these processes of ours are on.

    Where the driver numbers processes otherwise, as in a container: those whose memory in use has
    grown since ``used_before`` (UUID → bytes). Before anything runs: the first ``count``, or all.
    """
    if on := tuple(gpu for gpu in gpus if gpu.processes & set(processes)):
        return on
    before = used_before or {}
    grown = tuple(
        gpu
        for gpu in gpus
        if gpu.uuid in before and (gpu.memory_used_bytes or 0) - before[gpu.uuid] >= _GROWN_BYTES
    )
    if grown and (count is None or len(grown) >= count):
        return grown[:count]
    return tuple(gpus[:count])


def foreign(gpu: Gpu, *, processes: Collection[int]) -> int | None:
    """Return how many processes of others compute on a GPU that ours are on; None where ours are
    not among those that the driver names, so that it cannot be told."""
    mine = gpu.processes & set(processes)
    return len(gpu.processes - mine) if mine else None


def memory_used() -> dict[str, int]:
    """Return UUID → bytes in use, of the GPUs that CUDA would see; of none where vLLM uses none."""
    if provenance.accelerator() != "cuda":
        return {}
    return {gpu.uuid: gpu.memory_used_bytes or 0 for gpu in visible()}


async def given_back(
    before: Mapping[str, int],
    *,
    device: Mapping[str, object] | None = None,
    within_s: float = GIVEN_BACK_S,
) -> bool:
    """Wait until no GPU has much more memory in use than before; whether that came in time.

    A process is gone before the driver has freed what it held, and the next engine takes a share of
    what it finds free. ``device`` is what an engine's facts say of its own: what others do on other
    GPUs is not waited for. All of them where it names none.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    uuids = (device or {}).get("uuids")
    named = tuple(map(str, uuids)) if isinstance(uuids, list) else ()  # or their beginnings
    own = {uuid: used for uuid, used in before.items() if not named or uuid.startswith(named)}
    while own:
        now = await asyncio.to_thread(memory_used)
        if all(now.get(uuid, 0) - used < _GROWN_BYTES for uuid, used in own.items()):
            break
        if loop.time() >= until_s:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


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
    whole = [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return whole
    uuids = {str(_ask(pynvml.nvmlDeviceGetUUID, gpu)): gpu for gpu in whole}
    handles = []
    for name in filter(None, (part.strip() for part in listed.split(","))):
        gpus = whole[int(name) : int(name) + 1] if name.isdecimal() else [uuids.get(name)]
        if not gpus or gpus[0] is None:  # CUDA stops at the first name that is none, too
            break
        handles.append(gpus[0])
    return handles


def _read(gpu: Any) -> Gpu:  # noqa: ANN401 - an NVML handle
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, gpu)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, gpu)
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu)
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, gpu)
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
        alarms=None
        if reasons is None
        else tuple(text for bit, text in ALARMING.items() if reasons & bit),
        processes=frozenset(
            process.pid for process in _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ()
        ),
    )


def _ask(question: Any, about: Any, *more: int) -> Any:  # noqa: ANN401 - NVML's answers
    """Return NVML's answer, or None where this device or driver has none."""
    try:
        return question(about, *more)
    except pynvml.NVMLError:
        return None


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts * 1e-3
