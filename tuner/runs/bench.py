"""The engine under test, and the one loop of all commands: measure what a plan wants next.

At most one engine is up; it is started when needed, probed, ramped, replayed on. Everything that
was measured is in the journal when a call returns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

from tuner.engines.seam import Engine, EngineFacts, IterationLog, Starter
from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.errors import EngineError, StoodStillError
from tuner.replay.device_use import Read, crowded, device_use, while_reading
from tuner.replay.numbers import Measurement
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.ramp import probe, ramp
from tuner.replay.records import DeviceLog, Replay
from tuner.replay.replay import CutRule, LiveReading, plan_requests
from tuner.replay.soundness import Attempt, better_of_two, replay_soundly, stalls
from tuner.runs.events import (
    Configuration,
    EngineStart,
    Probed,
    Repeated,
    Selection,
    TrialBegun,
    TrialEnded,
)
from tuner.runs.evidence import CONFIRMING, Evidence
from tuner.runs.journal import Journal
from tuner.system import interruption
from tuner.trace.trace import TraceRequest
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.sessions import turns_of
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload, choose_windows, workload_of

Result = TypeVar("Result")

FRESH_PROMPTS = 10**9
"""First row that is nobody's: prompts of rows from here on are in no prefix cache."""


def in_words(purpose: str) -> str:
    """Return a purpose as it is shown.

    >>> in_words("drift_ramp")
    'drift ramp'
    """
    return purpose.replace("_", " ")


class Watcher(Protocol):
    """The listener to how a run progresses."""

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, length_s: float) -> None: ...
    def live(self, seen: LiveReading) -> None: ...
    def believed(self, best: int, agreeing: int, draws: int) -> None: ...
    def measured(self, what: str, measurement: Measurement) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Build:
    """An engine to build. Trials of equal builds share one engine."""

    purpose: str
    max_num_seqs: int
    """The most that it must take."""

    starter: Starter = field(compare=False)
    key: str = ""
    """See ``EngineStart.key``."""

    title: str = field(default="starting the engine", compare=False)


@dataclass(frozen=True, slots=True)
class ToReplay:
    """A window, what is sent in it, and when its replay is cut."""

    window: Window
    requests: Sequence[TraceRequest]
    rule: CutRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to measure next: a window of the traffic, or a ramp."""

    purpose: str
    build: Build
    cap: int
    tokens: int = 0
    """The token budget; 0: the engine's own."""

    ramp: Workload | None = None
    ramp_s: float = 0.0
    replay: ToReplay | None = None
    configuration: Configuration = field(default_factory=dict)
    approach: str = ""
    load: str = ""
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or f"{in_words(self.purpose)} {self.cap}"


