"""The engine under test: at most one is up; started when needed, probed, ramped, replayed on.

Everything measured is in the journal when a call returns, but for replays: the caller adds them,
with their place in the run.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

from tuner.engines.seam import Engine, EngineFacts, IterationLog, Starter
from tuner.errors import EngineError, StoodStillError
from tuner.replay.device_use import crowded, device_use
from tuner.replay.numbers import Measurement
from tuner.replay.plan import plan_requests
from tuner.replay.ramp import probe, ramp
from tuner.replay.readings import Read, while_reading
from tuner.replay.records import DeviceLog, ProbeResult, Replay
from tuner.replay.replay import CutRule, LiveReading
from tuner.replay.soundness import Attempt, better_of_two, replay_soundly, stalls
from tuner.runs.events import EngineStart, Probed, Repeated
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.trace.trace import TraceRequest
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.sessions import turns_of
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload

Result = TypeVar("Result")

FRESH_PROMPTS = 10**9
"""First row that is nobody's: prompts of rows from here on are in no prefix cache."""


def in_words(purpose: str) -> str:
    """Return a purpose as it is shown.

    >>> in_words("tie_break")
    'tie break'
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
            self.watcher.stage(f"{build.title} with max_num_seqs={build.max_num_seqs}")
            self.engine = await build.starter.start(max_num_seqs=build.max_num_seqs)
            self.build = build
            facts = self.engine.facts
            self.limits = (build.max_num_seqs, facts.max_num_batched_tokens)
            self.evidence.check_machine(facts)
            start = EngineStart(
                purpose=build.purpose, max_num_seqs=build.max_num_seqs, facts=facts, key=build.key
            )
            self.journal.add(start)
        budget = self.engine.facts.max_num_batched_tokens
        limits = (cap or build.max_num_seqs, tokens or budget)
        if limits != self.limits:
            await self.engine.prepare(max_num_seqs=limits[0], max_num_batched_tokens=limits[1])
            self.limits = limits
        return self.engine

    async def stop(self) -> None:
        """Stop the engine. Stopping twice is allowed."""
        if self.engine is not None:
            engine, self.engine, self.build = self.engine, None, None
            await engine.stop()

    async def probe(self, engine: Engine, requests: Sequence[TraceRequest], purpose: str) -> None:
        """Time some requests one at a time on an idle engine, and keep that."""
        prompt, now_s = self.prompts(engine.facts), asyncio.get_running_loop().time

        async def work() -> tuple[list[ProbeResult], IterationLog, float]:
            begun_s = now_s()
            return *await probe(requests, engine, prompt=prompt), now_s() - begun_s

        attempt = await self._soundly("one at a time", work, lambda item: item[1])
        results, _, elapsed_s = attempt.result[0]
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

        async def work() -> tuple[IterationLog, float]:
            return await ramp(
                workload.twin_requests,
                engine,
                ceiling=ceiling,
                length_s=length_s,
                tpot_s=workload.unloaded.tpot_s or workload.unloaded.ttft_s,
                prompt=lambda item: prompt(replace(item, row=next(rows), hash_ids=())),
                seed=self.seed + trial,
            )

        attempt = await self._soundly(what, work, lambda item: item[0])
        (log, begin_s), device = attempt.result
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

    async def replay(  # noqa: PLR0913, PLR0917 - what is sent where, and when it is cut
        self,
        engine: Engine,
        what: str,
        cap: int,
        requests: Sequence[TraceRequest],
        window: Window,
        rule: CutRule,
    ) -> Replay:
        """Replay these requests of a window; see ``replay_soundly``. ``what`` names it."""
        plan = plan_requests(
            requests,
            window,
            max_model_len=engine.facts.max_model_len,
            prompt=self.prompts(engine.facts),
            turns=turns_of(requests) if self.closed_sessions else None,
        )
        with self.hanging(what):
            return await replay_soundly(
                plan,
                engine,
                window,
                max_num_seqs=cap,
                rule=rule,
                read=self.read_device,
                begun=lambda: self.watcher.trial(what, window.replay_s),
                retry=partial(self.retry, what),
                progress=self.watcher.live,
            )

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

    @contextmanager
    def hanging(self, what: str) -> Iterator[None]:
        """Write down what an engine that hangs has cost, and let its error pass."""
        try:
            yield
        except StoodStillError as error:
            self.journal.add(Repeated(what=what, why=str(error), elapsed_s=error.seconds))
            raise

    async def _soundly(
        self,
        what: str,
        work: Callable[[], Awaitable[Result]],
        log_of: Callable[[Result], IterationLog],
    ) -> Attempt[tuple[Result, DeviceLog]]:
        """Measure something beside the readings of the device; see ``better_of_two``."""

        async def attempt() -> Attempt[tuple[Result, DeviceLog]]:
            result, device = await while_reading(work(), self.read_device)
            taken = crowded(device_use([device]))
            flaws = (*stalls(log_of(result)), *([] if taken is None else [taken]))
            return Attempt((result, device), flaws)

        with self.hanging(what):
            return await better_of_two(attempt, partial(self.retry, what))

    def prompts(self, facts: EngineFacts) -> Callable[[TraceRequest], list[int]]:
        return partial(
            prompt_token_ids,
            seed=self.seed,
            vocab_size=facts.vocab_size,
            block_size=self.block_size,
        )
