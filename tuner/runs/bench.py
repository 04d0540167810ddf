"""The engine under test, and the one loop of all commands: measure what a plan wants next.

At most one engine is up; it is started when needed, probed, ramped, replayed on. Everything that
was measured is in the journal when a call returns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

import msgspec

from tuner.engines.seam import Engine, Starter
from tuner.engines.sim import virtual_time
from tuner.engines.sim.start import SimStarter
from tuner.errors import EngineError, StoodStillError
from tuner.replay.numbers import Measurement
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.ramp import probe, ramp
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule, Prompt, replay
from tuner.replay.soundness import Attempt, Read, flaws_of, soundly, stalls
from tuner.runs.journal import EngineStart, Failed, Journal, Probed, Repeated, Selection, Tried
from tuner.system import interruption
from tuner.trace.trace import TraceRequest
from tuner.traffic.clients import prompt_token_ids, turns_of
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.workload import Workload, choose_windows, keep_what_fits, workload_of

Result = TypeVar("Result")

FRESH_PROMPTS = 10**9
"""First row that is nobody's: prompts of rows from here on are in no prefix cache."""


class Watcher(Protocol):
    """The listener to how a run progresses."""

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, length_s: float) -> None: ...
    def live(self, elapsed_s: float, in_flight: int, decoding: int) -> None: ...
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
class Trial:
    """What to measure next: a window until its ``rule`` cuts it, a ramp of ``ramp_s``, or else
    requests one at a time on an idle engine."""

    tried: Tried
    build: Build
    requests: Sequence[TraceRequest]
    rule: CutRule | None = None
    ramp_s: float = 0.0
    tpot_s: float = 0.0
    """Of a ramp: about how long a token takes on an idle engine."""

    tokens: int = 0
    """The token budget; 0: the engine's own."""

    title: str = ""

    @property
    def name(self) -> str:
        to = "to " * bool(self.ramp_s)
        words = f"{self.tried.purpose.replace('_', ' ')} {to}{self.tried.max_num_seqs}"
        return self.title or words


