"""The run of ``tuner compare``: for each block, for each approach in random order, replay.

One engine lives at a time, so that none that idles disturbs the others. Every approach of a block
replays the same requests; another block replays others, so that intervals know of traffic too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.seam import ArgumentValue, Engine, Starter
from tuner.engines.server.start import ServerStarter
from tuner.engines.vllm.start import VllmStarter
from tuner.engines.workers import start_workers
from tuner.errors import UsageError
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import restored
from tuner.replay.readings import Read
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, Watcher
from tuner.runs.compare.table import ComparisonTable, Tuned, made_in, tables_of
from tuner.runs.compare.ways import (
    LEVELS,
    OF_PROFILE,
    SERVER,
    UNTUNED,
    Approach,
    Workload,
    windows_of,
)
from tuner.runs.events import EngineStart, Replayed, Selection
from tuner.runs.evidence import Evidence
from tuner.runs.execute import execute
from tuner.runs.journal import Journal
from tuner.runs.measure import Trial, measure
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo
from tuner.traffic.window import RUN_IN_SHARE, Part
from tuner.traffic.workload import keep_what_fits

REPEATS = 3
"""Blocks: each measures everything once."""

STEP_S, MIN_STEP_S = 20.0, 3.0
"""How long a window is at most, and at least: a shorter one shows hardly one request of a slow
approach."""

DRAIN_SHARE = 0.5
"""Time that unfinished requests are waited for after the last one, as a share of the window."""

SLACK = 0.05
"""Share of the time left that is kept for what ends late: a worker finishes what it has begun."""

WINDOWS = 1 + RUN_IN_SHARE + DRAIN_SHARE
"""Windows' time that a replay takes at most."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is compared, checked; nothing has been started for it."""

    requests: Sequence[TraceRequest]
    block_size: int
    approaches: Sequence[Approach]
    levels: Sequence[str]
    budget_s: float
    max_num_seqs: int | None
    """The tuned value that was given."""

    profile: ServingProfile | None
    source: str
    """Where the profile lies."""

    base: Starter
    of_profile: Starter | None
    """With every argument of the profile."""

    @property
    def max_model_len(self) -> int:
        return int(str(self.base.resolve(max_num_seqs=UNTUNED)["max_model_len"]))


@dataclass(frozen=True, slots=True)
class _WorkersStarter:
    """See Starter: workers behind queues."""

    base: VllmStarter
    approach: Approach

    def resolve(self, *, max_num_seqs: int) -> Mapping[str, ArgumentValue]:
        return self.base.resolve(max_num_seqs=max_num_seqs)

    async def start(self, *, max_num_seqs: int) -> Engine:
        assert max_num_seqs == self.approach.batching.size
        workers, batching = self.approach.workers, self.approach.batching
        return await start_workers(self.base, workers, batching, log=self.base.log)

    def doing(self) -> Callable[[], str]:
        return self.base.doing()


@dataclass(slots=True)
class Comparison:
    """A comparison, as far as its journal has come."""

    question: Question
    journal: Journal
    workload: Workload
    tuned: Tuned
    dropped: int

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.journal)

    def tables(self) -> list[ComparisonTable]:
        profile = self.question.profile
        slo = None if profile is None else profile.decision.slo.slo
        return tables_of(self.journal, self.question.levels, self.question.approaches, slo)

    def warnings(self) -> list[str]:
        """Return what to beware of in what was compared, and how far it came."""
        requests, evidence = len(self.question.requests), self.evidence
        too_long = (
            f"{self.dropped} of {requests} requests are longer than max_model_len="
            f"{self.question.max_model_len} and were left out: raise it to compare with them"
        )
        too_short = (
            "the trace is too short for another part of it in every block: the intervals know "
            "more of the machine's noise than of other traffic; compare with a longer trace"
        )
        is_short = len(set(self.workload.windows)) < REPEATS
        warnings = [*([too_long] if self.dropped else []), *([too_short] if is_short else [])]
        warnings += [text for start in evidence.starts() for text in start.facts.cautions]
        warnings += [
            f"{one.title}: {'; '.join(one.replay.flaws)}"
            for one in made_in(self.journal)
            if one.replay is not None and one.replay.flaws
        ]
        if (left := next(self._left(), None)) is not None:
            warnings.append(
                f"the budget ended it after {left[1]} of {REPEATS} blocks: give a larger --budget"
            )
        return list(dict.fromkeys(warnings))

    def next_trial(self) -> Trial | None:
        """Return the next replay; None when all were made, or the budget has no time for a block
        more."""
        left = next(self._left(), None)
        if left is None:
            return None
        approach, block, load = left
        before_s = self.evidence.spent_s() - self.block_s(block)
        if block and before_s + max(map(self.block_s, range(block))) > self.question.budget_s:
            return None
        window = self.workload.windows[block]
        rule = CutRule(Slo(), 0.0, drain_s=DRAIN_SHARE * window.length_s)
        total = REPEATS * len(self.question.approaches) * len(self.question.levels)
        build = self._build(approach, block)
        return Trial(
            purpose=build.purpose,
            build=build,
            cap=build.max_num_seqs,
            windows=(window,),
            sent=lambda _: self.workload.sent(load, block),
            rule=lambda *_: (rule, None),
            approach=approach.name,
            load=load,
            title=f"{self.evidence.count() + 1} of {total}: {approach.title}, {load}",
        )

    def block_s(self, block: int) -> float:
        """Return what a block has taken, engine starts included."""
        ending = f" {block}"
        starts = {
            one.purpose: one.facts.start_s
            for one in self.journal.of(EngineStart)
            if one.purpose.endswith(ending)
        }
        replays = self.journal.of(Replayed)
        return sum(starts.values()) + sum(
            one.elapsed_s for one in replays if one.purpose.endswith(ending)
        )

    def _left(self) -> Iterator[tuple[Approach, int, str]]:
        """Yield (approach, block, load) of what is still to be replayed, in order: random
        and the same in a resumed run. What never served is not tried again."""
        made = made_in(self.journal)
        done = {(one.approach, one.block, one.load) for one in made}
        failed = {(one.approach, one.block) for one in made if one.replay is None}
        served = {one.approach for one in made if one.replay is not None}
        approaches, loads = self.question.approaches, self.question.levels
        for block in range(REPEATS):
            for place in np.random.default_rng(block).permutation(len(approaches)).tolist():
                name = approaches[place].name
                is_dead = any(each == name for each, _ in failed) and name not in served
                if is_dead or (name, block) in failed:
                    continue
                rng = np.random.default_rng([block, place])
                for load in (loads[i] for i in rng.permutation(len(loads)).tolist()):
                    if (name, block, load) not in done:
                        yield approaches[place], block, load

    def _build(self, approach: Approach, block: int) -> Build:
        """Return an engine that has the whole device to itself."""
        question, base, size = self.question, self.question.base, self.tuned.max_num_seqs
        starter = base
        if approach.name == "untuned":
            size = UNTUNED
        elif approach.name == OF_PROFILE:
            assert question.of_profile is not None  # or it is not chosen
            assert question.profile is not None
            starter, size = question.of_profile, question.profile.decision.max_num_seqs
        elif isinstance(base, VllmStarter) and approach.workers:
            starter, size = _WorkersStarter(base, approach), approach.batching.size
        elif isinstance(base, VllmStarter) and approach.name == SERVER:
            starter = ServerStarter.like(base)
        purpose = f"{approach.name} {block}"
        return Build(purpose, size, starter, title=f"block {block + 1}: starting {approach.title}")


