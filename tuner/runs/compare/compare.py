"""The run of ``tuner compare``: for each block, for each approach in random order, replay.

One engine lives at a time, so that none that idles disturbs the others. Every approach of a block
replays the same requests; another block replays others, so that intervals know of traffic too.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import UsageError
from tuner.profile.evidence import twin_of
from tuner.profile.profile import ServingProfile
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, Trial, execute, fitting, measure
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


@dataclass(slots=True)
class Comparison:
    """What is compared, and the bench that measures it."""

    requests: Sequence[TraceRequest]
    approaches: Sequence[Approach]
    levels: Sequence[str]
    budget_s: float
    profile: ServingProfile
    base: Starter
    of_tuned: Starter
    """With every argument of the profile."""

    bench: Bench
    workload: Workload = field(init=False)
    left_out: Sequence[str] = ()
    """Which requests were left out."""

    @property
    def journal(self) -> Journal:
        return self.bench.journal

    @property
    def tuned(self) -> int:
        return self.profile.decision.max_num_seqs

    def run(self, source: Path) -> None:
        """Measure all that the journal does not hold yet. ``source``: where the profile lies.

        Raises RunError, ProfileError for a twin that is missing or makes no sense, and UsageError
        when the budget is too small; an approach's failures are its result.
        """
        twin, choice = None, self.journal.selection()
        if any(LEVELS[level] for level in self.levels):
            twin = twin_of(self.profile, source, cure="Compare with --loads recorded.")
        longest = int(str(self.base.resolve(max_num_seqs=UNTUNED)["max_model_len"]))
        kept, self.left_out = fitting(self.requests, longest)
        if choice is None:
            step_s = self._affordable_s()
            part = Window(kept[0].arrival_s, kept[-1].arrival_s - kept[0].arrival_s)
            length_s = min(step_s, part.length_s / (1 + RUN_IN_SHARE))
            run_in_s = RUN_IN_SHARE * length_s
            first = Window(part.start_s + run_in_s, length_s, run_in_s)
            choice = Selection(part, spread_windows(kept, part, first, REPEATS), step_s)
            self.journal.add(choice)
        self.workload = Workload(kept, choice.windows, twin, self.bench.block_size)

        async def work() -> None:
            try:
                await measure(self.next_trial, self.bench, most_failures=math.inf)
            finally:
                await self.bench.stop()

        execute(work(), self.base, self.journal)

    def _affordable_s(self) -> float:
        """Return how long each window can be. Raises UsageError when that is too short."""
        origin = self.profile.provenance
        start_s = origin.engine_seconds.starts / max(1, origin.engine_starts)
        starts = REPEATS * sum(max(1, each.workers) for each in self.approaches)
        replays = REPEATS * len(self.approaches) * len(self.levels)
        window_s = (1 - SLACK) * (self.budget_s - starts * start_s) / replays / WINDOWS
        if window_s < MIN_STEP_S:
            needed_s = starts * start_s + replays * WINDOWS * MIN_STEP_S / (1 - SLACK)
            raise UsageError(
                f"--budget {self.budget_s:.0f}s is too little for {starts} engine starts of "
                f"{start_s:.0f}s and {replays} replays",
                hint=f"Give at least --budget {math.ceil(needed_s)}s, or fewer --approaches or "
                "--loads.",
            )
        return min(STEP_S, window_s)

    def tables(self) -> list[ComparisonTable]:
        """Return one table for each load."""
        slo = self.profile.decision.slo.slo
        return [table_of(self.journal, level, self.approaches, slo) for level in self.levels]

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
        approach, block, load = left
        spent_s, is_begun = self.journal.spent_s(), block in map(block_of, self.journal.trials())
        if block and not is_begun and spent_s * (block + 1) / block > self.budget_s:
            return None
        window = self.workload.windows[block]
        rule = CutRule(Slo(), 0.0, drain_s=DRAIN_SHARE * window.length_s)
        total = REPEATS * len(self.approaches) * len(self.levels)
        starter, size = self.of_tuned, self.tuned
        if approach.name == "untuned":
            starter, size = self.base, UNTUNED
        elif isinstance(self.base, VllmStarter) and approach.workers:
            size = approach.batch
            starter = replace(
                self.base,
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
        for block in range(REPEATS):
            for place in np.random.default_rng(block).permutation(len(self.approaches)):
                approach = self.approaches[place]
                purpose = f"{approach.name} {block}"
                if approach.name not in dead and purpose not in failed:
                    left = [load for load in self.levels if (purpose, load) not in done]
                    yield from ((approach, block, load) for load in left)
