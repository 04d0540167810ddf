"""The run of ``tuner compare``: for each block, for each approach in random order, replay.

One engine lives at a time, so that none that idles disturbs the others. Every approach replays the
same requests, in every block.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.approaches.seam import Approach, Setup, Site
from tuner.attempts import replay_in_time
from tuner.compare.calibration import rate_at
from tuner.compare.evidence import CALIBRATION, Cell, Comparing, session_of
from tuner.compare.load_levels import LENGTHS, Level, at_rate, uniform
from tuner.engines.seam import Engine, EngineFacts
from tuner.errors import EngineError, GeneratorLateError, UsageError
from tuner.evidence import Choice
from tuner.prompts import prompt_token_ids
from tuner.readings import Read
from tuner.replay import CutRule
from tuner.rig import Watcher
from tuner.slo import Slo
from tuner.trace import TraceRequest
from tuner.traffic import busiest_window
from tuner.window import RUN_IN_SHARE, Window, choose_part, plan_requests
from tuner.workload import keep_what_fits

MIN_STEP_S = 3.0
"""A shorter replay shows hardly one request of a slow approach."""

DRAIN_SHARE = 0.5
"""How long unfinished requests are waited for after the last one, as a share of the window."""

WINDOWS = 1 + RUN_IN_SHARE + DRAIN_SHARE
"""How many windows' time a replay takes at most."""


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What the user asked of a comparison."""

    approaches: tuple[Approach, ...]
    levels: tuple[Level, ...]
    untuned: int
    window: str
    step_s: float
    repeats: int
    budget_s: float
    seed: int
    trace_block_size: int

    @property
    def cells(self) -> list[Cell]:
        return [Cell(level.name, lengths) for level in self.levels for lengths in LENGTHS]


class Comparison:
    """A run under way."""

    def __init__(  # noqa: PLR0913, PLR0917 - what is compared, on what, and who is told
        self,
        requests: Sequence[TraceRequest],
        site: Site,
        settings: CompareSettings,
        comparing: Comparing,
        watcher: Watcher,
        read: Read | None,
    ) -> None:
        self.requests = requests
        self.site, self.settings = site, settings
        self.comparing, self.watcher, self.read = comparing, watcher, read
        self.warnings: list[str] = []

    async def calibrate(self) -> None:
        """Measure the rate of each level, unless that was done.

        Raises EngineError; UsageError when the budget cannot be enough for the rest.
        """
        if self.comparing.rates() is not None:
            return
        settings = self.settings
        self.watcher.stage(f"starting the engine with max_num_seqs={settings.untuned}")
        engine = await self.site.continuous(max_num_seqs=settings.untuned)
        try:
            self.comparing.add_start(engine.facts, CALIBRATION)
            kept, _ = keep_what_fits(self.requests, max_model_len=engine.facts.max_model_len)
            loop = asyncio.get_running_loop()
            rates, begun_s = {}, loop.time()
            for level in settings.levels:
                if level.in_flight is not None:
                    self.watcher.stage(f"{level.name}: {level.in_flight} requests at a time")
                    prompt = self.prompts(engine.facts)
                    rates[level.name] = await rate_at(
                        level.in_flight, kept, engine, prompt=prompt, seed=settings.seed
                    )
            self.comparing.add_rates(
                rates,
                max_model_len=engine.facts.max_model_len,
                elapsed_s=loop.time() - begun_s,
            )
        finally:
            await engine.stop()
        self.affordable_s(spent_s=self.comparing.spent_s())

    def starts_and_replays(self) -> tuple[int, int]:
        """Return how many a run takes that nothing interrupts."""
        settings = self.settings
        starts = sum(2 if one.name == "two-workers" else 1 for one in settings.approaches)
        replays = len(settings.approaches) * len(settings.cells)
        return settings.repeats * starts, settings.repeats * replays

    def affordable_s(self, *, spent_s: float) -> float:
        """Return how long each window can be. Raises UsageError when that is too short."""
        budget_s, start_s = self.settings.budget_s, self.comparing.evidence.facts().start_s
        starts, replays = self.starts_and_replays()
        found_s = (budget_s - spent_s - starts * start_s) / replays / WINDOWS
        if found_s < MIN_STEP_S:
            needed_s = spent_s + starts * start_s + replays * WINDOWS * MIN_STEP_S
            raise UsageError(
                f"--budget {budget_s:.0f}s is too little for {starts} engine starts of "
                f"{start_s:.0f}s and {replays} replays",
                hint=f"Give at least --budget {math.ceil(needed_s)}s, or fewer --approaches, "
                "--loads or --repeats.",
            )
        return found_s

    def choose(self, *, spent_s: float) -> Window:
        """Choose what every approach replays, for what is left of the budget; say what it costs.

        Raises UsageError when that is too little.
        """
        settings, comparing = self.settings, self.comparing
        chosen = comparing.evidence.choice()
        if chosen is not None:
            return chosen.windows[0]
        step_s = min(settings.step_s, self.affordable_s(spent_s=spent_s))
        length_s = step_s * (1 + RUN_IN_SHARE)
        part = choose_part(
            self.requests, settings.window, length_s=length_s, busiest=busiest_window
        )
        length_s = min(length_s, part.length_s)
        run_in_s = length_s * RUN_IN_SHARE / (1 + RUN_IN_SHARE)
        window = Window(part.begin_s + run_in_s, length_s - run_in_s, run_in_s)
        comparing.add_choice(Choice(part, (window,), step_s))
        starts, replays = self.starts_and_replays()
        start_s = comparing.evidence.facts().start_s
        total_s = starts * start_s + replays * WINDOWS * window.length_s
        self.watcher.stage(
            f"{replays} replays of {window.replay_s:.0f}s in {settings.repeats} blocks and "
            f"{starts} engine starts: at most {total_s / 60:.0f} minutes"
        )
        return window

    async def run(self, setup: Setup, *, spent_s: float) -> None:
        """Measure what is left of the budget, of which so much is spent.

        Raises UsageError when that is too little, RunError; an approach's failures are its result.
        """
        elsewhere_s = spent_s - self.comparing.spent_s()
        window = self.choose(spent_s=spent_s)
        taken_s = 0.0
        for block in range(self.settings.repeats):
            before_s = self.comparing.spent_s()
            if block and elsewhere_s + before_s + taken_s > self.settings.budget_s:
                self.warnings.append(
                    f"the budget ended it after {block} of {self.settings.repeats} blocks"
                )
                return
            for approach in self.order(block):
                cells = self.comparing.left(approach.name, block, self.cells(approach, block))
                if cells and not self.comparing.never_started(approach.name):
                    await self.session(approach, setup, block, cells, window)
            taken_s = max(taken_s, self.comparing.spent_s() - before_s)

    async def session(
        self,
        approach: Approach,
        setup: Setup,
        block: int,
        cells: Sequence[Cell],
        window: Window,
    ) -> None:
        """Start an approach, replay what is left of a block on it, and stop it."""
        self.watcher.stage(f"block {block + 1}: starting {approach.title}")
        try:
            engine = await approach.start(self.site, setup)
        except EngineError as error:
            self.failed(error, approach, block, None)
            return
        left = list(cells)
        try:
            self.comparing.add_start(engine.facts, session_of(approach.name, block))
            while left:
                await self.cell(engine, approach, block, left[0], window)
                left.pop(0)
        except EngineError as error:
            for cell in left:
                self.failed(error, approach, block, cell)
        finally:
            await engine.stop()

    async def cell(
        self, engine: Engine, approach: Approach, block: int, cell: Cell, window: Window
    ) -> None:
        """Make one replay and keep it. Raises EngineError when the approach died of it."""
        facts = engine.facts
        number, settings = self.comparing.ended() + 1, self.settings
        of = settings.repeats * len(settings.approaches) * len(settings.cells)
        what = f"{number} of {of}: {approach.title}, {cell.load}, {cell.lengths}"
        plan = plan_requests(
            self.sent(cell, window),
            window,
            max_model_len=facts.max_model_len,
            prompt=self.prompts(facts),
        )

        def late(error: GeneratorLateError, elapsed_s: float) -> None:
            self.comparing.evidence.add_late(what, str(error), elapsed_s)
            self.watcher.warn(f"{error}; thrown away")

        try:
            result = await replay_in_time(
                plan,
                engine,
                window,
                max_num_seqs=int(str(facts.arguments["max_num_seqs"])),
                rule=CutRule(Slo(), floor=0.0, drain_s=DRAIN_SHARE * window.length_s),
                read=self.read,
                begun=lambda: self.watcher.trial(what, window.replay_s),
                late=late,
                name=f"{approach.name}-{block}-{len(self.comparing.journal.events)}",
                progress=self.watcher.live,
            )
        except GeneratorLateError as error:
            self.failed(error, approach, block, cell)
        else:
            self.comparing.add_replay(result, approach.name, block, cell)

    def sent(self, cell: Cell, window: Window) -> list[TraceRequest]:
        """Return what a cell sends; the same in every block and to every approach."""
        found = self.comparing.rates()
        assert found is not None
        rates, max_model_len = found
        kept, _ = keep_what_fits(self.requests, max_model_len=max_model_len)
        sent = at_rate(kept, window, rates.get(cell.load), seed=self.settings.seed)
        return sent if cell.lengths == "captured" else uniform(sent, kept)

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

    def prompts(self, facts: EngineFacts) -> Callable[[TraceRequest], list[int]]:
        return partial(
            prompt_token_ids,
            seed=self.settings.seed,
            vocab_size=facts.vocab_size,
            block_size=self.settings.trace_block_size,
        )
