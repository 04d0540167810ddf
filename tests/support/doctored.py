"""What ``tuner doctor`` says of the GPUs of a made-up driver, for docs/gpu.md."""

import pynvml
import pytest

from tests.support.fake_nvml import GIB, Card, install
from tuner.commands.doctor.run import line_of
from tuner.engines import gpus
from tuner.engines.checks.machine import Machine, checks


def of_two_gpus() -> str:
    """Return its lines: somebody is on the first GPU, which is hot, and the second is lost."""
    hot = Card(
        "GPU-8f3b0c1e-5d2a-4b7c-9e61-2f0a7d4c8b15",
        processes={4711},
        memory_used=31 * GIB,
        reasons=pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    )
    with pytest.MonkeyPatch.context() as patched:
        install(patched, hot, Card("GPU-2c7d9a40-11be-4f53-8a0e-6d1b3e5f7a92", is_lost=True))
        found = checks(
            Machine(
                accelerator="cuda",
                versions={"vllm": "0.32.0"},
                driver=gpus.driver(),
                gpus=gpus.visible(),
                processes={7},
                shared_bytes=32 * GIB,
                xids=("NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.",),
                lost=gpus.lost(),
            )
        )
    return "\n".join(map(line_of, found))
