"""The engine under test: started when it is needed, replayed on, ramped.

Everything measured is in the journal when a call returns.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

from tuner.engines.seam import Engine, EngineFacts, IterationLog, Stalls, Starter
from tuner.engines.timeouts import STALL_S
from tuner.errors import EngineError, StoodStillError
from tuner.replay.device_use import crowded, device_use
from tuner.replay.live_reading import LiveReading
from tuner.replay.measure import Measurement
from tuner.replay.plan import plan_requests
from tuner.replay.probe import probe
from tuner.replay.ramp import ramp
from tuner.replay.readings import Read, while_reading
from tuner.replay.records import DeviceLog, ProbeResult, Replay
from tuner.replay.replay import CutRule
from tuner.replay.soundness import Attempt, better_of_two, replay_soundly, stalls_since
from tuner.runs.evidence import Evidence
from tuner.runs.recorder import Recorder
from tuner.runs.settings import SweepSettings
from tuner.trace.trace import TraceRequest
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.sessions import turns_of
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload

Result = TypeVar("Result")

LOOK_S = 1.0
"""Seconds between two looks whether the engine moves."""

LONG_START_S = 10.0
"""Length of a start from which on it is said what the start does."""

FRESH_PROMPTS = 10**9
"""First row that is nobody's: prompts of rows from here on are in no prefix cache."""


def in_words(purpose: str) -> str:
    """Return a purpose as it is shown.

    >>> in_words("tie_break")
    'tie break'
    """
    return purpose.replace("_", " ")


def start_in_words(facts: EngineFacts) -> str:
    """Return what a start took its time for; nothing where that is not worth a line."""
    phases = [f"{name} {took_s:.0f} s" for name, took_s in facts.phases_s.items() if took_s >= 1.0]
    return f"started in {facts.start_s:.0f} s: {', '.join(phases)}" if phases else ""


class Watcher(Protocol):
    """The listener that is told how the run goes."""

    def stage(self, text: str) -> None: ...
    def trial(self, what: str, length_s: float) -> None: ...
    def live(self, seen: LiveReading) -> None: ...
    def believed(self, best: int, agreeing: int, draws: int) -> None: ...
    def measured(self, what: str, measurement: Measurement) -> None: ...
    def warn(self, text: str) -> None: ...


