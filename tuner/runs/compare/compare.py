"""The run of ``tuner compare``: for each block, for each approach in random order, replay.

One engine lives at a time, so that none that idles disturbs the others. Every approach of a block
replays the same requests; another block replays others, so that intervals know of traffic too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import UsageError
from tuner.profile.evidence import twin_of
from tuner.profile.profile import ServingProfile
from tuner.replay.replay import CutRule
from tuner.replay.soundness import Read
from tuner.runs.bench import Bench, Build, Trial, Watcher, execute, fitting, measure
from tuner.runs.compare.table import ComparisonTable, block_of, table_of
from tuner.runs.compare.ways import (
    LEVELS,
    SERVER,
    UNTUNED,
    Approach,
    Workload,
)
from tuner.runs.journal import Failed, Journal, Selection, Tried
from tuner.runs.pairs import spread_windows
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import RUN_IN_SHARE
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window

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
class Tuned:
    """The tuned value, and where it comes from: a profile or an option."""

    max_num_seqs: int
    source: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is compared, checked; nothing has been started for it."""

    requests: Sequence[TraceRequest]
    block_size: int
    approaches: Sequence[Approach]
    levels: Sequence[str]
    budget_s: float
    tuned: Tuned
    profile: ServingProfile | None
    base: Starter
    of_tuned: Starter
    """With every argument of the profile, where that is the tuned one."""


@dataclass(slots=True)
class Comparison:
    """A comparison, as far as its journal has come."""

    question: Question
    journal: Journal
    workload: Workload
    left_out: Sequence[str] = ()
    """Which requests were left out."""

    def tables(self) -> list[ComparisonTable]:
        """Return one table for each load."""
        question = self.question
        slo = None if question.profile is None else question.profile.decision.slo.slo
        return [
            table_of(self.journal, level, question.approaches, slo) for level in question.levels
        ]

    def warnings(self) -> list[str]:
        """Return the warnings about what was compared, and how far it came."""
        warnings = [*self.left_out]
        if len(set(self.workload.windows)) < REPEATS:
            warnings.append(
                "the trace is too short for another part of it in every block: the intervals know "
                "more of the machine's noise than of other traffic; compare with a longer trace"
            )
        warnings += [text for start in self.journal.starts() for text in start.facts.cautions]
        for trial in self.journal.made():
            if flaws := "; ".join(self.journal.replay(trial).flaws):
                warnings.append(f"{trial.approach}, {trial.load}: {flaws}")
        if (left := next(self._left(), None)) is not None:
            warnings.append(
                f"the budget ended it after {left[1]} of {REPEATS} blocks: give a larger --budget"
            )
        return list(dict.fromkeys(warnings))

    def next_trial(self) -> Trial | None:
        """Return the next replay; None when all were made, or the budget has no time for a block
        more."""
        if (left := next(self._left(), None)) is None:
            return None
        (approach, block, load), question = left, self.question
        spent_s, is_begun = self.journal.spent_s(), block in map(block_of, self.journal.trials())
        if block and not is_begun and spent_s * (block + 1) / block > question.budget_s:
            return None
        window = self.workload.windows[block]
        rule = CutRule(Slo(), 0.0, drain_s=DRAIN_SHARE * window.length_s)
        total = REPEATS * len(question.approaches) * len(question.levels)
        starter, size = question.of_tuned, question.tuned.max_num_seqs
        if approach.name == "untuned":
            starter, size = question.base, UNTUNED
        elif isinstance(question.base, VllmStarter) and approach.workers:
            size = approach.batch
            starter = replace(
                question.base,
                kind="workers",
                workers=approach.workers,
                size=size,
                wait_s=approach.wait_s,
            )
        elif isinstance(starter, VllmStarter) and approach.name == SERVER:
            starter = replace(starter, kind="serve")
        purpose = f"{approach.name} {block}"
        title = f"block {block + 1}: starting {approach.title}"
        tried = Tried(
            purpose=purpose, max_num_seqs=size, window=window, approach=approach.name, load=load
        )
        return Trial(
            tried,
            Build(purpose, size, starter, title=title),
            self.workload.sent(load, block),
            rule,
            title=f"{len(self.journal.trials()) + 1} of {total}: {approach.title}, {load}",
        )

    def _left(self) -> Iterator[tuple[Approach, int, str]]:
        """Yield (approach, block, load) of what is still to be replayed: approaches in random
        order, the same in a resumed run. What never served is not tried again."""
        made, failures = self.journal.made(), [*self.journal.of(Failed)]
        done = {(each.purpose, each.load) for each in made}
        failed = {each.purpose for each in failures}
        dead = {each.approach for each in failures} - {each.approach for each in made}
        approaches = self.question.approaches
        for block in range(REPEATS):
            for place in np.random.default_rng(block).permutation(len(approaches)):
                approach, purpose = approaches[place], f"{approaches[place].name} {block}"
                if approach.name not in dead and purpose not in failed:
                    left = [load for load in self.question.levels if (purpose, load) not in done]
                    yield from ((approach, block, load) for load in left)


def compare(
    question: Question, source: Path, journal: Journal, watcher: Watcher, read: Read | None
) -> Comparison:
    """Measure all that the journal does not hold yet. ``source``: where the profile lies.

    Raises RunError, ProfileError for a twin that makes no sense, and UsageError when the budget is
    too small or nothing says what is compared; an approach's failures are its result.
    """
    profile, twin, start_s = question.profile, None, 0.0
    if profile is not None:
        starts = profile.provenance
        start_s = starts.engine_seconds.starts / max(1, starts.engine_starts)
    if any(LEVELS[level] for level in question.levels):
        cure = "Give --profile (tuner sweep makes one), or compare with --loads recorded."
        if profile is None:
            raise UsageError("a load by requests in flight needs a profile", hint=cure)
        twin = twin_of(profile, source, cure=cure)
    longest = int(str(question.base.resolve(max_num_seqs=UNTUNED)["max_model_len"]))
    kept, left_out = fitting(question.requests, longest)
    if (choice := journal.selection()) is None:
        step_s = affordable_s(
            question.budget_s, question.approaches, loads=len(question.levels), start_s=start_s
        )
        part = Window(kept[0].arrival_s, kept[-1].arrival_s - kept[0].arrival_s)
        length_s = min(step_s, part.length_s / (1 + RUN_IN_SHARE))
        run_in_s = RUN_IN_SHARE * length_s
        first = Window(part.start_s + run_in_s, length_s, run_in_s)
        windows = spread_windows(kept, part, first, REPEATS)
        choice = Selection(part=part, windows=windows, step_s=step_s)
        journal.add(choice)
    workload = Workload(kept, choice.windows, question.levels, twin, question.block_size)
    comparison = Comparison(question, journal, workload, left_out)

    async def work() -> None:
        bench = Bench(journal, watcher, read, block_size=question.block_size)
        try:
            await measure(comparison.next_trial, bench, most_failures=math.inf)
        finally:
            await bench.stop()

    execute(work(), question.base, journal)
    return comparison


def affordable_s(
    budget_s: float, approaches: Sequence[Approach], *, loads: int, start_s: float
) -> float:
    """Return how long each window can be. Raises UsageError when that is too short."""
    starts = REPEATS * sum(max(1, each.workers) for each in approaches)
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
