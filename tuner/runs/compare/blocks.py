"""The blocks of a comparison: each sends its own window of the trace, at each load."""

import math
from collections.abc import Sequence
from functools import cached_property

from tuner.errors import UsageError
from tuner.runs.compare.evidence import Comparing
from tuner.runs.compare.load_levels import Level, at_rate, end_to_end, rate_of, uniform
from tuner.runs.compare.settings import Cell, CompareSettings
from tuner.runs.compare.windows import windows_of
from tuner.runs.engine_runner import Watcher
from tuner.runs.evidence import Selection
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import RUN_IN_SHARE, Window, in_window
from tuner.traffic.workload import keep_what_fits

MIN_STEP_S = 3.0
"""A shorter replay shows hardly one request of a slow approach."""

DRAIN_SHARE = 0.5
"""Time that unfinished requests are waited for after the last one, as a share of the window."""

MANY_COPIES = 2.0

SLACK = 0.05
"""Share of the time left that is kept for what ends late: a worker finishes what it has begun."""

WINDOWS = 1 + RUN_IN_SHARE + DRAIN_SHARE
"""Windows' time that a replay takes at most."""


class Blocks:
    """The traffic of a comparison whose engine of reference is known."""

    def __init__(
        self, requests: Sequence[TraceRequest], settings: CompareSettings, comparing: Comparing
    ) -> None:
        self.settings, self.comparing = settings, comparing
        found = comparing.reference()
        assert found is not None
        self.reference = found[0]
        self.kept, dropped = keep_what_fits(requests, max_model_len=found[1])
        self.warnings: list[str] = []
        if dropped:
            self.warnings.append(
                f"{dropped} of {len(requests)} requests are longer than max_model_len={found[1]} "
                "and were left out: raise it to compare with them"
            )

    def choose(self, watcher: Watcher) -> None:
        """Choose the windows, for what the sweep leaves of the budget; say what it costs.

        Raises UsageError when that is too little, TraceError when nothing arrives in a window.
        """
        settings = self.settings
        if self.comparing.evidence.selection() is None:
            step_s = min(settings.step_s, self.affordable_s())
            part, windows = windows_of(
                self.kept, settings.window, step_s=step_s, blocks=settings.repeats
            )
            self.comparing.recorder.add_selection(Selection(part, windows, step_s))
            starts, replays = settings.starts_and_replays()
            start_s = self.comparing.evidence.facts().start_s
            total_s = starts * start_s + replays * WINDOWS * windows[0].length_s
            watcher.stage(
                f"{replays} replays of {windows[0].replay_s:.0f}s in {settings.repeats} blocks and "
                f"{starts} engine starts: at most {math.ceil(total_s / 60)} minutes"
            )
        if len(set(self.windows)) < settings.repeats:
            self.warnings.append(
                "the trace is too short for another part of it in every block: the intervals know "
                "more of the machine's noise than of other traffic; compare with a longer trace"
            )
        self.warn_of_copies()

    def affordable_s(self) -> float:
        """Return how long each window can be. Raises UsageError when that is too short."""
        settings, start_s = self.settings, self.comparing.evidence.facts().start_s
        starts, replays = settings.starts_and_replays()
        spent_s = self.comparing.evidence.spent_s()
        left_s = settings.budget_s * (1 - settings.sweep_share) - spent_s - starts * start_s
        found_s = (1 - SLACK) * left_s / replays / WINDOWS
        if found_s < MIN_STEP_S:
            replays_s = replays * WINDOWS * MIN_STEP_S / (1 - SLACK)
            needed_s = spent_s + starts * start_s + replays_s
            needed_s /= 1 - settings.sweep_share
            raise UsageError(
                f"--budget {settings.budget_s:.0f}s is too little for {starts} engine starts of "
                f"{start_s:.0f}s and {replays} replays",
                hint=f"Give at least --budget {math.ceil(needed_s)}s, or fewer --approaches, "
                "--loads or --repeats.",
            )
        return found_s

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Return the window that each block replays, once that is chosen."""
        choice = self.comparing.evidence.selection()
        assert choice is not None
        return choice.windows

    @cached_property
    def rates_rps(self) -> dict[str, list[float]]:
        """Level → arrival rate in each block; without the trace as it is. Raises TraceError."""
        return {
            level.name: [self._rate(level, block) for block in range(self.settings.repeats)]
            for level in self.settings.levels
            if level.in_flight is not None
        }

    def warn_of_copies(self) -> None:
        """Say at which loads most of the requests are copies of others."""
        recorded = sum(len(in_window(self.kept, window)) for window in self.windows)
        for level, rates in self.rates_rps.items():
            sent = sum(
                rate * window.replay_s for rate, window in zip(rates, self.windows, strict=True)
            )
            if sent > MANY_COPIES * recorded:
                self.warnings.append(
                    f"{level}: {sent / recorded:.1f} times what was recorded there: most of its "
                    "requests are copies of others, some seconds apart; leave it out (--loads) or "
                    "compare with a busier trace"
                )

    def sent(self, cell: Cell, block: int) -> list[TraceRequest]:
        """Return what a cell sends in a block, the same to every approach."""
        rates = self.rates_rps.get(cell.load)
        sent = at_rate(
            self.kept,
            self.windows[block],
            rates[block] if rates else None,
            seed=self.settings.seed + block,
        )
        return sent if cell.lengths == "captured" else uniform(sent, self.kept)

    def heaviest(self) -> list[TraceRequest]:
        """Return the heaviest traffic that is compared, its blocks one after the other."""
        traffics = [self.traffic(level) for level in self.settings.levels]
        return max(
            traffics, key=lambda sent: sum(one.input_length + one.output_length for one in sent)
        )

    def traffic(self, level: Level) -> list[TraceRequest]:
        """Return what a level sends, its blocks one after the other."""
        cell = Cell(level.name, "captured")
        return end_to_end(
            [(window, self.sent(cell, block)) for block, window in enumerate(self.windows)]
        )

    def _rate(self, level: Level, block: int) -> float:
        seed = self.settings.seed + block
        rate = rate_of(level, self.kept, self.windows[block], self.reference.in_flight, seed=seed)
        assert rate is not None
        return rate
