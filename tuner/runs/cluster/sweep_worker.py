"""A whole sweep on a node of a cluster, told step by step to the run that keeps its journal."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.engines import devices
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.engines.vllm.start import VllmStarter, default_log
from tuner.errors import TunerError
from tuner.replay.live_reading import LiveReading
from tuner.replay.measure import Measurement
from tuner.replay.records import Replay
from tuner.runs.cluster.kinds import Description
from tuner.runs.cluster.notes import Notes, WorkerReport
from tuner.runs.cluster.worker import settled
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Event
from tuner.runs.outcome import SweepOutcome
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep import sweep
from tuner.trace.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Job:
    """A sweep as a job: what is swept, with what."""

    requests: Sequence[TraceRequest]
    settings: SweepSettings
    starter: Starter
    simulated: Description | None
    omp_threads: str | None
    """See worker.WorkerConfig."""


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """The news since the last message: to keep, and to tell."""

    report: WorkerReport
    said: tuple[tuple[str, tuple[Any, ...]], ...]
    """Method of a watcher → what it is called with."""

    outcome: SweepOutcome | None


class _Relay:
    """Keeps what a watcher is to be told. See runner.Watcher."""

    def __init__(self, news: asyncio.Event) -> None:
        self.said: list[tuple[str, tuple[Any, ...]]] = []
        self._news = news

    def stage(self, text: str) -> None:
        self._say("stage", text)

    def trial(self, what: str, length_s: float) -> None:
        self._say("trial", what, length_s)

    def live(self, seen: LiveReading) -> None:
        """Say nothing: it comes too often to be carried."""

    def believed(self, best: int, agreeing: int, draws: int) -> None:
        self._say("believed", best, agreeing, draws)

    def measured(self, what: str, measurement: Measurement) -> None:
        self._say("measured", what, measurement)

    def warn(self, text: str) -> None:
        self._say("warn", text)

    def _say(self, method: str, *arguments: object) -> None:
        self.said.append((method, arguments))
        self._news.set()


class SweepWorker:
    """One sweep, from its beginning or from what an earlier worker has measured of it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._description = settled(job.simulated, job.omp_threads)

    def describe(self) -> Description:
        """Return what this worker is."""
        return self._description

    def sweep(
        self, events: Sequence[Event], replays: Mapping[str, Replay]
    ) -> Iterator[WorkerMessage]:
        """Go on with a journal; yield what is new until all is measured."""
        notes = Notes(events=list(events), replays=dict(replays))
        notes.report()  # the run has all of that
        starter, read = self._job.starter, None
        loop: Callable[[], asyncio.AbstractEventLoop] | None = None
        if isinstance(starter, SimStarter):
            starter.go_on_after(Evidence(notes).engines())
            begin_s = notes.clock_s

            def loop() -> asyncio.AbstractEventLoop:
                return virtual_time.VirtualTimeLoop(begin_s)

        elif isinstance(starter, VllmStarter):
            starter.log = default_log()
            read = devices.DeviceMeter().read
        with asyncio.Runner(loop_factory=loop) as runner:
            news = asyncio.Event()
            relay = _Relay(news)
            work = sweep(
                self._job.requests, starter, self._job.settings, notes, relay, read_device=read
            )
            task = runner.get_loop().create_task(work)
            while not task.done():
                runner.run(_wait(task, news))
                said, relay.said = tuple(relay.said), []
                yield self._told(task, notes, said)

    def _told(
        self,
        task: "asyncio.Task[SweepOutcome]",
        notes: Notes,
        said: tuple[tuple[str, tuple[Any, ...]], ...],
    ) -> WorkerMessage:
        outcome = failure = None
        if task.done():
            try:
                outcome = task.result()
            except TunerError as error:  # as data: an error would lose its hint on the way
                failure = str(error), error.hint
        return WorkerMessage(replace(notes.report(), failure=failure), said, outcome)


async def _wait(task: "asyncio.Task[SweepOutcome]", news: asyncio.Event) -> None:
    """Wait until there is something to tell. The sweep only goes on while somebody waits: what it
    tells it tells between replays."""
    waiting = asyncio.create_task(news.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    news.clear()


def resolved(starter: Starter, ceiling: int) -> Mapping[str, ArgumentValue] | tuple[str, str]:
    """Return an engine's arguments as a node resolves them, or message and hint of its refusal.

    Called on the node, in a process of its own.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides all from who takes none
    if isinstance(starter, VllmStarter):
        starter.log = default_log()
    try:
        return starter.resolve(max_num_seqs=ceiling)
    except TunerError as error:
        return str(error), error.hint