def compare(
    question: Question, journal: Journal, watcher: Watcher, read: Read | None
) -> Comparison:
    """Measure all that the journal does not hold yet.

    Raises RunError, ProfileError for a twin that makes no sense, and UsageError when the budget is
    too small or nothing says what is compared; an approach's failures are its result.
    """
    profile, twin, start_s = question.profile, None, 0.0
    if profile is not None:
        starts = profile.provenance
        start_s = starts.engine_seconds.starts / max(1, starts.engine_starts)
    if any(LEVELS[level] for level in question.levels):
        if profile is None or profile.twin is None:
            raise UsageError(
                "a load by requests in flight needs the twin of a profile",
                hint="Give --profile (tuner sweep makes one), or compare with --loads recorded.",
            )
        twin = restored(profile.twin, source=question.source)
    tuned = _tuned(question)
    kept, dropped = keep_what_fits(question.requests, max_model_len=question.max_model_len)
    workload = Workload(kept, (), question.levels, twin, question.block_size)
    choice = Evidence(journal).selection()
    if choice is None:
        step_s = affordable_s(
            question.budget_s, question.approaches, loads=len(question.levels), start_s=start_s
        )
        windows = windows_of(kept, step_s=step_s, blocks=REPEATS)
        part = Part(kept[0].arrival_s, kept[-1].arrival_s)
        choice = Selection(part=part, windows=windows, step_s=step_s)
        journal.add(choice)
    workload = replace(workload, windows=choice.windows)
    comparison = Comparison(question, journal, workload, tuned, dropped)
    trial, started = comparison.next_trial(), Evidence(journal).starts()
    lost = trial is not None and bool(started) and started[-1].purpose == trial.purpose

    async def work() -> None:
        bench = Bench(journal, watcher, read, block_size=question.block_size)
        try:
            await measure(comparison.next_trial, bench, most_failures=math.inf)
        finally:
            await bench.stop()

    execute(work(), question.base, journal, lost=lost)
    return comparison


def _tuned(question: Question) -> Tuned:
    """Return the tuned value: as given, or the profile's. Raises UsageError where it is needed and
    nothing says it."""
    if question.max_num_seqs is not None:
        return Tuned(question.max_num_seqs, "--max-num-seqs")
    if question.profile is not None:
        return Tuned(question.profile.decision.max_num_seqs, question.source)
    if any(one.name in {"tuned", SERVER} for one in question.approaches):
        raise UsageError(
            "nothing says which max_num_seqs is the tuned one",
            hint="Give --profile (tuner sweep makes one), or --max-num-seqs N.",
        )
    return Tuned(UNTUNED, "no approach needs it")


def affordable_s(
    budget_s: float, approaches: Sequence[Approach], *, loads: int, start_s: float
) -> float:
    """Return how long each window can be. Raises UsageError when that is too short."""
    starts = REPEATS * sum(max(1, one.workers) for one in approaches)
    replays = REPEATS * len(approaches) * loads
    window_s = (1 - SLACK) * (budget_s - starts * start_s) / replays / WINDOWS
    if window_s < MIN_STEP_S:
        needed_s = starts * start_s + replays * WINDOWS * MIN_STEP_S / (1 - SLACK)
        raise UsageError(
            f"--budget {budget_s:.0f}s is too little for {starts} engine starts of {start_s:.0f}s "
            f"and {replays} replays",
            hint=f"Give at least --budget {math.ceil(needed_s)}s, or fewer --approaches or "
            "--loads.",
        )
    return min(STEP_S, window_s)