class Bench:
    """The engine that is up, if one is."""

    def __init__(  # noqa: PLR0913 - what is sent, and who watches
        self,
        journal: Journal,
        watcher: Watcher,
        read_device: Read | None,
        *,
        block_size: int,
        seed: int = 0,
        closed_sessions: bool = False,
    ) -> None:
        """``block_size``: tokens that one hash id of the trace stands for."""
        self.journal, self.watcher, self.read_device = journal, watcher, read_device
        self.evidence = Evidence(journal)
        self.seed, self.block_size, self.closed_sessions = seed, block_size, closed_sessions
        self.engine: Engine | None = None
        self.build: Build | None = None
        self.limits = (0, 0)
        self.spare_s: Callable[[], float] = lambda: float("inf")
        """Returns the seconds that may be spent on measuring something once more."""

    async def up(self, build: Build, *, cap: int = 0, tokens: int = 0) -> Engine:
        """Return the engine of this build, its limits set: by default to what it was built for.

        It is started only when it is needed: a resumed run with nothing left to measure starts
        none. Raises EngineError, RunError.
        """
        if self.engine is None or self.build != build:
            await self.stop()
            size = build.max_num_seqs
            self.watcher.stage(f"{build.title} with max_num_seqs={size}")
            self.engine = await build.starter.start(max_num_seqs=size)
            self.build, facts = build, self.engine.facts
            self.limits = (size, facts.max_num_batched_tokens)
            self.evidence.check_machine(facts)
            self.journal.add(
                EngineStart(purpose=build.purpose, max_num_seqs=size, facts=facts, key=build.key)
            )
        budget = self.engine.facts.max_num_batched_tokens
        limits = (cap or build.max_num_seqs, tokens or budget)
        if limits != self.limits:
            await self.engine.prepare(max_num_seqs=limits[0], max_num_batched_tokens=limits[1])
            self.limits = limits
        return self.engine

    def selected(
        self,
        requests: Sequence[TraceRequest],
        slo: Slo,
        unloaded: Unloaded,
        *,
        window: str,
        step_s: Callable[[], float],
    ) -> Workload:
        """Choose what a step of so many seconds replays; or read back what was chosen."""
        chosen = self.evidence.selection()
        if chosen is None:
            length_s = step_s()
            part, own = choose_windows(requests, unloaded, window=window, step_s=length_s)
            chosen = Selection(part=part, windows=(own,), step_s=length_s)
            self.journal.add(chosen)
            self.watcher.stage(f"a step replays {own} of the trace")
        return workload_of(requests, slo, unloaded, chosen.part, chosen.windows[0], chosen.step_s)

    async def stop(self) -> None:
        """Stop the engine. Stopping twice is allowed."""
        if self.engine is not None:
            engine, self.engine, self.build = self.engine, None, None
            await engine.stop()

    async def probe(self, engine: Engine, requests: Sequence[TraceRequest], purpose: str) -> None:
        """Time some requests one at a time on an idle engine, and keep that."""
        prompt = self.prompts(engine.facts)
        attempt = await self._soundly(
            "one at a time", lambda: probe(requests, engine, prompt=prompt)
        )
        results, _, _, elapsed_s = attempt.result
        self.journal.add(
            Probed(
                purpose=purpose, results=tuple(results), flaws=attempt.flaws, elapsed_s=elapsed_s
            )
        )

    async def ramp(
        self, engine: Engine, purpose: str, ceiling: int, workload: Workload, length_s: float
    ) -> None:
        """Time every batch size and keep the iterations; see ``ramp``.

        Raises EngineError when no iteration ends in time.
        """
        what, trial = f"{in_words(purpose)} to {ceiling}", self.evidence.count()
        self.watcher.trial(what, length_s)
        await engine.prepare()
        rows, prompt = count(FRESH_PROMPTS * (1 + trial)), self.prompts(engine.facts)

        async def work() -> tuple[float, IterationLog]:
            log, begin_s = await ramp(
                workload.twin_requests,
                engine,
                ceiling=ceiling,
                length_s=length_s,
                tpot_s=workload.unloaded.tpot_s or workload.unloaded.ttft_s,
                prompt=lambda item: prompt(replace(item, row=next(rows), hash_ids=())),
                seed=self.seed + trial,
            )
            return begin_s, log

        attempt = await self._soundly(what, work)
        begin_s, log, device, _ = attempt.result
        if not len(log):
            raise EngineError(
                f"no iteration ended within {length_s:.0f}s of {ceiling} requests at a time",
                hint="Give a longer --step and a larger --budget, or a lower --ceiling.",
            )
        result = Replay(
            max_num_seqs=ceiling,
            scored_from_s=0.0,
            window_s=length_s,
            elapsed_s=max(length_s, float((log["start_s"] + log["duration_s"]).max())),
            iterations=log,
            kv_blocks=engine.facts.kv_blocks,
            token_budget=engine.facts.max_num_batched_tokens,
            device=device,
            flaws=attempt.flaws,
            start_s=begin_s,
        )
        self.journal.add_replay(result, purpose, trial=trial)
        self.watcher.stage(f"{what}: {len(log):,} iterations")

    async def replay(self, engine: Engine, what: str, cap: int, part: ToReplay) -> Replay:
        """Replay the requests of a window; see ``replay_soundly``. ``what`` names it."""
        requests, window = part.requests, part.window
        plan = plan_requests(
            requests,
            window,
            max_model_len=engine.facts.max_model_len,
            prompt=self.prompts(engine.facts),
            turns=turns_of(requests) if self.closed_sessions else None,
        )
        replaying = replay_soundly(
            plan,
            engine,
            window,
            max_num_seqs=cap,
            rule=part.rule,
            read=self.read_device,
            begun=lambda: self.watcher.trial(what, window.replay_s),
            retry=partial(self.retry, what),
            progress=self.watcher.live,
        )
        return await self._unless_it_hangs(what, replaying)

    def retry(self, what: str, flaws: Sequence[str], elapsed_s: float) -> bool:
        """Return whether what took so long is measured once more because of its flaws: as far as
        there is time to spare. Warns of them either way."""
        why = "; ".join(flaws)
        if elapsed_s > self.spare_s():
            self.watcher.warn(f"{what}: {why}; there is no time to measure it again")
            return False
        self.journal.add(Repeated(what=what, why=why, elapsed_s=elapsed_s))
        self.watcher.warn(f"{what}: {why}; measuring it once more")
        return True

    async def _soundly(
        self, what: str, work: Callable[[], Awaitable[tuple[Result, IterationLog]]]
    ) -> Attempt[tuple[Result, IterationLog, DeviceLog, float]]:
        """Measure something beside the readings of the device, and its seconds; see
        ``better_of_two``."""
        now_s = asyncio.get_running_loop().time

        async def attempt() -> Attempt[tuple[Result, IterationLog, DeviceLog, float]]:
            begun_s = now_s()
            (result, log), device = await while_reading(work(), self.read_device)
            taken = crowded(device_use([device]))
            flaws = (*stalls(log), *([] if taken is None else [taken]))
            return Attempt((result, log, device, now_s() - begun_s), flaws)

        return await self._unless_it_hangs(what, better_of_two(attempt, partial(self.retry, what)))

    async def _unless_it_hangs(self, what: str, work: Awaitable[Result]) -> Result:
        """Write down what an engine that hangs has cost, and let its error pass."""
        try:
            return await work
        except StoodStillError as error:
            self.journal.add(Repeated(what=what, why=str(error), elapsed_s=error.seconds))
            raise

    def prompts(self, facts: EngineFacts) -> Callable[[TraceRequest], list[int]]:
        return partial(
            prompt_token_ids,
            seed=self.seed,
            vocab_size=facts.vocab_size,
            block_size=self.block_size,
        )


