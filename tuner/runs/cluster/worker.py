"""A worker on a node of a cluster: one engine at a time, and the trials that it is sent.

Everything in it is plain: nothing here knows who carries calls to it and answers back.
"""

import asyncio
import math
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tuner.engines import devices
from tuner.engines.sim import virtual_time
from tuner.errors import TunerError
from tuner.replay.live_reading import LiveReading
from tuner.replay.measure import Measurement
from tuner.runs.cluster.kinds import Description, describe_here
from tuner.runs.cluster.notes import Notes, WorkerReport
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Evidence
from tuner.runs.refine.knobs import Configuration
from tuner.runs.refine.trial_runner import Build, LocalTrialRunner, Vary
from tuner.runs.settings import SweepSettings
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""A node serves what is on it, and fetches nothing."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """All that a worker needs to start engines and measure on them."""

    vary: Vary
    settings: SweepSettings
    simulated: Description | None
    """What a worker counts as where its engines are simulated."""

    omp_threads: str | None
    """OMP_NUM_THREADS of the run's own environment, for engines on GPUs: Ray sets it to the few
    CPUs that they take."""

    """Whether the run goes on with whatever vLLM a node has."""


class _Listener:
    """Keeps what the user should know until the next report. See runner.Watcher."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, text: str) -> None:
        """Nobody watches."""

    def trial(self, what: str, length_s: float) -> None:
        """Nobody watches."""

    def live(self, seen: LiveReading) -> None:
        """Nobody watches."""

    def believed(self, best: int, agreeing: int, draws: int) -> None:
        """Nobody watches."""

    def measured(self, what: str, measurement: Measurement) -> None:
        """The run tells it."""

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class TrialWorker:
    """One engine at a time, on an event loop that lasts from call to call."""

    def __init__(self, config: WorkerConfig) -> None:
        self._description = settled(config.simulated, config.omp_threads)
        loop: Callable[[], asyncio.AbstractEventLoop] | None = None
        read = None
        if config.simulated is not None:
            loop = virtual_time.VirtualTimeLoop
        else:
            read = devices.DeviceMeter().read
        self._runner = asyncio.Runner(loop_factory=loop)
        self._notes, self._listener = Notes(), _Listener()
        runner = EngineRunner(
            config.vary({}), config.settings, Evidence(self._notes), self._listener, read
        )
        # how many failures are too many, the run says
        self._trials = LocalTrialRunner(runner, config.vary, most_failures=math.inf)
        self._workloads: dict[int, Workload] = {}

    def describe(self) -> Description:
        """Return what this worker is."""
        return self._description

    def learn(self, number: int, workload: Workload) -> None:
        """Keep the traffic, to be named by its number from now on."""
        self._workloads[number] = workload

    def trial(  # noqa: PLR0913, PLR0917 - as Lane.trial
        self,
        purpose: str,
        one: Configuration,
        number: int,
        windows: tuple[Window, ...],
        build: Build,
        floors: tuple[float, ...],
    ) -> WorkerReport:
        """See Lane."""
        workload = self._workloads[number].within(windows)
        return self._report(self._trials.trial(purpose, one, workload, build, lambda _: floors))

    def ramp(self, one: Configuration, number: int, build: Build) -> WorkerReport:
        """See TrialRunner."""
        return self._report(self._trials.ramp(one, self._workloads[number], build))

    def close(self) -> None:
        """Stop the engine. Closing twice is allowed."""
        self._runner.run(self._trials.stop())

    def _report(self, work: Coroutine[Any, Any, object]) -> WorkerReport:
        failure = None
        try:
            self._runner.run(work)
        except TunerError as error:  # as data: an error would lose its hint on the way
            failure = str(error), error.hint
        warnings, self._listener.warnings = self._listener.warnings, []
        return self._notes.report(warnings, failure)


def settled(simulated: Description | None, omp_threads: str | None) -> Description:
    """Make this process ready for engines; return what it is."""
    for key, value in OFFLINE.items():
        os.environ.setdefault(key, value)
    found = simulated or describe_here()
    if found.device.get("kind") == "gpu":
        os.environ.pop("OMP_NUM_THREADS", None)
        if omp_threads is not None:
            os.environ["OMP_NUM_THREADS"] = omp_threads
    return found
