"""The path of a sweep: engine → ramp → ladder → choice, then the engine that confirms it.

One engine is started at the ceiling and its cap changes live; one fresh engine at the chosen value
confirms it, because KV pool and graph sizes follow ``max_num_seqs``. Each of the two phases asks a
function of the run's events what to measure next, until it returns nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tuner.engines.seam import Starter
from tuner.errors import EngineError, InputError, RunError, TargetError
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.replay.soundness import Read
from tuner.runs.bench import Bench, Build, Trial, Watcher, measure
from tuner.runs.evidence import RUNGS, Evidence
from tuner.runs.journal import Failed, Gathered, Journal, Tried
from tuner.runs.ladder import DRIFT_RAMP_SHARE, STEPS, cut_floor, next_for_twin, next_trial, short_s
from tuner.runs.result import SweepOutcome, outcome_of
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis, Conclusion, conclude, view_of, window_blocks
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import HALF, MIN_STEP_S
from tuner.traffic.load import scale_load
from tuner.traffic.window import unseen_window
from tuner.traffic.workload import Workload, affordable_step_s, keep_what_fits, slo_for
from tuner.twin.windows import Trial as Step

SERVER_START_S = 30.0
"""Seconds that a server takes longer to start than its engine alone, on a small machine. More would
take from the ladder what is kept for it; with less the confirming replay may find no budget."""

ENDING_S = 5.0
"""What the end of a run takes: to stop the engine, to conclude, and to write the profile."""

DRAIN_SHARE = 0.1
"""Of the time of a confirming replay, for what is unfinished when the last request was sent."""

LEAST_WINDOW_S = 8.0
"""Less of a window, its run-in left out, confirms nothing."""


ONE_AT_A_TIME = "requests one at a time on the idle engine"


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
        closed_sessions=settings.closed_sessions,
    )
    run = Sweep(bench, settings, starter, confirming or starter)
    if not run.evidence.starts():
        run.began_s = run.now_s() if began_s is None else began_s
    try:
        await run.prepare(requests)
        await run.climb()
        await run.confirm()
    finally:
        await bench.stop()
    return outcome_of(run.conclusion, run.basis, requests)


@dataclass(slots=True)
class Sweep:
    """A run under way: prepared, climbed, then confirmed. Whoever has made the bench stops it."""

    bench: Bench
    settings: SweepSettings
    starter: Starter
    confirming: Starter
    workload: Workload = field(init=False)
    conclusion: Conclusion = field(init=False)
    now_s: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    began_s: float | None = None
    """When a run that nothing interrupted began."""

    is_complete: bool = False
    """Whether the budget had time for all that the decision asks for."""

    is_doubted: bool = False
    """Whether the windows decide, because the twin is not believed."""

    affords_confirming: bool = True
    """Whether the budget is for the start of an engine that confirms too."""

    is_for_users: bool = False
    """Whether the conclusion is behind the front end of the server that confirms."""

    @property
    def journal(self) -> Journal:
        return self.bench.journal

    @property
    def evidence(self) -> Evidence:
        return self.bench.evidence

    @property
    def basis(self) -> Basis:
        return Basis(self.evidence, self.workload, self.settings)

    @property
    def ladder(self) -> Build:
        return Build("ladder", self.settings.ceiling, self.starter)

    @property
    def fresh(self) -> Build:
        """The engine that confirms the choice."""
        is_like, cap = self.confirming is self.starter, self.conclusion.verdict.max_num_seqs
        title = "starting the engine" if is_like else "starting the server that confirms"
        return Build("confirm", cap, self.confirming, title=title)

    async def prepare(self, all_requests: Sequence[TraceRequest]) -> None:
        """Probe the idle engine and choose what to replay; or read both back."""
        settings, evidence = self.settings, self.evidence
        if evidence.unloaded() is None:
            longest = (await self.bench.up(self.ladder)).facts.max_model_len
            requests, _ = keep_what_fits(all_requests, max_model_len=longest)
            tried = Tried(purpose="ladder", max_num_seqs=settings.ceiling)
            await self.bench.make(Trial(tried, self.ladder, requests, title=ONE_AT_A_TIME))
        requests, _ = keep_what_fits(all_requests, max_model_len=evidence.facts().max_model_len)
        unloaded, starts_s = evidence.unloaded(), evidence.starts()[0].facts.start_s
        assert unloaded is not None
        budget_s = self.left_s() + evidence.spent_s()  # without what else took time so far
        confirm_s = self.confirm_start_s()
        self.affords_confirming = budget_s - starts_s - confirm_s >= STEPS * MIN_STEP_S
        starts_s += confirm_s if self.affords_confirming else 0.0
        self.workload = self.bench.selected(
            requests,
            settings.slo or slo_for(requests, unloaded),
            unloaded,
            window=settings.window,
            step_s=lambda: affordable_step_s(
                settings.step_s, steps=STEPS, budget_s=budget_s, starts_s=starts_s
            ),
        )

    async def climb(self) -> None:
        """Measure all that the decision asks for, and decide. Where the engine dies, what was
        measured by then decides. Raises EngineError where that is nothing."""
        # the ladder keeps a rung and the confirming replay
        self.bench.spare_s = lambda: self.paid_s() - 2 * self.workload.step_s
        try:
            await measure(self.next_on_ladder, self.bench)
        except EngineError:
            if not self.evidence.logs():
                raise
            self.is_complete = False
        # once, and once more where a larger budget then had room for all
        if not any(each.complete >= self.is_complete for each in self.journal.of(Gathered)):
            self.journal.add(Gathered(complete=self.is_complete))
        await asyncio.to_thread(self.conclude)

    async def confirm(self) -> None:
        """Measure the choice on an engine of its own, as far as the budget goes. An engine that
        does not start, dies or takes too long costs this measurement, and never the answer."""
        self.bench.spare_s, build = self.left_s, self.fresh
        start_s = self.evidence.start_needed_s(build.purpose, build.max_num_seqs)
        # a start that only an interruption makes necessary costs nothing
        most_s = self.left_s() + self.evidence.facts().start_s - start_s
        try:
            async with asyncio.timeout(most_s):
                await measure(self.next_confirming, self.bench)
        except (RunError, TargetError):
            raise
        except (EngineError, InputError, OSError, TimeoutError) as error:
            why = str(error) or "the budget ended before it was done"
            cap = build.max_num_seqs
            self.journal.add(Failed(purpose=build.purpose, max_num_seqs=cap, why=why))

    def conclude(self) -> None:
        """Decide; once the server that confirms was probed, behind its front end and, where the SLO
        is derived, by what users see there."""
        seen = self.evidence.unloaded("confirm")
        if self.settings.slo is None and seen is not None:
            slo = slo_for(self.workload.requests, seen)
            self.workload = replace(self.workload, slo=slo)
        self.conclusion, self.is_for_users = conclude(self.basis), seen is not None

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
        return self.settings.budget_s - spent_s - ENDING_S

    def paid_s(self) -> float:
        """Return what the budget leaves for replays before the confirming engine starts."""
        return self.left_s() - (self.confirm_start_s() if self.affords_confirming else 0.0)

    def steps_left(self) -> float:
        """Return how many steps may still be replayed before the confirming ones."""
        step_s = self.workload.step_s
        longest_s = max((each.elapsed_s for each in self.uncut()), default=step_s)
        left_s = min(STEPS * step_s - self.evidence.replay_s(), self.paid_s())
        return left_s / longest_s - 1 - (self.settings.headroom > 1.0)

    def uncut(self) -> list[Replay]:
        """Return the rungs that were replayed to their end."""
        return [rung for rung in self.evidence.replays(*RUNGS) if not rung.cut]

    # What is measured next

    def next_on_ladder(self) -> Trial | None:
        """Return what to measure next; None when the decision can be taken, or there is no time."""
        evidence, ceiling, step_s = self.evidence, self.settings.ceiling, self.workload.step_s
        if evidence.is_complete():
            self.is_complete = True
            return None
        view = None if self.is_doubted or self.settings.closed_sessions else view_of(self.basis)
        if view is not None and view.doubt is not None:
            self.is_doubted = True
            self.bench.watcher.warn(f"{view.doubt}: the windows must decide")
        if self.is_doubted or self.settings.closed_sessions:
            blocks = window_blocks(self.basis)
            step = next_trial(blocks, ceiling=ceiling)
            needed_s = evidence.spent_s() + 2 * step_s + self.confirm_start_s()
            has_time = not blocks or needed_s <= self.settings.budget_s
        else:
            if view is not None:
                choice, draws = view.choice, len(view.choice.samples.values)
                self.bench.watcher.believed(choice.best, round(choice.confidence * draws), draws)
            done = evidence.steps()
            step = next_for_twin(done, view, ceiling=ceiling, steps_left=self.steps_left())
            has_time = view is None or self.paid_s() >= step_s
        self.is_complete = step is None
        return self.trial(step) if step is not None and has_time else None

    def trial(self, step: Step) -> Trial:
        """Return a step of the ladder."""
        workload, cap, purpose = self.workload, step.max_num_seqs, step.purpose
        if purpose in {"ramp", "drift_ramp"}:
            share, unloaded = 1.0 if purpose == "ramp" else DRIFT_RAMP_SHARE, workload.unloaded
            return Trial(
                Tried(purpose=purpose, max_num_seqs=cap),
                self.ladder,
                workload.twin_requests,
                ramp_s=share * workload.step_s,
                tpot_s=unloaded.tpot_s or unloaded.ttft_s,
            )
        shares = (numbers_of([replay], workload.slo).attainment for replay in self.uncut())
        # what repeats a rung is cut where a first one is: at another height it would pass for noise
        floor = cut_floor(max(shares, default=0.0)) if purpose == "ladder" else HALF
        rule = CutRule(workload.slo, floor)
        if purpose not in RUNGS:  # replayed for its iterations alone
            rule = CutRule(workload.slo, 0.0, short_s(workload.step_s))
        window = workload.window
        tried = Tried(purpose=purpose, max_num_seqs=cap, window=window)
        return Trial(tried, self.ladder, workload.sent_in(window), rule)

    def next_confirming(self) -> Trial | None:
        """Return a probe of the server that confirms while it is idle, then the replays. A choice
        that moves by the probe is confirmed on a server of its own."""
        build, left_s = self.fresh, self.left_s()
        if self.settings.confirm == "server" and not self.is_for_users:
            if self.evidence.unloaded("confirm") is None:
                start_s = self.evidence.start_needed_s(build.purpose, build.max_num_seqs)
                tried = Tried(purpose="confirm", max_num_seqs=build.max_num_seqs)
                probing = Trial(tried, build, self.workload.requests, title=ONE_AT_A_TIME)
                return probing if left_s > start_s else None
            self.conclude()
        return confirming_trial(self.basis, self.conclusion, self.fresh, left_s)


def confirming_trial(
    basis: Basis, conclusion: Conclusion, build: Build, left_s: float
) -> Trial | None:
    """Return the next replay of the choice on an engine of its own, as far as so many seconds go:
    at the recorded load, in a window that the ladder did not replay; with headroom, in the one that
    it did."""
    settings, workload, evidence = basis.settings, basis.workload, basis.evidence
    cap, is_overloaded = conclusion.verdict.max_num_seqs, conclusion.verdict.kind == "overloaded"
    left_s -= evidence.start_needed_s(build.purpose, build.max_num_seqs)
    purpose, window = "confirm", workload.window
    if evidence.confirming(purpose, cap):
        purpose, is_due = "headroom", settings.headroom > 1.0 and not is_overloaded
        if not is_due or evidence.confirming(purpose, cap) or left_s < window.replay_s:
            return None
        sent = scale_load(workload.sent_in(window), settings.headroom, seed=0)
    else:
        if any(each.window for each in evidence.made()):
            window = unseen_window(workload.requests, window) or window
        most_s = (1 - DRAIN_SHARE) * left_s - window.run_in_s
        if most_s < min(window.length_s, LEAST_WINDOW_S):
            return None
        window = replace(window, length_s=min(window.length_s, most_s))
        sent = workload.sent_in(window)
    rule = CutRule(workload.slo, 0.0 if is_overloaded else HALF, stop_s=left_s)
    tried = Tried(purpose=purpose, max_num_seqs=cap, window=window)
    return Trial(tried, build, sent, rule)