@dataclass(slots=True)
class Bench:
    """The engine that is up, if one is."""

    journal: Journal
    watcher: Watcher
    read_device: Read | None
    block_size: int = field(kw_only=True)
    """Tokens that one hash id of the trace stands for."""

    closed_sessions: bool = False
    engine: Engine | None = None
    build: Build | None = None
    limits: tuple[int, int] = (0, 0)
    spare_s: Callable[[], float] = lambda: float("inf")
    """Returns the seconds that may be spent on measuring something once more."""

    async def up(self, build: Build, *, cap: int = 0, tokens: int = 0) -> Engine:
        """Return the engine of this build, its limits set: by default to what it was built for.

        It is started only when it is needed: a resumed run with nothing left to measure starts
        none. Raises EngineError, RunError.
        """
        size = build.max_num_seqs
        if self.engine is None or self.build != build:
            await self.stop()
            self.watcher.stage(f"{build.title} with max_num_seqs={size}")
            self.engine = await build.starter.start(max_num_seqs=size)
            self.build, facts = build, self.engine.facts
            self.limits = (size, facts.max_num_batched_tokens)
            self.journal.check_machine(facts)
            self.journal.add(EngineStart(build.purpose, size, facts, build.key))
        limits = (cap or size, tokens or self.engine.facts.max_num_batched_tokens)
        if limits != self.limits:
            await self.engine.prepare(max_num_seqs=limits[0], max_num_batched_tokens=limits[1])
            self.limits = limits
        return self.engine

    async def stop(self) -> None:
        """Stop the engine. Stopping twice is allowed."""
        if self.engine is not None:
            engine, self.engine, self.build = self.engine, None, None
            await engine.stop()

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
        chosen = self.journal.selection()
        if chosen is None:
            length_s = step_s()
            part, own = choose_windows(requests, unloaded, window=window, step_s=length_s)
            chosen = Selection(part, (own,), length_s)
            self.journal.add(chosen)
            self.watcher.stage(f"a step replays {own} of the trace")
        return workload_of(requests, slo, unloaded, chosen.part, chosen.windows[0], chosen.step_s)

    async def make(self, trial: Trial) -> None:
        """Measure a trial; it is in the journal then. Raises EngineError, RunError."""
        engine = await self.up(trial.build, cap=trial.tried.max_num_seqs, tokens=trial.tokens)
        prompt = partial(
            prompt_token_ids,
            seed=0,
            vocab_size=engine.facts.vocab_size,
            block_size=self.block_size,
        )
        try:
            if trial.rule is not None:
                await self._replay(engine, trial, trial.rule, prompt)
            elif trial.ramp_s:
                await self._ramp(engine, trial, prompt)
            else:
                await self._probe(engine, trial, prompt)
        except StoodStillError as error:  # what an engine that hangs has cost
            self.journal.add(Repeated(trial.name, str(error), error.seconds))
            raise

    async def _probe(self, engine: Engine, trial: Trial, prompt: Prompt) -> None:
        self.watcher.stage(f"measuring {trial.name}")
        attempt = await self._soundly(
            trial,
            lambda: probe(trial.requests, engine, prompt=prompt),
            lambda done: stalls(done[1]),
        )
        purpose, results = trial.tried.purpose, tuple(attempt.result[0])
        self.journal.add(Probed(purpose, results, attempt.flaws, attempt.elapsed_s))

    async def _ramp(self, engine: Engine, trial: Trial, prompt: Prompt) -> None:
        """Time every batch size. Raises EngineError when no iteration ends in time."""
        cap, length_s = trial.tried.max_num_seqs, trial.ramp_s
        number = len(self.journal.trials())
        rows = count(FRESH_PROMPTS * (1 + number))
        self.watcher.trial(trial.name, length_s)
        await engine.prepare()

        attempt = await self._soundly(
            trial,
            lambda: ramp(
                trial.requests,
                engine,
                ceiling=cap,
                length_s=length_s,
                tpot_s=trial.tpot_s,
                prompt=lambda item: prompt(replace(item, row=next(rows), hash_ids=())),
                seed=number,
            ),
            lambda done: stalls(done[0]),
        )
        log, begin_s = attempt.result
        if not len(log):
            raise EngineError(
                f"no iteration ended within {length_s:.0f}s of {cap} requests at a time",
                hint="Give a longer --step and a larger --budget, or a lower --ceiling.",
            )
        result = Replay(
            max_num_seqs=cap,
            scored_from_s=0.0,
            window_s=length_s,
            elapsed_s=max(length_s, float((log["start_s"] + log["duration_s"]).max())),
            iterations=log,
            kv_blocks=engine.facts.kv_blocks,
            token_budget=engine.facts.max_num_batched_tokens,
            device=attempt.device,
            flaws=attempt.flaws,
            start_s=begin_s,
        )
        self.journal.add_replay(result, trial.tried)
        self.watcher.stage(f"{trial.name}: {len(log):,} iterations")

    async def _replay(self, engine: Engine, trial: Trial, rule: CutRule, prompt: Prompt) -> None:
        """Replay the requests of a window with an empty prefix cache."""
        window = trial.tried.window
        assert window is not None

        async def work() -> Replay:
            self.watcher.trial(trial.name, window.replay_s)
            await engine.prepare()
            return await replay(
                trial.requests,
                engine,
                window,
                max_num_seqs=trial.tried.max_num_seqs,
                rule=rule,
                prompt=prompt,
                turns=turns_of(trial.requests) if self.closed_sessions else None,
                progress=self.watcher.live,
            )

        attempt = await self._soundly(trial, work, lambda done: flaws_of(done, engine.facts))
        result = replace(attempt.result, device=attempt.device, flaws=attempt.flaws)
        if trial.tokens:
            result = replace(result, token_budget=trial.tokens)
        self.journal.add_replay(result, trial.tried)
        if trial.tried.purpose != "short" and rule.slo.limits_s():
            self.watcher.measured(trial.name, numbers_of([result], rule.slo))

    def _retry(self, trial: Trial, flaws: Sequence[str], elapsed_s: float) -> bool:
        """Return whether what took so long is measured once more because of its flaws: as far as
        there is time to spare. Warns of them either way."""
        why = f"{trial.name}: {'; '.join(flaws)}"
        if elapsed_s > self.spare_s():
            self.watcher.warn(f"{why}; there is no time to measure it again")
            return False
        self.journal.add(Repeated(trial.name, "; ".join(flaws), elapsed_s))
        self.watcher.warn(f"{why}; measuring it once more")
        return True

    async def _soundly(
        self,
        trial: Trial,
        work: Callable[[], Awaitable[Result]],
        flaws_in: Callable[[Result], Iterator[str]],
    ) -> Attempt[Result]:
        retry = partial(self._retry, trial)
        return await soundly(work, flaws_in, read=self.read_device, retry=retry)


def fitting(
    requests: Sequence[TraceRequest], max_model_len: int
) -> tuple[list[TraceRequest], list[str]]:
    """Return the requests that an engine can take, and a warning where it cannot take all. Raises
    TraceError where it can take none."""
    kept, dropped = keep_what_fits(requests, max_model_len=max_model_len)
    text = (
        f"{dropped} of {len(requests)} requests are longer than max_model_len={max_model_len} and "
        "were left out: raise it to include them"
    )
    return kept, [text] * bool(dropped)


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
            await bench.make(trial)
        except EngineError as error:
            if interruption.happened():
                raise
            failures += 1
            tried = msgspec.structs.asdict(trial.tried)
            bench.journal.add(Failed(**tried, why=str(error), hint=error.hint))
            await bench.stop()
            if failures > most_failures:
                raise
            bench.watcher.warn(f"{trial.name}: {error}")
        else:
            failures = 0


def execute(work: Coroutine[Any, Any, Result], starter: Starter, journal: Journal) -> Result:
    """Run work to its end: on virtual time from where the journal ends, where engines are
    simulated."""
    if not isinstance(starter, SimStarter):
        return interruption.run(work)
    starter.machine.started = len(journal.start_s_of())
    return virtual_time.run(work, begin_s=journal.clock_s)
