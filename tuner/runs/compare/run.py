"""The run of ``tuner compare``: for each block, for each approach in random order, replay.

One engine lives at a time, so that none that idles disturbs the others. Every approach of a block
replays the same requests; another block replays others, so that intervals know of traffic too.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tuner.engines.seam import Engine, EngineFacts
from tuner.engines.workers.seam import Approach, Setup, Testbed
from tuner.errors import EngineError
from tuner.replay.plan import plan_requests
from tuner.replay.readings import Read
from tuner.replay.replay import CutRule
from tuner.replay.soundness import replay_soundly
from tuner.runs.compare.blocks import DRAIN_SHARE, Blocks
from tuner.runs.compare.calibration import ReferenceEngine, measure_law
from tuner.runs.compare.evidence import CALIBRATION, Comparing, session_of
from tuner.runs.compare.settings import Cell, CompareSettings
from tuner.runs.engine_runner import Watcher
from tuner.trace.trace import TraceRequest
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.slo import Slo
from tuner.traffic.workload import keep_what_fits
from tuner.twin.simulation import shape_of

CALIBRATION_SHARE = 0.1
"""Of the budget, for the law of the engine of reference, at most."""


async def calibrate(
    requests: Sequence[TraceRequest],
    testbed: Testbed,
    settings: CompareSettings,
    comparing: Comparing,
    watcher: Watcher,
) -> None:
    """Measure the law of the engine of reference, unless that was done.

    Raises EngineError, and TraceError when nothing fits the engine.
    """
    if comparing.reference() is not None:
        return
    watcher.stage(f"starting the engine with max_num_seqs={settings.untuned}")
    engine = await testbed.continuous(max_num_seqs=settings.untuned)
    try:
        facts = engine.facts
        comparing.add_start(facts, CALIBRATION)
        kept, _ = keep_what_fits(requests, max_model_len=facts.max_model_len)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        what = f"its iterations with 1 to {settings.untuned} requests"
        law = await measure_law(
            engine,
            kept,
            prompt=_prompts(settings, facts),
            most_s=CALIBRATION_SHARE * settings.budget_s,
            seed=settings.seed,
            begun=lambda length_s: watcher.trial(what, length_s),
        )
        comparing.add_reference(
            ReferenceEngine(law, shape_of(facts), settings.untuned, settings.trace_block_size),
            max_model_len=facts.max_model_len,
            elapsed_s=loop.time() - begun_s,
        )
    finally:
        await engine.stop()


class Comparison:
    """A run under way."""

    def __init__(
        self,
        blocks: Blocks,
        testbed: Testbed,
        comparing: Comparing,
        watcher: Watcher,
        read: Read | None,
    ) -> None:
        self.blocks, self.settings = blocks, blocks.settings
        self.testbed, self.comparing, self.watcher, self.read = testbed, comparing, watcher, read
        self.warnings: list[str] = []

    async def run(self, setup: Setup, *, elsewhere_s: float) -> None:
        """Measure what is left of the budget, of which so much went elsewhere.

        Raises RunError; an approach's failures are its result.
        """
        taken_s = 0.0
        for block in range(self.settings.repeats):
            spent_s = elsewhere_s + self.comparing.evidence.spent_s()
            if block and spent_s + taken_s - self.comparing.block_s(block) > self.settings.budget_s:
                self.warnings.append(
                    f"the budget ended it after {block} of {self.settings.repeats} blocks: give a "
                    "larger --budget"
                )
                return
            for approach in self.order(block):
                await self.session(approach, setup, block)
            taken_s = max(taken_s, self.comparing.block_s(block))

    async def session(self, approach: Approach, setup: Setup, block: int) -> None:
        """Start an approach, replay what is left of a block on it, and stop it."""
        left = self.comparing.left(approach.name, block, self.cells(approach, block))
        if not left or self.comparing.never_started(approach.name):
            return
        self.watcher.stage(f"block {block + 1}: starting {approach.title}")
        try:
            engine = await approach.start(self.testbed, setup)
        except EngineError as error:
            self.failed(error, approach, block, None)
            return
        try:
            self.comparing.add_start(engine.facts, session_of(approach.name, block))
            self.warnings += [one for one in engine.facts.cautions if one not in self.warnings]
            while left:
                await self.cell(engine, approach, block, left[0])
                left.pop(0)
        except EngineError as error:
            for cell in left:
                self.failed(error, approach, block, cell)
        finally:
            await engine.stop()

    async def cell(self, engine: Engine, approach: Approach, block: int, cell: Cell) -> None:
        """Make one replay and keep it. Raises EngineError when the approach died of it."""
        facts, window = engine.facts, self.blocks.windows[block]
        number, settings = self.comparing.ended() + 1, self.settings
        of = settings.repeats * len(settings.approaches) * len(settings.cells)
        what = f"{number} of {of}: {approach.title}, {cell.load}, {cell.lengths}"
        plan = plan_requests(
            self.blocks.sent(cell, block),
            window,
            max_model_len=facts.max_model_len,
            prompt=_prompts(settings, facts),
        )

        def retry(flaws: Sequence[str], elapsed_s: float) -> bool:
            self.comparing.recorder.add_late(what, "; ".join(flaws), elapsed_s)
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
            name=f"{approach.name}-{block}-{len(self.comparing.journal.events)}",
            progress=self.watcher.live,
        )
        if result.flaws:
            self.warnings.append(f"{what}: {'; '.join(result.flaws)}")
        self.comparing.add_replay(result, approach.name, block, cell)

    def failed(self, error: EngineError, approach: Approach, block: int, cell: Cell | None) -> None:
        self.comparing.add_failure(error, approach.name, block, cell)
        self.watcher.warn(f"{approach.title}: {error}")

    def order(self, block: int) -> list[Approach]:
        """Return the approaches as a block takes them: at random, the same in a resumed run."""
        rng = np.random.default_rng([self.settings.seed, block])
        return [self.settings.approaches[i] for i in rng.permutation(len(self.settings.approaches))]

    def cells(self, approach: Approach, block: int) -> list[Cell]:
        """Return the traffics as a session takes them, likewise."""
        cells = self.settings.cells
        number = self.settings.approaches.index(approach)
        rng = np.random.default_rng([self.settings.seed, block, number])
        return [cells[i] for i in rng.permutation(len(cells))]


def _prompts(settings: CompareSettings, facts: EngineFacts) -> Callable[[TraceRequest], list[int]]:
    return partial(
        prompt_token_ids,
        seed=settings.seed,
        vocab_size=facts.vocab_size,
        block_size=settings.trace_block_size,
    )
