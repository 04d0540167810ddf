"""A vLLM plug-in: steps as even as a GPU's, so that who else uses the machine hardly shows.

A CPU's step takes as long as its neighbours let it. Here each begins STEP_S after the one before,
or later if that took longer: of what a neighbour costs only the part above STEP_S is left.
"""

import time
from pathlib import Path
from typing import Any

from tests.support.places import ROOT

STEP_S = 0.04
"""The tiny model's own steps take 3 to 10 ms."""


def environment(folder: Path) -> dict[str, str]:
    """Install the plug-in in a folder; return the variables with which vLLM finds it there."""
    info = folder / "paced-1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paced\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\npaced = tests.support.paced:pace\n"
    )
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def pace() -> None:
    """Make the worker of this process keep the pace."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase  # noqa: PLC0415 - needs vLLM

    unpaced = WorkerWrapperBase.execute_model
    due_s = 0.0

    def execute_model(self: Any, scheduler_output: Any) -> Any:  # noqa: ANN401 - vLLM's
        nonlocal due_s
        now_s = time.monotonic()
        time.sleep(max(0.0, due_s - now_s))
        due_s = max(due_s, now_s) + STEP_S
        return unpaced(self, scheduler_output)

    WorkerWrapperBase.execute_model = execute_model
