"""The loop that the work of a run is done on: real time, or virtual time on a simulated machine."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from tuner.engines.seam import Starter
from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.system import interruption

Result = TypeVar("Result")


def execute(
    work: Coroutine[Any, Any, Result],
    starter: Starter,
    journal: Journal | None = None,
    *,
    lost: bool = True,
) -> Result:
    """Run work to its end: on virtual time from where the journal ends, where engines are
    simulated. ``lost``: whether an interruption ended the engine that was started last before it
    had done its work."""
    if not isinstance(starter, SimStarter):
        return interruption.run(work)
    if journal is None:
        return virtual_time.run(work)
    starter.continue_after(Evidence(journal).engines(), lost=lost)
    return virtual_time.run(work, begin_s=journal.clock_s)
