"""A machine with NVIDIA GPUs, as far as NVML tells: stands in for a driver that is nowhere here."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

GIB = 1 << 30


@dataclass(eq=False)
class Card:
    """One GPU; None: the device does not report it."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_used: int = 0
    memory_total: int | None = 80 * GIB
    processes: set[int] = field(default_factory=set)
    utilisation: int | None = 0
    clock_mhz: int = 1980
    reasons: int | None = 0
    power_limit_mw: int = 700_000


def known(value: Any) -> Any:  # noqa: ANN401 - as NVML
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _running(pids: set[int]) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in sorted(pids)]


def install(monkeypatch: pytest.MonkeyPatch, *cards: Card) -> None:
    """Let NVML find these cards, in this order, and nothing else of this machine's: its vLLM may be
    the CPU build."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": lambda index: cards[index],
        "nvmlDeviceGetUUID": lambda card: card.uuid,
        "nvmlDeviceGetName": lambda card: card.name,
        "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(
            total=known(card.memory_total), used=card.memory_used
        ),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
        "nvmlDeviceGetEnforcedPowerLimit": lambda card: card.power_limit_mw,
        "nvmlDeviceGetPowerUsage": lambda _: 90_000,
        "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=known(card.utilisation)),
        "nvmlDeviceGetClockInfo": lambda card, _: card.clock_mhz,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: known(card.reasons),
        "nvmlDeviceGetComputeRunningProcesses": lambda card: _running(card.processes),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tuner.engines.provenance.is_cpu_build", lambda: False)