# The loop


async def measure(
    plan: Callable[[], Trial | None], bench: Bench, *, most_failures: float = 0
) -> None:
    """Measure what ``plan`` returns until it returns nothing.

    A plan reads the events of the run and starts nothing, so that an interrupted run continues by
    being called again. It is called in a thread, as it may take seconds. An engine that
    fails is the result of its trial; raises EngineError when more fail one after the other.
    """
    failures = 0
    while (trial := await asyncio.to_thread(plan)) is not None:
        try:
            await make(trial, bench)
        except EngineError as error:
            failures += 1
            if failures > most_failures:
                raise
            await bench.stop()
            bench.watcher.warn(f"{trial.name}: {error}")
            bench.journal.add(TrialEnded(failed=str(error), hint=error.hint))
        else:
            failures = 0


async def make(trial: Trial, bench: Bench) -> None:
    """Measure a trial, or what an interruption left of it; all of it is in the journal then.

    Raises EngineError, RunError.
    """
    evidence, journal = bench.evidence, bench.journal
    is_step = trial.purpose not in CONFIRMING
    if is_step and evidence.under_way() is None:
        journal.add(
            TrialBegun(
                purpose=trial.purpose,
                max_num_seqs=trial.cap,
                configuration=trial.configuration,
                window=None if trial.replay is None else trial.replay.window,
                approach=trial.approach,
                load=trial.load,
            )
        )
    done = evidence.made(under_way=True)[-1].replay if is_step else None
    if done is None:
        engine = await bench.up(trial.build, cap=trial.cap, tokens=trial.tokens)
        if trial.ramp is not None:
            await bench.ramp(engine, trial.purpose, trial.cap, trial.ramp, trial.ramp_s)
        elif trial.replay is not None:
            replay = await bench.replay(engine, trial.name, trial.cap, trial.replay)
            journal.add_replay(replay, trial.purpose, trial=evidence.count())
            if trial.purpose != "short" and not trial.approach:
                bench.watcher.measured(trial.name, numbers_of([replay], trial.replay.rule.slo))
    if is_step:
        journal.add(TrialEnded())


def execute(
    work: Coroutine[Any, Any, Result], starter: Starter, journal: Journal, *, lost: bool = True
) -> Result:
    """Run work to its end: on virtual time from where the journal ends, where engines are
    simulated. ``lost``: whether an interruption ended the engine that was started last before it
    had done its work."""
    if not isinstance(starter, SimStarter):
        return interruption.run(work)
    sizes = [size for _, size in Evidence(journal).start_s_of()]
    starter.continue_after(sizes, lost=lost)
    return virtual_time.run(work, begin_s=journal.clock_s)