class EngineRunner:
    """The engine that is up, if one is, and where what it shows is kept."""

    def __init__(  # noqa: PLR0913 - what it runs, and who is told
        self,
        starter: Starter,
        settings: SweepSettings,
        evidence: Evidence,
        watcher: Watcher,
        read_device: Read | None,
        *,
        confirming: Starter | None = None,
    ) -> None:
        """``confirming`` starts the engine that confirms, if ``starter`` does not."""
        self.starter, self.settings = starter, settings
        self.confirming = confirming or starter
        self.evidence, self.watcher = evidence, watcher
        self.recorder = Recorder(evidence.journal)
        self.read_device = read_device
        self.engine: Engine | None = None
        self.built_for = ""
        self.spare_s: Callable[[], float] = lambda: settings.budget_s - evidence.spent_s()
        """Returns the seconds that may be spent on measuring something once more."""

    async def engine_for(self, max_num_seqs: int, purpose: str) -> Engine:
        """Return the engine for this purpose with the cap set.

        It is started only when it is needed: a resumed run with nothing left to measure starts
        none.
        """
        live = purpose == "ladder"
        built_for = "ladder" if live else f"{purpose} {max_num_seqs}"
        size = self.settings.ceiling if live else max_num_seqs
        if self.built_for != built_for:
            await self.stop()
        if self.engine is None:
            self.built_for = built_for
            self.engine = await self._started(size, purpose)
            self.evidence.check_machine(self.engine.facts)
            self.recorder.add_start(self.engine.facts, purpose=purpose, max_num_seqs=size)
            if took := start_in_words(self.engine.facts):
                self.watcher.stage(took)
        tokens = self.engine.facts.max_num_batched_tokens
        await self.engine.set_limits(max_num_seqs=max_num_seqs, max_num_batched_tokens=tokens)
        return self.engine

    async def _started(self, max_num_seqs: int, purpose: str) -> Engine:
        """Start the engine of a purpose."""
        is_server = purpose == "confirm" and self.confirming is not self.starter
        what = "the server that confirms" if is_server else "the engine"
        self.watcher.stage(f"starting {what} with max_num_seqs={max_num_seqs}")
        return await self._saying(self.confirming if is_server else self.starter, max_num_seqs)

    async def _saying(self, starter: Starter, max_num_seqs: int) -> Engine:
        """Start an engine, and say what it does where that takes long."""
        saying = asyncio.ensure_future(self._say_parts(starter.doing()))
        try:
            return await starter.start(max_num_seqs=max_num_seqs)
        finally:
            saying.cancel()

    async def _say_parts(self, doing: Callable[[], str]) -> None:
        told = ""
        await asyncio.sleep(LONG_START_S)
        while True:
            if (part := doing()) not in {told, ""}:
                told = part
                self.watcher.stage(f"the engine is {part}")
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        if self.engine is not None:
            engine, self.engine = self.engine, None
            await engine.stop()

    async def probe(self, engine: Engine, requests: Sequence[TraceRequest], purpose: str) -> None:
        """Time some requests one at a time on an idle engine, and keep that."""
        what, prompt = "one at a time", self.prompts(engine.facts)

        now_s = asyncio.get_running_loop().time

        async def work() -> tuple[list[ProbeResult], float]:
            begun_s = now_s()
            return await probe(requests, engine, prompt=prompt), now_s() - begun_s

        found = await self._soundly(what, engine, work)
        results, elapsed_s = found.result[0]
        self.recorder.add_probes(results, found.flaws, elapsed_s, purpose=purpose)

    async def ramp(
        self, engine: Engine, purpose: str, ceiling: int, workload: Workload, length_s: float
    ) -> None:
        """Time every batch size and keep the iterations; see ``ramp``.

        Raises EngineError when no iteration ends in time.
        """
        what = f"{in_words(purpose)} to {ceiling}"
        self.watcher.trial(what, length_s)
        await engine.reset_prefix_cache()
        number = len(self.evidence.trials())
        rows = count(FRESH_PROMPTS * (1 + number))
        prompt = self.prompts(engine.facts)

        async def work() -> tuple[IterationLog, float]:
            return await ramp(
                workload.twin_requests,
                engine,
                ceiling=ceiling,
                length_s=length_s,
                tpot_s=workload.unloaded.tpot_s or workload.unloaded.ttft_s,
                prompt=lambda one: prompt(replace(one, row=next(rows), hash_ids=())),
                seed=self.settings.seed + number,
            )

        found = await self._soundly(what, engine, work)
        (log, begin_s), device = found.result
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
            flaws=found.flaws,
            start_s=begin_s,
        )
        self.recorder.add_replay(result, purpose)
        self.watcher.stage(f"{what}: {len(log):,} iterations")

    async def replay(  # noqa: PLR0913, PLR0917 - what is sent where, and when it is cut
        self,
        engine: Engine,
        purpose: str,
        cap: int,
        requests: Sequence[TraceRequest],
        window: Window,
        rule: CutRule,
    ) -> Replay:
        """Replay these requests of a window; see ``replay_soundly``."""
        what = f"{in_words(purpose)} {cap}"
        plan = plan_requests(
            requests,
            window,
            max_model_len=engine.facts.max_model_len,
            prompt=self.prompts(engine.facts),
            turns=turns_of(requests) if self.settings.closed_sessions else None,
        )

        async with self.watched(what, engine):
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
        there is time to spare. Either way they are told."""
        why = "; ".join(flaws)
        if elapsed_s > self.spare_s():
            self.watcher.warn(f"{what}: {why}; there is no time to measure it again")
            return False
        self.recorder.add_late(what, why, elapsed_s)
        self.watcher.warn(f"{what}: {why}; measuring it once more")
        return True

    @asynccontextmanager
    async def watched(self, what: str, engine: Engine) -> AsyncIterator[None]:
        """Say and write down when the engine stands still, and when that ends it.

        Raises the StoodStillError of its block.
        """
        saying = asyncio.ensure_future(self._say_stalls(what, engine.stalls))
        try:
            yield
        except StoodStillError as error:
            if engine.stalls.now_s:  # that has ended it
                self.recorder.add_late(what, str(error), error.seconds)
            raise
        finally:
            saying.cancel()

    async def _say_stalls(self, what: str, stalls: Stalls) -> None:
        said = False
        while True:
            await asyncio.sleep(LOOK_S)
            said, before = stalls.now_s >= STALL_S, said
            if said and not before:
                self.recorder.add_stall(what)
                self.watcher.warn(
                    f"{what}: the engine has not moved for {stalls.now_s:.0f} s with work waiting"
                )

    async def _soundly(
        self, what: str, engine: Engine, work: Callable[[], Awaitable[Result]]
    ) -> Attempt[tuple[Result, DeviceLog]]:
        """Measure something beside the readings of the device; see ``better_of_two``."""

        async def attempt() -> Attempt[tuple[Result, DeviceLog]]:
            before = engine.stalls.count
            found, device = await while_reading(work(), self.read_device)
            taken = crowded(device_use([device]))
            flaws = (*stalls_since(engine, before), *([] if taken is None else [taken]))
            return Attempt((found, device), flaws)

        async with self.watched(what, engine):
            return await better_of_two(attempt, partial(self.retry, what))

    def prompts(self, facts: EngineFacts) -> Callable[[TraceRequest], list[int]]:
        return partial(
            prompt_token_ids,
            seed=self.settings.seed,
            vocab_size=facts.vocab_size,
            block_size=self.settings.trace_block_size,
        )
