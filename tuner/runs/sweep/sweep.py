"""The run: engine → ramp → ladder → knee, then the confirming engine.

One engine is started at the ceiling and its cap changes live; one fresh engine at the chosen value
confirms it, because KV pool and graph sizes follow ``max_num_seqs``.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.engines.seam import Starter
from tuner.errors import EngineError, InputError, RunError
from tuner.replay.device_use import Read
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, ToReplay, Trial, Watcher, in_words, measure
from tuner.runs.events import Gathered
from tuner.runs.evidence import RUNGS
from tuner.runs.journal import Journal
from tuner.runs.ladder import DRIFT_RAMP_SHARE, STEPS, cut_floor, next_for_twin, next_trial, short_s
from tuner.runs.result import SweepOutcome, outcome_of
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis, Conclusion, conclude, view_of, window_blocks
from tuner.runs.sweep.confirmation import Confirmation
from tuner.runs.sweep.sweep_warnings import fitting, shortened
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import HALF, MIN_STEP_S
from tuner.traffic.workload import (
    Workload,
    affordable_step_s,
    slo_for,
)

SERVER_START_S = 30.0
"""Seconds that a server takes longer to start than its engine alone, on a small machine. More would
take from the ladder what is kept for it; with less the confirming replay may find no budget."""

ENDING_S, CONCLUDING = 3.0, 3.0
"""What the end of a run takes: to stop the engine and to write the profile, and in times of
evaluating the choice once: more draws, and what is promised of it."""

OVERDRAWN = 1.1
"""Steps that may be missing before headroom is replayed: the one that the replay at the recorded
load has just taken, and a tenth, which is no reason to leave the other out."""


async def sweep(  # noqa: PLR0913 - what is tuned, on what, how, and who watches
    requests: Sequence[TraceRequest],
    starter: Starter,
    settings: SweepSettings,
    journal: Journal,
    watcher: Watcher,
    *,
    read_device: Read | None = None,
    confirming: Starter | None = None,
    began_s: float | None = None,
) -> SweepOutcome:
    """Tune ``max_num_seqs`` for these requests (in order of arrival) on the starter's engine, and
    confirm it on one that ``confirming`` starts, if that is another. The budget counts from
    ``began_s`` on the event loop's clock, by default from now.

    Raises EngineError where the engine could not be measured at all, RunError; TraceError when
    nothing can be replayed; UsageError when the budget is too small.
    """
    bench = Bench(
        journal,
        watcher,
        read_device,
        block_size=settings.trace_block_size,
        seed=settings.seed,
        closed_sessions=settings.closed_sessions,
    )
    run = SweepRun(bench, settings, starter, confirming or starter)
    if not run.evidence.starts():
        run.began_s = run.now_s() if began_s is None else began_s
    try:
        await run.conclude(requests)
        await run.confirm()
    finally:
        await bench.stop()
    return outcome_of(
        run.conclusion,
        run.basis,
        warnings=run.warnings,
        unconfirmed=run.unconfirmed,
    )


class SweepRun:
    """A run under way: first concluded, then confirmed. Whoever has made the bench stops it."""

    conclusion: Conclusion
    workload: Workload

    def __init__(
        self, bench: Bench, settings: SweepSettings, starter: Starter, confirming: Starter
    ) -> None:
        self.bench, self.settings, self.watcher = bench, settings, bench.watcher
        self.journal, self.evidence = bench.journal, bench.evidence
        self.ladder = Build("ladder", settings.ceiling, starter)
        self.confirming, self.is_like = confirming, confirming is starter
        self.now_s: Callable[[], float] = asyncio.get_running_loop().time
        self.warnings: list[str] = []
        self.unconfirmed: str | None = None
        """Why no fresh engine confirmed the choice, where one was to."""

        self.began_s: float | None = None
        """When a run that nothing interrupted began."""

        self.views_s: list[float] = []
        """How long evaluating the choice took each time; the first one compiles the twin."""

        self.is_doubted = settings.closed_sessions
        """Whether the windows decide, because the twin is not believed."""

        self.is_complete = False
        """Whether the budget had time for all that the decision asks for."""

        self.affords_confirming = True
        """Whether the budget is for the start of an engine that confirms too."""

    @property
    def basis(self) -> Basis:
        return Basis(self.evidence, self.workload, self.settings)

    @property
    def fresh(self) -> Build:
        """The engine that confirms the choice."""
        title = "starting the engine" if self.is_like else "starting the server that confirms"
        cap = self.conclusion.verdict.max_num_seqs
        return Build("confirm", cap, self.confirming, title=title)

    async def conclude(self, requests: Sequence[TraceRequest]) -> None:
        """Measure all that the decision asks for, and decide. Where the engine dies, what was
        measured by then decides. Raises EngineError where that is nothing."""
        self.workload = await self.prepare(requests)
        # the ladder keeps a rung and the confirming replay
        self.bench.spare_s = lambda: self.paid_s() - 2 * self.workload.step_s
        try:
            await measure(self.next_on_ladder, self.bench)
        except EngineError as error:
            await self.bench.stop()
            if not self.evidence.logs():
                raise
            self.warnings.append(f"the ladder ended early: {error}")
            self.is_complete = False
        # once, and once more where a larger budget then had room for all
        if not any(each.complete >= self.is_complete for each in self.journal.of(Gathered)):
            self.journal.add(Gathered(complete=self.is_complete))
        self.conclusion = await asyncio.to_thread(conclude, self.basis)

    async def prepare(self, all_requests: Sequence[TraceRequest]) -> Workload:
        """Probe the idle engine and choose what to replay; or read both back."""
        self.evidence.check()
        settings = self.settings
        if self.evidence.unloaded() is None:
            engine = await self.bench.up(self.ladder)
            self.watcher.stage("measuring requests one at a time, for what an idle engine does")
            await self.bench.probe(engine, self.fitting(all_requests), "ladder")
        requests, unloaded = self.fitting(all_requests), self.evidence.unloaded()
        assert unloaded is not None
        slo, starts_s = settings.slo or slo_for(requests, unloaded), self.evidence.starts_s()[0]
        confirm_s = self.confirm_start_s()
        budget_s = self.left_s() + self.evidence.spent_s()  # without what else took time so far
        self.affords_confirming = budget_s - starts_s - confirm_s >= STEPS * MIN_STEP_S
        starts_s += confirm_s if self.affords_confirming else 0.0
        workload = self.bench.selected(
            requests,
            slo,
            unloaded,
            window=settings.window,
            step_s=lambda: affordable_step_s(
                settings.step_s, steps=STEPS, budget_s=budget_s, starts_s=starts_s
            ),
        )
        self.warn(shortened(settings.step_s, workload.step_s))
        return workload

    def warn(self, text: str | None) -> None:
        if text is not None and text not in self.warnings:
            self.warnings.append(text)

    def fitting(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """Return the requests that this engine can take; warn of the others."""
        kept, warnings = fitting(requests, self.evidence.facts().max_model_len)
        for text in warnings:
            self.warn(text)
        return kept

    # What there is time for

    def confirm_start_s(self) -> float:
        """Return how long the confirming engine is expected to take to start."""
        newest = self.evidence.facts()
        is_first_server = self.settings.confirm != "inproc" and not newest.is_served
        return newest.start_s + (SERVER_START_S if is_first_server else 0.0)

    def left_s(self) -> float:
        """Return what is left of the budget for measuring, once the end is paid for. A run that was
        interrupted has spent what it measured, and no time in between."""
        spent_s = self.evidence.spent_s()
        if self.began_s is not None:
            spent_s = max(spent_s, self.now_s() - self.began_s)
        ending_s = ENDING_S + CONCLUDING * (self.views_s[1:] or [0.0])[-1]
        return self.settings.budget_s - spent_s - ending_s

    def paid_s(self) -> float:
        """Return what the budget leaves for replays before the confirming engine starts."""
        return self.left_s() - (self.confirm_start_s() if self.affords_confirming else 0.0)

    def steps_left(self) -> float:
        """Return how many steps may still be replayed before the confirming ones."""
        planned_step_s = self.workload.step_s
        rungs_s = [replay.elapsed_s for replay in self.uncut()]
        planned_s = STEPS * planned_step_s - self.evidence.replay_s()
        confirming = 1 + (self.settings.headroom > 1.0)
        return min(planned_s, self.paid_s()) / max(rungs_s, default=planned_step_s) - confirming

    # The ladder

    def next_on_ladder(self) -> Trial | None:
        """Return what to measure next; None when the decision can be taken, or there is no time."""
        evidence, ceiling = self.evidence, self.settings.ceiling
        if (half := evidence.under_way()) is not None:
            return self.trial(half.max_num_seqs, half.purpose)
        if not self.is_doubted:
            begun_s = self.now_s()
            view = view_of(self.basis)
            if view is not None:
                self.views_s.append(self.now_s() - begun_s)
                choice, draws = view.choice, len(view.choice.samples.values)
                self.watcher.believed(choice.best, round(choice.confidence * draws), draws)
            if view is None or view.is_believed:
                done = [each.trial for each in evidence.made()]
                trial = next_for_twin(done, view, ceiling=ceiling, steps_left=self.steps_left())
                self.is_complete = trial is None
                is_poor = view is not None and self.paid_s() < self.workload.step_s
                if trial is None or is_poor:
                    return None
                return self.trial(trial.max_num_seqs, trial.purpose)
            self.is_doubted = True
            self.watcher.warn(f"{view.doubt}: the windows must decide")
        blocks = window_blocks(self.basis)
        trial = next_trial(blocks, ceiling=ceiling)
        self.is_complete = trial is None
        if trial is None:
            return None
        needed_s = evidence.spent_s() + 2 * self.workload.step_s + self.confirm_start_s()
        if blocks and needed_s > self.settings.budget_s:
            step = f"{in_words(trial.purpose)} {trial.max_num_seqs}"
            self.warn(f"the budget left no room for {step}: give a larger --budget")
            self.is_complete = trial.purpose != "ladder"
            return None
        return self.trial(trial.max_num_seqs, trial.purpose)

    def trial(self, cap: int, purpose: str) -> Trial:
        """Return a step of the ladder."""
        workload, step_s = self.workload, self.workload.step_s
        if purpose in {"ramp", "drift_ramp"}:
            length_s = step_s if purpose == "ramp" else DRIFT_RAMP_SHARE * step_s
            return Trial(
                purpose=purpose, build=self.ladder, cap=cap, ramp=workload, ramp_s=length_s
            )
        shares = (numbers_of([replay], workload.slo).attainment for replay in self.uncut())
        # what repeats a rung is cut where a first one is: at another height it would pass for noise
        floor = cut_floor(max(shares, default=0.0)) if purpose == "ladder" else HALF
        rule = CutRule(workload.slo, floor)
        if purpose not in RUNGS:  # replayed for its iterations alone
            rule = CutRule(workload.slo, 0.0, short_s(step_s))
        window = workload.window
        replay = ToReplay(window, workload.sent_in(window), rule)
        return Trial(purpose=purpose, build=self.ladder, cap=cap, replay=replay)

    def uncut(self) -> list[Replay]:
        """Return the rungs that were replayed to their end."""
        return [rung.replayed for rung in self.evidence.rungs() if not rung.replayed.cut]

    # The confirming engine

    async def confirm(self) -> None:
        """Measure the choice on an engine of its own, as far as the budget goes. An engine that
        does not start, dies or takes too long costs this measurement, and never the answer."""
        self.bench.spare_s = self.left_s
        why = "the budget left no room for it"
        is_probed = self.evidence.unloaded("confirm") is not None
        try:
            if is_probed:  # before an interruption: what it showed counts, whatever is left
                await self.conclude_for_users()
            fresh, newest_s = self.fresh, self.evidence.facts().start_s
            start_s = self.evidence.start_needed_s(fresh.purpose, fresh.max_num_seqs)
            if self.left_s() > start_s:
                # a start that only an interruption makes necessary costs nothing
                async with asyncio.timeout(self.left_s() + newest_s - start_s):
                    if not is_probed:
                        await self.conclude_for_users()
                    confirmation = Confirmation(
                        self.bench, self.basis, self.conclusion, self.fresh, self.left_s,
                        affords_headroom=lambda: self.steps_left() >= -OVERDRAWN,
                    )  # fmt: skip
                    await measure(confirmation.next_trial, self.bench)
        except RunError:
            raise
        except TimeoutError:
            why = "the budget ended before it was done"
        except (EngineError, InputError, OSError) as error:
            why = str(error)
        if not self.evidence.confirming("confirm", self.conclusion.verdict.max_num_seqs):
            self.unconfirmed = why

    async def conclude_for_users(self) -> None:
        """Probe the server that confirms while it is idle, then conclude again.

        The conclusion is then behind the front end that the probes show and, where the SLO is
        derived, by what users see there. A choice that moves by this is confirmed on a server of
        its own.
        """
        settings, evidence, requests = self.settings, self.evidence, self.workload.requests
        if settings.confirm == "inproc":
            return
        if evidence.unloaded("confirm") is None:
            engine = await self.bench.up(self.fresh)
            self.watcher.stage("measuring requests one at a time, as users see an idle server")
            await self.bench.probe(engine, requests, "confirm")
        seen = evidence.unloaded("confirm")
        if settings.slo is None and seen is not None:
            self.workload = replace(self.workload, slo=slo_for(requests, seen))
        elif not evidence.probed():
            return  # no front end was seen
        self.conclusion = await asyncio.to_thread(conclude, self.basis)
