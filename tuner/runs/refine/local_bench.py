"""The bench of one machine: the engine that is up, restarted where a configuration needs it.

A trial that an interruption left half done goes on with the windows that it lacks.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict

from tuner.engines.seam import Engine
from tuner.errors import EngineError
from tuner.replay.replay import CutRule
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.refine.bench import (
    MOST_FAILURES,
    RAMP,
    Build,
    Done,
    Floors,
    Lane,
    TrialRunner,
    Vary,
    no_floors,
    told,
)
from tuner.runs.refine.gains.judge import SEARCH, is_knee
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration, number, restart_key
from tuner.traffic.workload import Workload


class LocalTrialRunner(TrialRunner):
    """The one engine that is up on this machine."""

    def __init__(
        self, runner: EngineRunner, vary: Vary, *, most_failures: float = MOST_FAILURES
    ) -> None:
        super().__init__(runner.evidence, runner.watcher, most_failures=most_failures)
        self.runner = runner
        self._vary = vary
        self._built: tuple[object, ...] | None = None
        self._first: tuple[Configuration, Workload, Build] | None = None

    def begin(self, knee: Configuration, workload: Workload, build: Build) -> None:
        """See TrialRunner."""
        self._first = knee, workload, build

    async def settle(self) -> None:
        """See TrialRunner: there is one place alone."""

    def is_here(self, done: Done) -> bool:
        return not done.worker  # what a cluster measured before was elsewhere

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[Lane]:
        if self._first is not None:  # a cluster may have begun this run, with knees of its own
            knee, workload, build = self._first
            while not any(is_knee(done, knee) and self.is_here(done) for done in self.done()):
                await self.trial(SEARCH, knee, workload, build)
        yield self

    def is_up_for(self, one: Configuration, build: Build) -> bool:
        return self.runner.engine is not None and self._built == (build, restart_key(one))

    async def engine_for(self, one: Configuration, build: Build) -> Engine:
        """Return an engine with the configuration's limits set. Raises EngineError."""
        if self.runner.engine is None or not self.is_up_for(one, build):
            await self.stop()
            built_for = told({**one, CAP: build.cap, TOKENS: build.tokens})
            self.watcher.stage(f"starting an engine with {built_for}")
            starter = self._vary({**one, TOKENS: build.tokens})
            self.runner.engine = await starter.start(max_num_seqs=build.cap)
            self._built = (build, restart_key(one))
            facts = self.runner.engine.facts
            self.evidence.check_machine(facts)
            self._append(
                "start",
                purpose=f"{build.tokens} {build.turn} {restart_key(one)}",
                max_num_seqs=build.cap,
                key=repr(restart_key(one)),
                facts=asdict(facts),
            )
        await self.runner.engine.set_limits(
            max_num_seqs=number(one[CAP]), max_num_batched_tokens=number(one[TOKENS])
        )
        return self.runner.engine

    async def stop(self) -> None:
        self._built = None
        await self.runner.stop()

    async def trial(
        self,
        purpose: str,
        one: Configuration,
        workload: Workload,
        build: Build,
        floors: Floors = no_floors,
    ) -> Done:
        """See Lane."""
        if self.under_way() is None:
            self._append(
                "trial",
                purpose=purpose,
                max_num_seqs=one[CAP],
                configuration=dict(one),
                windows=[asdict(window) for window in workload.windows],
            )
        limits = floors("")

        async def replay() -> None:
            before = self.evidence.replayed()
            for place, window in enumerate(workload.windows):
                if place in before:
                    continue
                engine = await self.engine_for(one, build)
                rule = CutRule(workload.slo, limits[place] if limits else 0.0)
                sent = workload.sent_in(window)
                cap = number(one[CAP])
                replay = await self.runner.replay(engine, purpose, cap, sent, window, rule)
                self.evidence.add_replay(replay, purpose, window=place)

        await self._attempt(replay)
        done = self.done()[-1]
        if done.failed is None:
            self.watcher.measured(f"{purpose} {told(one)}", done.measured(workload))
        return done

    async def ramp(self, one: Configuration, workload: Workload, build: Build) -> None:
        """See TrialRunner."""
        if self.under_way() is None:
            self._append("trial", purpose=RAMP, max_num_seqs=build.cap, configuration=dict(one))

        async def ramp() -> None:
            if not self.evidence.replayed():
                engine = await self.engine_for({**one, CAP: build.cap}, build)
                await self.runner.ramp(engine, RAMP, build.cap, workload, workload.step_s)

        await self._attempt(ramp)

    async def _attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do what a trial consists of, and note how it ended."""
        failed, hint, started = None, "", True
        try:
            await work()
        except EngineError as error:
            started = self.runner.engine is not None
            await self.stop()
            failed, hint = str(error), error.hint
        self._count(failed, hint)
        number = len(self.evidence.starts_s())
        self._append("measured", failed=failed, engine=number, started=started)
