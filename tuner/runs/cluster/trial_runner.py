"""The runner of a cluster: as many engines as it has room for, one placement each.

The run alone writes the journal: a trial the moment it arrives. A worker that is gone is replaced
where there is room, and what it was doing is done again elsewhere.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tuner.engines.seam import EngineFacts
from tuner.errors import EngineError
from tuner.runs.cluster.notes import WorkerReport
from tuner.runs.cluster.session import LostError
from tuner.runs.cluster.worker_pool import MOST_LOSSES, WorkerPool, WorkerSlot
from tuner.runs.engine_runner import Watcher
from tuner.runs.evidence import Evidence
from tuner.runs.refine.knobs import CAP, Configuration, restart_key
from tuner.runs.refine.trial_runner import (
    RAMP,
    SEARCH,
    Build,
    Chosen,
    FinishedTrial,
    Floors,
    TrialRunner,
    is_knee,
    no_floors,
    told,
)
from tuner.traffic.workload import Workload

if TYPE_CHECKING:
    from tuner.runs.journal import Event


class ClusterTrialRunner(TrialRunner):
    """Trials on the workers of a pool; see TrialRunner."""

    def __init__(self, pool: WorkerPool, evidence: Evidence, watcher: Watcher) -> None:
        super().__init__(evidence, watcher)
        self.width = pool.width
        self._pool = pool
        self._home: WorkerSlot | None = None
        self._first: tuple[Configuration, Workload, Build] | None = None
        self._workloads: list[Workload] = []

    def begin(self, knee: Configuration, workload: Workload, build: Build) -> None:
        """See TrialRunner."""
        self._first = knee, workload, build
        if self.under_way() is not None:  # a disk was full, or the power gone
            failed = "an interruption tore it"
            self.recorder.append("measured", failed=failed, engine=0, worker="", started=True)

    async def stop(self) -> None:
        await self._pool.close()

    def choose(self, chosen: Chosen) -> None:
        """See TrialRunner. What comes now is made in one place."""
        super().choose(chosen)
        self._pool.shrink(self._home)

    async def settle(self) -> None:
        """Settle where the newest trials of this kind were made, as long as that is there."""
        if self._home is not None and not self._home.lost.is_set():
            return
        before = [done.worker for done in self.done() if done.purpose != SEARCH]

        def pick(idle: Sequence[WorkerSlot]) -> WorkerSlot | None:
            known = [one for one in idle if one.name in before[-1:]]
            return next(iter([*known, *idle]), None)

        self._home = await self._take(pick)
        self._pool.give(self._home)

    def is_here(self, done: FinishedTrial) -> bool:
        return self._home is not None and done.worker == self._home.name

    @asynccontextmanager
    async def lane(self) -> AsyncIterator["_Lane"]:
        lane = _Lane(self, await self._take(_any))
        try:
            yield lane
        finally:
            self._pool.give(lane.place)

    async def trial(
        self,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Floors = no_floors,
    ) -> FinishedTrial:
        """See TrialRunner."""
        place = await self._take_home()
        try:
            return await self.make(place, purpose, one, workload, build, floors)
        except LostError as error:
            return self.give_up(purpose, one, f"its worker is gone: {error}", started=True)
        finally:
            self._pool.give(place)

    async def ramp(self, one: Configuration, workload: Workload, build: Build) -> None:
        """See TrialRunner. Raises EngineError too when MOST_LOSSES workers are gone meanwhile."""
        for losses in range(1, MOST_LOSSES + 1):
            place = await self._take_home()
            try:
                number = await self._taught(place, workload)
                work = (RAMP, dict(one), number, build)
                report = await self._worked(place, RAMP, one, *work)
            except LostError as error:
                if losses == MOST_LOSSES:
                    raise EngineError(
                        f"{losses} workers are gone during the ramp: {error}",
                        hint="Look into Ray's logs; --resume goes on with what was measured.",
                    ) from error
            else:
                self._merge(report, place, build, one)
                self._pool.note(place, self.done()[-1].failed)
                return
            finally:
                self._pool.give(place)

    async def make(  # noqa: PLR0913, PLR0917 - as Lane.trial, and where
        self,
        place: WorkerSlot,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Floors,
    ) -> FinishedTrial:
        """Make a trial in a place. Raises LostError when its worker is gone."""
        number = await self._taught(place, workload)
        limits = tuple(floors(place.name))
        work = ("trial", purpose, dict(one), number, workload.windows, build, limits)
        report = await self._worked(place, purpose, one, *work)
        self._merge(report, place, build, one)
        done = self.done()[-1]
        self._pool.note(place, done.failed)
        if done.failed is None:
            self._count(None, "")
            what = f"{purpose} {told(one)} on {place.node}"
            self.watcher.measured(what, done.measured(workload))
        return done

    def give_up(
        self, purpose: str, one: Configuration, why: str, *, started: bool
    ) -> FinishedTrial:
        """Note that a trial cannot be made; ``started`` as in FinishedTrial."""
        at_s = asyncio.get_running_loop().time()
        trial = {"purpose": purpose, "max_num_seqs": one[CAP], "configuration": dict(one)}
        end = {"failed": why, "engine": 0, "worker": "", "started": started}
        self.evidence.journal.append_all(
            [{"event": "trial", **trial, "at_s": at_s}, {"event": "measured", **end, "at_s": at_s}]
        )
        self._count(why, "Look into Ray's logs.")
        return self.done()[-1]

    async def replaced(self, place: WorkerSlot) -> WorkerSlot:
        """Return another place for one that is lost."""
        assert place.lost.is_set()
        return await self._take(_any)

    async def _take(self, pick: Callable[[Sequence[WorkerSlot]], WorkerSlot | None]) -> WorkerSlot:
        self._pool.start(self._prepare, width=self.width if self.chosen() is None else 1)
        return await self._pool.take(pick)

    async def _take_home(self) -> WorkerSlot:
        while True:
            await self.settle()
            home = self._home
            assert home is not None

            def pick(idle: Sequence[WorkerSlot], home: WorkerSlot = home) -> WorkerSlot | None:
                return home if home in idle or home.lost.is_set() else None

            place = await self._take(pick)
            if not place.lost.is_set():
                return place

    async def _prepare(self, place: WorkerSlot) -> None:
        """Replay the knee in a new place, for what is searched there to be compared with."""
        if self._first is None or self.chosen() is not None:
            return
        knee, workload, build = self._first
        while not place.unfit and not any(
            is_knee(done, knee) and done.worker == place.name for done in self.done()
        ):
            await self.make(place, SEARCH, knee, workload, build, no_floors)

    async def _taught(self, place: WorkerSlot, workload: Workload) -> int:
        """Return the number by which a worker knows the traffic."""
        known = enumerate(self._workloads)
        number = next((n for n, one in known if one.requests is workload.requests), None)
        if number is None:
            number = len(self._workloads)
            self._workloads.append(workload)
        if number not in place.known:
            await self._worked(place, "", {}, "learn", number, workload)
            place.known.add(number)
        return number

    async def _worked(
        self, place: WorkerSlot, purpose: str, one: Configuration, method: str, *arguments: object
    ) -> WorkerReport:
        """Return what a worker did; note its loss."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        if purpose:
            self.watcher.stage(f"{place.node}: {purpose} {told(one)}")
        try:
            report: WorkerReport = await place.handle.call(method, *arguments)
        except LostError as error:
            self.watcher.warn(f"a worker on {place.node} is gone: {error}")
            self.recorder.append(
                "lost",
                purpose=purpose,
                max_num_seqs=one.get(CAP),
                worker=place.name,
                why=str(error),
                elapsed_s=loop.time() - begun_s,
            )
            self._pool.lose(place)
            raise
        return report

    def _merge(
        self, report: WorkerReport, place: WorkerSlot, build: Build, one: Configuration
    ) -> None:
        """Write down what a worker has measured. Raises EngineError for what ended it."""
        for warning in report.warnings:
            self.watcher.warn(f"{place.node}: {warning}")
        at_s = asyncio.get_running_loop().time()
        lines: list[Event] = []
        starts = len(self.evidence.starts_s())
        stored = 0
        for event in report.events:
            line = {**event, "at_s": at_s}
            if event["event"] == "start":
                self.evidence.check_machine(EngineFacts(**event["facts"]))
                starts += 1
                place.engine, place.built = starts, (build, restart_key(one))
                line["purpose"] = f"{event['purpose']} {place.name}"
            elif event["event"] == "replay":
                file = self.evidence.journal.store(report.replays[event["file"]], ahead=stored)
                stored += 1
                line |= {"file": file, "trial": len(self.evidence.trials())}
            elif event["event"] == "measured":
                line |= {"engine": place.engine, "worker": place.name}
                if event["failed"] is not None:
                    place.built = None
            lines.append(line)
        if report.failure is not None:
            message, hint = report.failure
            raise EngineError(f"on {place.node}: {message}", hint=hint)
        self.evidence.journal.append_all(lines)


class _Lane:
    """A place that somebody holds; another one once its worker is gone. See Lane."""

    def __init__(self, runner: ClusterTrialRunner, place: WorkerSlot) -> None:
        self.runner, self.place = runner, place

    def is_up_for(self, one: Configuration, build: Build) -> bool:
        return self.place.built == (build, restart_key(one))

    async def trial(
        self,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Floors = no_floors,
    ) -> FinishedTrial:
        losses = 0
        while True:
            try:
                return await self.runner.make(self.place, purpose, one, workload, build, floors)
            except LostError as error:
                losses += 1
                if losses == MOST_LOSSES:
                    why = f"{losses} workers are gone with it: {error}"
                    return self.runner.give_up(purpose, one, why, started=False)
            self.place = await self.runner.replaced(self.place)


def _any(idle: Sequence[WorkerSlot]) -> WorkerSlot | None:
    return next(iter(idle), None)
