"""Several traces on one engine: each concluded, then each confirmed, then one cap for all.

One engine at the ceiling serves every trace in turn; the engines that confirm are started once for
every cap that is chosen. Each trace has a journal of its own, so that any of them can be rescored
alone; the engines' starts stand in the journal of all.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.engines.seam import (
    ArgumentValue,
    Engine,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    Stalls,
    Starter,
)
from tuner.errors import UsageError
from tuner.replay.readings import Read
from tuner.runs.engine_runner import EngineRunner, Watcher
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.runs.ladder import FAST_STEPS, STEPS
from tuner.runs.outcome import SweepOutcome
from tuner.runs.recorder import Recorder
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.shared_cap import MultiTraceOutcome, price_of, share, trace_demand
from tuner.runs.sweep.sweep import SweepRun
from tuner.trace.trace import TraceRequest
from tuner.traffic.workload import MIN_STEP_S


@dataclass(frozen=True, slots=True)
class Member:
    """One trace of several."""

    trace: str
    requests: Sequence[TraceRequest]
    settings: SweepSettings
    journal: Journal
    watcher: Watcher


class _Kept:
    """An engine that goes on when its user is done with it. See the seam: Engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def facts(self) -> EngineFacts:
        return self._engine.facts

    @property
    def stalls(self) -> Stalls:
        return self._engine.stalls

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        await self._engine.generate(request, reply)

    async def set_limits(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        await self._engine.set_limits(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )

    async def is_idle(self) -> bool:
        return await self._engine.is_idle()

    async def reset_prefix_cache(self) -> None:
        await self._engine.reset_prefix_cache()

    async def take_iterations(self) -> IterationLog:
        return await self._engine.take_iterations()

    async def stop(self) -> None:
        """Leave it running."""


class KeptEngines:
    """Starts engines that several runs use one after the other. See the seam: Starter.

    With ``fresh`` every start is a new engine, as its user has asked for.
    """

    def __init__(self, starter: Starter, journal: Journal, *, fresh: bool) -> None:
        self.starter, self.fresh = starter, fresh
        self.journal, self.recorder = journal, Recorder(journal)
        self.purpose = "ladder"
        self._engine: Engine | None = None
        self._size = 0

    def resolve(self, *, max_num_seqs: int) -> Mapping[str, ArgumentValue]:
        return self.starter.resolve(max_num_seqs=max_num_seqs)

    def doing(self) -> Callable[[], str]:
        return self.starter.doing()

    async def start(self, *, max_num_seqs: int) -> Engine:
        """Return the engine of this size that is up, else start it."""
        if self._engine is None or self.fresh or max_num_seqs != self._size:
            await self.close()
            engine = await self.starter.start(max_num_seqs=max_num_seqs)
            self._engine, self._size = engine, max_num_seqs
            self.recorder.add_start(engine.facts, purpose=self.purpose, max_num_seqs=max_num_seqs)
        return _Kept(self._engine)

    async def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.stop()


async def sweep_traces(
    members: Sequence[Member],
    starter: Starter,
    journal: Journal,
    *,
    read_device: Read | None = None,
) -> MultiTraceOutcome:
    """Tune every member by itself and say which cap they may share. ``journal`` is that of all.

    Their settings' budget is for all of them. Raises what ``sweep`` raises.
    """
    settings = members[0].settings
    engines = KeptEngines(starter, journal, fresh=settings.fresh)
    try:
        start_s = await _start_s(engines, settings.ceiling)
        budget_s = _part_of(settings, start_s=start_s, members=len(members))
        runs = [
            SweepRun(
                EngineRunner(
                    engines,
                    replace(one.settings, budget_s=budget_s),
                    Evidence(one.journal),
                    one.watcher,
                    read_device,
                )
            )
            for one in members
        ]
        for one, run in zip(members, runs, strict=True):
            await run.conclude(one.requests)
        await engines.close()
        engines.purpose = "confirm"
        for run in sorted(runs, key=lambda one: one.conclusion.verdict.max_num_seqs):
            await run.confirm()
    finally:
        await engines.close()
    outcomes = {one.trace: run.outcome() for one, run in zip(members, runs, strict=True)}
    return multi_trace_outcome(outcomes)


async def _start_s(engines: KeptEngines, ceiling: int) -> float:
    """Return how long the first engine took to start; start it where none was before."""
    first = next(engines.journal.of("start"), None)
    if first is not None:
        return float(first["facts"]["start_s"])
    return (await engines.start(max_num_seqs=ceiling)).facts.start_s


def _part_of(settings: SweepSettings, *, start_s: float, members: int) -> float:
    """Return each member's budget: every one counts the start that they share as its own.

    Raises UsageError where not even the shortest sweeps fit.
    """
    steps = FAST_STEPS if settings.fast else STEPS
    shared_s = 0.0 if settings.fresh else (members - 1) * start_s
    part_s = (settings.budget_s + shared_s) / members
    starts = 1 + (settings.ceiling.bit_length() if settings.fresh else 1)
    least_s = starts * start_s + steps * MIN_STEP_S
    if part_s < least_s:
        raise UsageError(
            f"--budget leaves {part_s:.0f}s for each of {members} traces, the shortest sweep "
            f"needs about {least_s:.0f}s",
            hint=f"Give at least --budget {math.ceil(members * least_s - shared_s)}s.",
        )
    return part_s


def multi_trace_outcome(outcomes: Mapping[str, SweepOutcome]) -> MultiTraceOutcome:
    """Return what these runs come to. No engine is needed."""
    demands = [trace_demand(name, one.conclusion) for name, one in outcomes.items()]
    shared_cap = share(demands)
    prices = tuple(
        price_of(one, outcomes[one.trace].conclusion, shared_cap.max_num_seqs) for one in demands
    )
    return MultiTraceOutcome(outcomes, shared_cap, prices)
