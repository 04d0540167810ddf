"""The one loop of all commands: what is measured next, on the bench, until the plan has enough."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.engines.seam import ITERATION, EngineFacts
from tuner.errors import EngineError
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, in_words
from tuner.runs.events import Configuration, TrialBegun, TrialEnded
from tuner.runs.evidence import CONFIRMING
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload

Rule = Callable[[int, Window], tuple[CutRule, float | None]]
"""Returns when the replay of a window (of this number) is cut and, where arithmetic rules it out
beforehand, the most that it can attain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to measure next: windows of the traffic, or a ramp."""

    purpose: str
    build: Build
    cap: int
    tokens: int = 0
    """The token budget; 0: the engine's own."""

    workload: Workload | None = None
    """Of a ramp."""

    ramp_s: float = 0.0
    windows: tuple[Window, ...] = ()
    first: int = 0
    """Number of the first window."""

    sent: Callable[[Window], Sequence[TraceRequest]] = lambda _: ()
    rule: Rule = lambda _number, _window: (CutRule(Slo(), 0.0), None)
    slo: Slo = field(default_factory=Slo)
    configuration: Configuration = field(default_factory=dict)
    approach: str = ""
    load: str = ""
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or f"{in_words(self.purpose)} {self.cap}"


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
            engine = len(bench.evidence.starts())
            bench.journal.add(TrialEnded(failed=str(error), hint=error.hint, engine=engine))
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
                windows=trial.windows,
                approach=trial.approach,
                load=trial.load,
            )
        )
    done = {**evidence.made(under_way=True)[-1].replays} if is_step else {}
    if trial.ramp_s and not done:
        assert trial.workload is not None
        engine = await bench.up(trial.build, cap=trial.cap, tokens=trial.tokens)
        await bench.ramp(engine, trial.purpose, trial.cap, trial.workload, trial.ramp_s)
    for number, window in enumerate(trial.windows, trial.first):
        if number not in done:
            replay = await _replayed(trial, bench, number, window)
            journal.add_replay(replay, trial.purpose, window=number, trial=evidence.count())
            done[number] = replay
    if trial.windows and trial.purpose != "short" and not trial.approach:
        replays = [*done.values()] if is_step else evidence.confirming(trial.purpose, trial.cap)
        bench.watcher.measured(trial.name, numbers_of(replays, trial.slo))
    if is_step:
        journal.add(TrialEnded(engine=len(evidence.starts())))


async def _replayed(trial: Trial, bench: Bench, number: int, window: Window) -> Replay:
    engine = await bench.up(trial.build, cap=trial.cap, tokens=trial.tokens)
    rule, bound = trial.rule(number, window)
    sent = trial.sent(window)
    if bound is not None and number:  # the first is replayed for its iterations
        return unsent(engine.facts, trial, window, sent, bound)
    replay = await bench.replay(engine, trial.name, trial.cap, sent, window, rule)
    if bound is None:
        return replay
    bound = min(bound, replay.attainment_bound)
    return replace(replay, attainment_bound=bound, ruled_out=replay.cut is not None)


def unsent(
    facts: EngineFacts, trial: Trial, window: Window, sent: Sequence[TraceRequest], bound: float
) -> Replay:
    """Return the replay of a window that arithmetic rules out: all of it counts, and none is sent.

    Left out it would count for nothing, and the windows that a cap can serve would stand for all.
    """
    return Replay(
        max_num_seqs=trial.cap,
        scored_from_s=window.run_in_s,
        window_s=window.length_s,
        elapsed_s=0.0,
        iterations=np.zeros(0, ITERATION),
        kv_blocks=facts.kv_blocks,
        token_budget=facts.max_num_batched_tokens,
        cut="ruled out by Little's law",
        ruled_out=True,
        unsent=sum(each.arrival_s >= window.start_s for each in sent),
        attainment_bound=bound,
        slo=trial.slo,
        start_s=asyncio.get_running_loop().time(),
    )
