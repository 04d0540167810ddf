"""The run: engine → ramp → ladder → knee, then the confirming engine.

One engine is started at the ceiling and its cap changes live; one fresh engine at the chosen value
confirms it, because KV pool and graph sizes follow ``max_num_seqs``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tuner.engines.seam import EngineFacts, Starter
from tuner.errors import EngineError, InputError, RunError
from tuner.replay.readings import Read
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, Watcher, in_words
from tuner.runs.events import Gathered, Selection
from tuner.runs.evidence import RUNGS, best_attainments, disturbed, uncut_rung_s
from tuner.runs.journal import Journal
from tuner.runs.ladder import DRIFT_RAMP_SHARE, STEPS, cut_floor, next_for_twin, next_trial, short_s
from tuner.runs.measure import Trial, measure
from tuner.runs.outcome import SweepOutcome, outcome_of
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis, Conclusion, conclude, view_of, window_blocks
from tuner.runs.sweep.confirmation import Confirmation
from tuner.runs.sweep.sweep_warnings import left_out, shortened
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import MIN_STEP_S
from tuner.traffic.window import Window
from tuner.traffic.workload import (
    Workload,
    affordable_step_s,
    choose_workload,
    keep_what_fits,
    slo_for,
    workload_of,
)

Made = TypeVar("Made")

SERVER_START_S = 30.0
"""Seconds that a server takes longer to start than its engine alone, on a small machine. More would
take from the ladder what is kept for it; with less the confirming replay may find no budget."""

CONCLUDING, CONCLUDING_AGAIN = 3.0, 2.0
"""The time of a run's end, in times of evaluating the choice: more draws, and what is promised of
it; and in times of the last conclusion, which is drawn once more after the check of the confirming
replay."""

ENDING_S = 3.0
"""What the end takes besides: to stop the engine and to write the profile."""

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
        dropped=run.dropped,
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
        self.bench, self.settings, self.starter = bench, settings, starter
        self.confirming, self.watcher = confirming, bench.watcher
        self.journal, self.evidence = bench.journal, bench.evidence
        self.now_s: Callable[[], float] = asyncio.get_running_loop().time
        self.dropped = 0
        self.warnings: list[str] = []
        self.unconfirmed: str | None = None
        """Why no fresh engine confirmed the choice, where one was to."""

        self.began_s: float | None = None
        """When a run that nothing interrupted began."""

        self.ending_s = ENDING_S
        """What the end of the run takes, by how long evaluating the choice took last;
        the first time does not count, which compiles the twin."""

        self.has_compiled = False
        self.is_doubted = False
        """Whether the windows decide, because the twin is not believed."""

        self.is_complete = False
        """Whether the budget had time for all that the decision asks for."""

        self.affords_confirming = True
        """Whether the budget is for the start of an engine that confirms too."""

        self.is_confirming = False

    @property
    def basis(self) -> Basis:
        return Basis(self.evidence, self.workload, self.settings)

    @property
    def ladder(self) -> Build:
        return Build("ladder", self.settings.ceiling, self.starter)

    @property
    def fresh(self) -> Build:
        """The engine that confirms the choice."""
        is_like = self.confirming is self.starter
        title = "starting the engine" if is_like else "starting the server that confirms"
        cap = self.conclusion.verdict.max_num_seqs
        return Build("confirm", cap, self.confirming, title=title)

    async def conclude(self, requests: Sequence[TraceRequest]) -> None:
        """Measure all that the decision asks for, and decide. An engine that dies is replaced once,
        if the budget allows it; what was measured by then decides where it dies again. Raises
        EngineError where that is nothing."""
        self.workload = await self._twice(lambda: self.prepare(requests), steps=0.0)
        self.bench.spare_s = self.spare_s
        try:
            await self._twice(lambda: measure(self.next_on_ladder, self.bench), steps=1.0)
        except EngineError as error:
            await self.bench.stop()
            if not self.evidence.segments():
                raise
            self.warnings.append(f"the ladder ended early: {error}")
            self.is_complete = False
        # once, and once more where a larger budget then had room for all
        if not any(each.complete >= self.is_complete for each in self.journal.of(Gathered)):
            self.journal.add(Gathered(complete=self.is_complete))
        await self.concluded()

    async def _twice(self, work: Callable[[], Awaitable[Made]], *, steps: float) -> Made:
        """Do some work; where the engine dies of it, once more with a new one, if the budget has
        time for its start and so many steps."""
        try:
            return await work()
        except EngineError as error:
            need_s = self.evidence.facts().start_s if self.evidence.starts() else 0.0
            need_s += steps * self.workload.step_s if steps else 0.0
            if self.bench.engine is None or self.paid_s() < need_s:
                raise  # it did not start, or there is no time for another
            self.watcher.warn(f"{error}; continuing with a new engine")
            await self.bench.stop()
            return await work()

    async def concluded(self) -> None:
        """Conclude from what was measured, and note how long that took."""
        begun_s = self.now_s()
        self.conclusion = await asyncio.to_thread(conclude, self.basis)
        took_s = CONCLUDING_AGAIN * (self.now_s() - begun_s)
        self.ending_s = max(self.ending_s, ENDING_S + took_s)

    async def prepare(self, all_requests: Sequence[TraceRequest]) -> Workload:
        """Probe the idle engine and choose what to replay; or read both back."""
        self.evidence.check()
        settings, unloaded = self.settings, self.evidence.unloaded()
        if unloaded is None:
            engine = await self.bench.up(self.ladder)
            requests = self.fitting(all_requests, engine.facts)
            self.watcher.stage("measuring requests one at a time, for what an idle engine does")
            await self.bench.probe(engine, requests, "ladder")
            unloaded = self.evidence.unloaded()
            assert unloaded is not None
        else:
            requests = self.fitting(all_requests, self.evidence.facts())
        slo, chosen = settings.slo or slo_for(requests, unloaded), self.evidence.selection()
        starts_s, confirm_s = self.evidence.starts_s()[0], self.confirm_start_s()
        budget_s = self.left_s() + self.evidence.spent_s()  # without what else took time so far
        self.affords_confirming = budget_s - starts_s - confirm_s >= STEPS * MIN_STEP_S
        if chosen is None:
            starts_s += confirm_s if self.affords_confirming else 0.0
            step_s = affordable_step_s(
                settings.step_s, steps=STEPS, budget_s=budget_s, starts_s=starts_s
            )
            work = choose_workload(requests, slo, unloaded, window=settings.window, step_s=step_s)
            chosen = Selection(part=work.part, windows=work.windows, step_s=work.step_s)
            self.journal.add(chosen)
            windows = ", ".join(map(str, work.windows))
            self.watcher.stage(
                f"a step replays {windows} of the trace; expect up to {STEPS * work.step_s:.0f}s "
                f"of replay and {starts_s:.0f}s of engine starts"
            )
        self.warn(shortened(settings.step_s, chosen.step_s))
        return workload_of(requests, slo, unloaded, chosen.part, chosen.windows, chosen.step_s)

    def warn(self, text: str | None) -> None:
        if text is not None and text not in self.warnings:
            self.warnings.append(text)

    def fitting(self, requests: Sequence[TraceRequest], facts: EngineFacts) -> list[TraceRequest]:
        """Return the requests that this engine can take; count the others and warn of them."""
        kept, self.dropped = keep_what_fits(requests, max_model_len=facts.max_model_len)
        self.warn(left_out(self.dropped, of=len(requests), max_model_len=facts.max_model_len))
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
        return self.settings.budget_s - spent_s - self.ending_s

    def paid_s(self) -> float:
        """Return what the budget leaves for replays before the confirming engine starts."""
        return self.left_s() - (self.confirm_start_s() if self.affords_confirming else 0.0)

    def spare_s(self) -> float:
        """Return what may be spent on measuring something once more: the ladder keeps a rung and
        the confirming replay, that replay keeps nothing."""
        if self.is_confirming:
            return self.left_s()
        return self.paid_s() - 2 * self.workload.step_s

    def steps_left(self) -> float:
        """Return how many steps may still be replayed before the confirming ones."""
        settings, planned_step_s = self.settings, self.workload.step_s
        step_s = uncut_rung_s(self.evidence.rungs()) or planned_step_s
        confirming = 1 + (settings.headroom > 1.0)
        planned_s = STEPS * planned_step_s - self.evidence.replay_s()
        return min(planned_s, self.paid_s()) / step_s - confirming

    # The ladder

    def next_on_ladder(self) -> Trial | None:
        """Return what to measure next; None when the decision can be taken, or there is no time."""
        evidence, settings = self.evidence, self.settings
        if (half := evidence.under_way()) is not None:
            return self.trial(half.max_num_seqs, half.purpose)
        if settings.closed_sessions or self.is_doubted:
            return self._next_for_windows()
        begun_s = self.now_s()
        view = view_of(self.basis)
        if self.has_compiled:
            self.ending_s = ENDING_S + CONCLUDING * (self.now_s() - begun_s)
        self.has_compiled = view is not None
        if view is not None:
            choice, draws = view.choice, len(view.choice.samples.values)
            self.watcher.believed(choice.best, round(choice.confidence * draws), draws)
            if not view.is_believed:
                self.is_doubted = True
                self.watcher.warn(f"{view.doubt}: the windows must decide")
                return self._next_for_windows()
        trial = next_for_twin(
            evidence.trials(),
            view,
            ceiling=settings.ceiling,
            steps_left=self.steps_left(),
            disturbed=disturbed(evidence.rungs()),
        )
        is_poor = view is not None and self.paid_s() < self.workload.step_s
        self.is_complete = trial is None
        return None if trial is None or is_poor else self.trial(trial.max_num_seqs, trial.purpose)

    def _next_for_windows(self) -> Trial | None:
        """Return what the windows need to decide alone."""
        blocks = window_blocks(self.basis)
        trial = next_trial(blocks, ceiling=self.settings.ceiling)
        self.is_complete = trial is None
        if trial is None:
            return None
        needed_s = self.evidence.spent_s() + 2 * self.workload.step_s + self.confirm_start_s()
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
                purpose=purpose, build=self.ladder, cap=cap, workload=workload, ramp_s=length_s
            )
        best = best_attainments(self.evidence.rungs(under_way=True), workload.slo)

        def rule(number: int, window: Window) -> tuple[CutRule, float | None]:
            if purpose not in RUNGS:
                return CutRule(workload.slo, 0.0, short_s(step_s)), None
            floor, bound = cut_floor(best.get(number, 0.0)), workload.bound(window, cap)
            # the ceiling is always tried: that nothing helps must be seen and not only computed
            if bound >= floor or cap == self.settings.ceiling:
                return CutRule(workload.slo, floor), None
            return CutRule(workload.slo, floor, short_s(step_s)), bound

        return Trial(
            purpose=purpose,
            build=self.ladder,
            cap=cap,
            windows=workload.windows if purpose in RUNGS else workload.windows[:1],
            sent=workload.sent_in,
            rule=rule,
            slo=workload.slo,
        )

    # The confirming engine

    async def confirm(self) -> None:
        """Measure the choice on an engine of its own, as far as the budget goes. An engine that
        does not start, dies or takes too long costs this measurement, and never the answer."""
        self.is_confirming = True
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
        settings, evidence = self.settings, self.evidence
        if settings.confirm == "inproc":
            return
        if evidence.unloaded("confirm") is None:
            engine = await self.bench.up(self.fresh)
            self.watcher.stage("measuring requests one at a time, as users see an idle server")
            await self.bench.probe(engine, self.workload.requests, "confirm")
        if settings.slo is None:
            seen = evidence.unloaded("confirm")
            assert seen is not None
            self.workload = replace(self.workload, slo=slo_for(self.workload.requests, seen))
        elif not evidence.probed():
            return  # no front end was seen
        await self.concluded()
