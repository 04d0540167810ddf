"""The run of ``tuner compare``: for each block, for each approach in random order, replay.

One engine lives at a time, so that none that idles disturbs the others. Every approach of a block
replays the same requests; another block replays others, so that intervals know of traffic too.
Everything measured is in the journal when a call returns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.engines.seam import Engine
from tuner.errors import EngineError, UsageError
from tuner.replay.plan import plan_requests
from tuner.replay.readings import Read
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.replay.soundness import replay_soundly
from tuner.runs.compare.approaches import Approach, Testbed
from tuner.runs.compare.table import (
    ComparisonRow,
    ComparisonTable,
    compared,
    note_against,
    notes_on,
    numbers_of,
)
from tuner.runs.compare.traffic import LENGTHS, LEVELS, Cell, Lengths, Workload
from tuner.runs.engine_runner import Watcher
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Event, Journal
from tuner.runs.recorder import Recorder, now_s
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.traffic.window import RUN_IN_SHARE

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


def affordable_s(
    budget_s: float, approaches: Sequence[Approach], *, cells: int, start_s: float
) -> float:
    """Return how long each window can be. Raises UsageError when that is too short."""
    starts = REPEATS * sum(max(1, one.workers) for one in approaches)
    replays = REPEATS * len(approaches) * cells
    found_s = (1 - SLACK) * (budget_s - starts * start_s) / replays / WINDOWS
    if found_s < MIN_STEP_S:
        needed_s = starts * start_s + replays * WINDOWS * MIN_STEP_S / (1 - SLACK)
        raise UsageError(
            f"--budget {budget_s:.0f}s is too little for {starts} engine starts of {start_s:.0f}s "
            f"and {replays} replays",
            hint=f"Give at least --budget {math.ceil(needed_s)}s, or fewer --approaches or "
            "--loads.",
        )
    return min(STEP_S, found_s)


@dataclass(frozen=True, slots=True)
class Comparing:
    """The journal, read as a comparison."""

    journal: Journal

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.journal)

    def never_started(self, approach: str) -> bool:
        return any(one["load"] is None for one in self._failed(approach))

    def left(self, approach: str, block: int, cells: Sequence[Cell]) -> list[Cell]:
        """Return the replays of a session that neither were made nor failed."""
        done = {
            (event["load"], event["lengths"])
            for event in [*self._replayed(approach), *self._failed(approach)]
            if event.get("block", event.get("trial")) == block
        }
        return [cell for cell in cells if (cell.load, cell.lengths) not in done]

    def ended(self) -> int:
        """Return how many replays were made or failed."""
        return sum(event["event"] in {"replay", "failed"} for event in self.journal.events)

    def sessions(self) -> list[str]:
        """Return the sessions whose engines were started, in order, each once."""
        return list(dict.fromkeys(one["purpose"] for one in self.journal.of("start")))

    def block_s(self, block: int) -> float:
        """Return what a block has taken, engine starts included."""
        starts = {
            one["purpose"]: one["facts"]["start_s"]
            for one in self.journal.of("start")
            if one["purpose"].endswith(f" {block}")
        }
        replays = (one["elapsed_s"] for one in self.journal.of("replay") if one["trial"] == block)
        return float(sum(starts.values()) + sum(replays))

    def tables(
        self, levels: Sequence[str], approaches: Sequence[Approach]
    ) -> list[ComparisonTable]:
        """Return one table for each load and kind of lengths."""
        return [self._table(level, kind, approaches) for level in levels for kind in LENGTHS]

    def _table(
        self, level: str, lengths: Lengths, approaches: Sequence[Approach]
    ) -> ComparisonTable:
        blocks = {one.name: self._blocks(one.name, Cell(level, lengths)) for one in approaches}
        numbers = {
            name: numbers_of(list(found.values())) for name, found in blocks.items() if found
        }
        against_first = compared(blocks, approaches[0].name)
        against_untuned = compared(blocks, "untuned")
        rows = []
        for one in approaches:
            seen, notes = numbers.get(one.name), tuple[str, ...]()
            if seen is not None:
                alone = numbers.get("worker") if one.name == "two-workers" else None
                notes = notes_on(seen, alone=alone)
                if one.name in {"tuned", "profile"}:
                    notes += note_against(against_untuned[one.name], "untuned")
            rows.append(
                ComparisonRow(
                    approach=one.name,
                    title=one.title,
                    max_num_seqs=next(
                        (each.max_num_seqs for each in blocks[one.name].values()), None
                    ),
                    numbers=seen,
                    ratios=against_first[one.name],
                    notes=notes,
                    errors=self._errors(one.name, Cell(level, lengths)),
                )
            )
        return ComparisonTable(level, LEVELS[level], lengths, tuple(rows))

    def _errors(self, approach: str, cell: Cell) -> tuple[str, ...]:
        """Return what went wrong with an approach and this traffic, each text once."""
        return tuple(
            dict.fromkeys(
                f"{one['why']}. {one['hint']}"
                for one in self._failed(approach)
                if one["load"] is None or (one["load"], one["lengths"]) == (cell.load, cell.lengths)
            )
        )

    def _blocks(self, approach: str, cell: Cell) -> dict[int, Replay]:
        return {
            event["trial"]: self.journal.replay(event)
            for event in self._replayed(approach)
            if (event["load"], event["lengths"]) == (cell.load, cell.lengths)
        }

    def _replayed(self, approach: str) -> Iterator[Event]:
        return (one for one in self.journal.of("replay") if one["approach"] == approach)

    def _failed(self, approach: str) -> Iterator[Event]:
        return (one for one in self.journal.of("failed") if one["approach"] == approach)


@dataclass(slots=True)
class Comparison:
    """A comparison under way."""

    workload: Workload
    approaches: Sequence[Approach]
    budget_s: float
    testbed: Testbed
    comparing: Comparing
    watcher: Watcher
    read: Read | None
    warnings: list[str]

    async def run(self) -> None:
        """Measure what is left of the budget. Raises RunError; an approach's failures are its
        result."""
        taken_s, comparing = 0.0, self.comparing
        for block in range(REPEATS):
            spent_s = comparing.evidence.spent_s()
            if block and spent_s + taken_s - comparing.block_s(block) > self.budget_s:
                self.warnings.append(
                    f"the budget ended it after {block} of {REPEATS} blocks: give a larger --budget"
                )
                return
            # at random, the same in a resumed run
            rng = np.random.default_rng(block)
            for place in rng.permutation(len(self.approaches)):
                await self._session(self.approaches[place], block)
            taken_s = max(taken_s, comparing.block_s(block))

    async def _session(self, approach: Approach, block: int) -> None:
        """Start an approach, replay what is left of a block on it, and stop it."""
        rng = np.random.default_rng([block, self.approaches.index(approach)])
        cells = [self.workload.cells[i] for i in rng.permutation(len(self.workload.cells))]
        left = self.comparing.left(approach.name, block, cells)
        if not left or self.comparing.never_started(approach.name):
            return
        self.watcher.stage(f"block {block + 1}: starting {approach.title}")
        try:
            engine = await self.testbed.start(approach)
        except EngineError as error:
            self._failed(error, approach, block, None)
            return
        try:
            self.comparing.evidence.check_machine(engine.facts)
            size = int(str(engine.facts.arguments["max_num_seqs"]))
            Recorder(self.comparing.journal).add_start(
                engine.facts, purpose=f"{approach.name} {block}", max_num_seqs=size
            )
            self.warnings += [one for one in engine.facts.cautions if one not in self.warnings]
            while left:
                await self._cell(engine, approach, block, left[0])
                left.pop(0)
        except EngineError as error:
            for cell in left:
                self._failed(error, approach, block, cell)
        finally:
            await engine.stop()

    async def _cell(self, engine: Engine, approach: Approach, block: int, cell: Cell) -> None:
        """Make one replay and keep it. Raises EngineError when the approach died of it."""
        facts, window, journal = engine.facts, self.workload.windows[block], self.comparing.journal
        of = REPEATS * len(self.approaches) * len(self.workload.cells)
        what = (
            f"{self.comparing.ended() + 1} of {of}: {approach.title}, {cell.load}, {cell.lengths}"
        )
        plan = plan_requests(
            self.workload.sent(cell, block),
            window,
            max_model_len=facts.max_model_len,
            prompt=partial(
                prompt_token_ids,
                seed=0,
                vocab_size=facts.vocab_size,
                block_size=self.workload.block_size,
            ),
        )

        def retry(flaws: Sequence[str], elapsed_s: float) -> bool:
            Recorder(journal).add_late(what, "; ".join(flaws), elapsed_s)
            self.watcher.warn(f"{what}: {'; '.join(flaws)}: measured once more")
            return True

        result = await replay_soundly(
            plan,
            engine,
            window,
            max_num_seqs=int(str(facts.arguments["max_num_seqs"])),
            rule=CutRule(Slo(), floor=0.0, drain_s=DRAIN_SHARE * window.length_s),
            read=self.read,
            begun=lambda: self.watcher.trial(what, window.replay_s),
            retry=retry,
            progress=self.watcher.live,
        )
        if result.flaws:
            self.warnings.append(f"{what}: {'; '.join(result.flaws)}")
        journal.append_replay(
            result,
            purpose=f"{approach.name} {block}",
            max_num_seqs=result.max_num_seqs,
            elapsed_s=result.elapsed_s,
            window=block,
            trial=block,
            approach=approach.name,
            load=cell.load,
            lengths=cell.lengths,
            at_s=now_s(),
        )

    def _failed(
        self, error: EngineError, approach: Approach, block: int, cell: Cell | None
    ) -> None:
        """Keep a failure as the approach's result: of one replay, or of its start."""
        Recorder(self.comparing.journal).append(
            "failed",
            approach=approach.name,
            block=block,
            load=cell.load if cell else None,
            lengths=cell.lengths if cell else None,
            why=str(error),
            hint=error.hint,
        )
        self.watcher.warn(f"{approach.title}: {error}")
