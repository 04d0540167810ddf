"""A machine with NVIDIA GPUs, as far as NVML tells: stands in for a driver that is nowhere here."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

GIB = 1 << 30


@dataclass(eq=False)
class Card:
    """One GPU, or one MIG instance; what is None, the device does not tell."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_used: int = 0
    memory_total: int | None = 80 * GIB
    processes: set[int] = field(default_factory=set)
    mps_processes: set[int] = field(default_factory=set)
    utilisation: int | None = 0
    clock_mhz: int = 1980
    reasons: int | None = 0
    power_limit_mw: int = 700_000
    uncorrected_errors: int | None = 0
    instances: list["Card"] = field(default_factory=list)
    is_instance: bool = False
    is_lost: bool = False
    """Off the bus: not even its UUID is told."""


def told(value: Any) -> Any:  # noqa: ANN401 - as NVML
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _found(card: Card) -> Card:
    if card.is_lost:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    return card


def _running(pids: set[int]) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in sorted(pids)]


def install(
    monkeypatch: pytest.MonkeyPatch, *cards: Card, names: dict[int, str] | None = None
) -> None:
    """Let NVML find these cards, in this order, and name the processes so; and nothing else of this
    machine's: its vLLM may be the CPU build."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlSystemGetProcessName": lambda pid: (names or {}).get(pid, "python"),
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": lambda index: _found(cards[index]),
        "nvmlDeviceGetUUID": lambda card: _found(card).uuid,
        "nvmlDeviceGetName": lambda card: card.name,
        "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(
            total=told(card.memory_total), used=card.memory_used
        ),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceIsMigDeviceHandle": lambda card: int(card.is_instance),
        "nvmlDeviceGetMigMode": lambda card: (
            told(None if card.is_instance else int(bool(card.instances))),
            0,
        ),
        "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": lambda card, index: told(
            dict(enumerate(card.instances)).get(index)
        ),
        "nvmlDeviceGetEnforcedPowerLimit": lambda card: card.power_limit_mw,
        "nvmlDeviceGetPowerUsage": lambda _: 90_000,
        "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=told(card.utilisation)),
        "nvmlDeviceGetClockInfo": lambda card, _: card.clock_mhz,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: told(card.reasons),
        "nvmlDeviceGetTotalEccErrors": lambda card, *_: told(card.uncorrected_errors),
        "nvmlDeviceGetComputeRunningProcesses": lambda card: _running(card.processes),
        "nvmlDeviceGetMPSComputeRunningProcesses": lambda card: _running(card.mps_processes),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tuner.engines.provenance.accelerator", lambda: "cuda")
