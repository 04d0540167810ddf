"""The run: engine → ramp → ladder → journal → knee, then the confirming engine.

One engine is started at the ceiling and its cap changes live; one fresh engine at the chosen value
confirms it, because KV pool and graph sizes follow ``max_num_seqs``. Everything measured is in the
journal before the next step begins, so that a resumed run measures only the rest.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tuner.engines.seam import ITERATION, Engine, EngineFacts, Starter
from tuner.errors import EngineError, InputError, RunError
from tuner.replay.measure import measure
from tuner.replay.readings import Read
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs.engine_runner import EngineRunner, Watcher, in_words
from tuner.runs.evidence import Evidence, Selection
from tuner.runs.journal import Journal
from tuner.runs.ladder import (
    DRIFT_RAMP_SHARE,
    FAST_STEPS,
    STEPS,
    cut_floor,
    next_for_twin,
    next_trial,
    short_s,
)
from tuner.runs.outcome import Conclusion, SweepOutcome
from tuner.runs.recorder import now_s
from tuner.runs.rungs import RUNGS, best_attainments, disturbed, whole_rung_s
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis, conclude, view_of, window_blocks
from tuner.runs.sweep.headroom import after_headroom
from tuner.runs.sweep.outcome import outcome_of
from tuner.runs.sweep.prediction import foretold_in, foretold_replay
from tuner.runs.sweep.sweep_warnings import left_out, no_room_for, shortened
from tuner.trace.trace import TraceRequest
from tuner.traffic.scaling import scale_load
from tuner.traffic.window import Window
from tuner.traffic.workload import (
    MIN_STEP_S,
    Workload,
    affordable_step_s,
    choose_workload,
    keep_what_fits,
    slo_for,
    workload_of,
)
from tuner.twin.forecast import Forecast
from tuner.twin.objective import HALF
from tuner.twin.uncertainty import Trial

SERVER_START_S = 30.0
"""Seconds that a server takes longer to start than its engine alone, on a small machine. More would
take from the ladder what is kept for it; with less the confirming replay may find no budget."""

CONCLUDING = 3.0
"""Times as long as weighing the choice once that a run takes for its end: to weigh it with more
draws, and to work out what is promised of it. Counts until the end was worked out once."""

CONCLUDING_AGAIN = 2.0
"""Times as long as the last conclusion that a run takes for its end: after headroom it is drawn
once more, after the check of the confirming replay as well."""

ENDING_S = 3.0
"""What the end takes besides: to stop the engine and to write the profile."""

OVERDRAWN = 1.1
"""Steps that may be missing before headroom is replayed: the one that the replay as captured has
just taken, and a tenth, which is no reason to leave the other out."""


async def sweep(  # noqa: PLR0913 - what is tuned, on what, how, and who is told
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
    evidence = Evidence(journal)
    runner = EngineRunner(starter, settings, evidence, watcher, read_device, confirming=confirming)
    run = SweepRun(runner)
    if not evidence.starts():
        run.began_s = asyncio.get_running_loop().time() if began_s is None else began_s
    try:
        await run.conclude(requests)
        await run.confirm()
    finally:
        await runner.stop()
    return run.outcome()


def steps_of(settings: SweepSettings) -> float:
    """Return how many steps of replay a run may take."""
    return FAST_STEPS if settings.fast else STEPS


def unsent(
    facts: EngineFacts, cap: int, window: Window, workload: Workload, bound: float
) -> Replay:
    """Return the replay of a window that arithmetic rules out: all of it counts, and none is sent.

    Left out it would count for nothing, and the windows that a cap can serve would stand for all.
    """
    return Replay(
        max_num_seqs=cap,
        scored_from_s=window.run_in_s,
        window_s=window.length_s,
        elapsed_s=0.0,
        iterations=np.zeros(0, ITERATION),
        kv_blocks=facts.kv_blocks,
        token_budget=facts.max_num_batched_tokens,
        cut="ruled out by Little's law",
        ruled_out=True,
        unsent=sum(one.arrival_s >= window.start_s for one in workload.sent_in(window)),
        attainment_bound=bound,
        slo=workload.slo,
        start_s=now_s(),
        weight=window.weight,
    )


class SweepRun:
    """A run under way: first concluded, then confirmed. Whoever has made the runner stops it."""

    conclusion: Conclusion
    workload: Workload

    def __init__(self, runner: EngineRunner) -> None:
        self.runner = runner
        self.settings, self.watcher = runner.settings, runner.watcher
        self.evidence, self.recorder = runner.evidence, runner.recorder
        self.dropped: dict[str, int] = {}
        self.warnings: list[str] = []
        self.unconfirmed: str | None = None
        """Why no fresh engine confirmed the choice, where one was to."""

        self.began_s: float | None = None
        """When a run that nothing interrupted began."""

        self.thinking_s = 0.0
        """How long it took to weigh the choice last; the first time does not count, which compiles
        the twin."""

        self.has_compiled = False

        self.concluding_s = 0.0
        """How long the last conclusion took: on a machine that others load, much longer."""

        self.affords_confirming = True
        """Whether the budget is for the start of an engine that confirms too."""

        self.is_confirming = False

    @property
    def basis(self) -> Basis:
        return Basis(self.evidence, self.workload, self.settings)

    async def conclude(self, requests: Sequence[TraceRequest]) -> None:
        """Measure all that the decision asks for, and decide."""
        try:
            self.workload = await self.prepare(requests)
        except EngineError as error:
            if self.runner.engine is None or self.paid_s() < self.evidence.facts().start_s:
                raise  # it did not start, or there is no time for another
            self.watcher.warn(f"{error}; going on with a new engine")
            await self.runner.stop()
            self.workload = await self.prepare(requests)
        self.runner.spare_s = self.spare_s
        self.recorder.add_gathered(complete=await self.gather_with_one_death())
        self.conclusion = await self.concluded()

    async def concluded(self) -> Conclusion:
        """Return the conclusion from what was measured, and note how long it took."""
        begun_s = asyncio.get_running_loop().time()
        conclusion = await asyncio.to_thread(conclude, self.basis)
        self.concluding_s = asyncio.get_running_loop().time() - begun_s
        return conclusion

    def outcome(self) -> SweepOutcome:
        """Return all that was found, once it is confirmed."""
        return outcome_of(
            self.conclusion,
            self.basis,
            dropped=self.dropped,
            warnings=self.warnings,
            unconfirmed=self.unconfirmed,
        )

    async def prepare(self, all_requests: Sequence[TraceRequest]) -> Workload:
        """Probe the idle engine and choose what to replay; or read both back."""
        self.evidence.check()
        unloaded = self.evidence.unloaded()
        if unloaded is None:
            engine = await self.runner.engine_for(self.settings.ceiling, "ladder")
            requests = self.fitting(all_requests, engine.facts)
            self.watcher.stage("measuring requests one at a time, for what an idle engine does")
            await self.runner.probe(engine, requests, "ladder")
            unloaded = self.evidence.unloaded()
            assert unloaded is not None
        else:
            requests = self.fitting(all_requests, self.evidence.facts())
        slo = self.settings.slo or slo_for(requests, unloaded)
        chosen = self.evidence.selection()
        if chosen is not None:
            self.warn(shortened(self.settings.step_s, chosen.step_s))
            return workload_of(requests, slo, unloaded, chosen.part, chosen.windows, chosen.step_s)
        starts_s = self.evidence.facts().start_s
        steps, confirm_s = steps_of(self.settings), self.confirm_start_s()
        budget_s = self.left_s() + self.evidence.spent_s()  # without what else took time so far
        self.affords_confirming = budget_s - starts_s - confirm_s >= steps * MIN_STEP_S
        starts_s += confirm_s if self.affords_confirming else 0.0
        step_s = affordable_step_s(
            self.settings.step_s, steps=steps, budget_s=budget_s, starts_s=starts_s
        )
        workload = choose_workload(
            requests, slo, unloaded, asked=self.settings.window, step_s=step_s
        )
        self.recorder.add_selection(Selection(workload.part, workload.windows, workload.step_s))
        self.warn(shortened(self.settings.step_s, workload.step_s))
        windows = ", ".join(map(str, workload.windows))
        most_s = steps_of(self.settings) * workload.step_s
        self.watcher.stage(
            f"a step replays {windows} of the trace; expect up to {most_s:.0f}s of replay and "
            f"{starts_s:.0f}s of engine starts"
        )
        return workload

    def warn(self, said: str | None) -> None:
        if said is not None:
            self.warnings.append(said)

    def fitting(self, requests: Sequence[TraceRequest], facts: EngineFacts) -> list[TraceRequest]:
        """Return the requests that this engine can take; count and tell the others."""
        kept, dropped = keep_what_fits(requests, max_model_len=facts.max_model_len)
        if dropped:
            self.dropped = {"over_max_model_len": dropped}
        self.warn(left_out(dropped, of=len(requests), max_model_len=facts.max_model_len))
        return kept

    def confirm_start_s(self) -> float:
        """Return how long the confirming engine is expected to take to start."""
        newest, confirm = self.evidence.facts(), self.settings.confirm
        is_first_server = confirm != "inproc" and not newest.is_served
        return newest.start_s + (SERVER_START_S if is_first_server else 0.0)

    def left_s(self) -> float:
        """Return what is left of the budget for measuring, once the end is paid for. A run that was
        interrupted has spent what it measured, and no time in between."""
        spent_s = self.evidence.spent_s()
        if self.began_s is not None:
            spent_s = max(spent_s, asyncio.get_running_loop().time() - self.began_s)
            ending_s = max(CONCLUDING * self.thinking_s, CONCLUDING_AGAIN * self.concluding_s)
            spent_s += ENDING_S + ending_s
        return self.settings.budget_s - spent_s

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
        step_s = whole_rung_s(self.evidence.rungs()) or planned_step_s
        confirming = 1 + (settings.headroom > 1.0 and not settings.fast)
        planned_s = steps_of(settings) * planned_step_s - self.evidence.replay_s()
        return min(planned_s, self.paid_s()) / step_s - confirming

    async def gather_with_one_death(self) -> bool:
        """Gather; where the engine dies of it, go on with a new one if the budget allows it, once.
        What was measured by then decides. Raises EngineError where that is nothing."""
        for is_last in (False, True):
            try:
                return await self.gather()
            except EngineError as error:
                await self.runner.stop()
                need_s = self.evidence.facts().start_s + self.workload.step_s
                is_affordable = self.paid_s() > need_s
                if not is_last and is_affordable:
                    self.watcher.warn(f"{error}; going on with a new engine")
                elif self.evidence.segments():
                    self.warn(f"the ladder ended early: {error}")
                    return False
                else:
                    raise
        raise AssertionError

    async def gather(self) -> bool:
        """Measure what the decision asks for; return False when the budget ended it early."""
        if (trial := self.evidence.under_way()) is not None:
            await self.make(trial)
        if self.settings.closed_sessions:
            return await self.gather_windows()
        while True:
            view = await self.weighed()
            if view is not None:
                weighed = view.weighed
                self.watcher.believed(weighed.best, weighed.agreeing, weighed.draws)
            if view is not None and not view.is_believed:
                self.watcher.warn(f"{view.doubt}: the windows must decide")
                return await self.gather_windows()
            trial = next_for_twin(
                self.evidence.trials(),
                view,
                ceiling=self.settings.ceiling,
                fast=self.settings.fast,
                steps_left=self.steps_left(),
                disturbed=disturbed(self.evidence.rungs()),
            )
            if trial is None:
                return True
            if view is not None and self.paid_s() < self.workload.step_s:
                return False
            self.recorder.begin(trial)
            await self.make(trial)

    async def weighed(self) -> Forecast | None:
        """Return what the twin says so far, and note how long it took to say it."""
        begun_s = asyncio.get_running_loop().time()
        view = view_of(self.basis)
        if self.has_compiled:
            self.thinking_s = asyncio.get_running_loop().time() - begun_s
        self.has_compiled = view is not None
        return view

    async def gather_windows(self) -> bool:
        """Measure what the windows need to decide alone."""
        ceiling, step_s = self.settings.ceiling, self.workload.step_s
        blocks = window_blocks(self.basis)
        while (trial := next_trial(blocks, ceiling=ceiling)) is not None:
            needed_s = self.evidence.spent_s() + 2 * step_s + self.confirm_start_s()
            if blocks and needed_s > self.settings.budget_s:
                if trial.purpose != "tie_break":
                    step = f"{in_words(trial.purpose)} {trial.max_num_seqs}"
                    self.warn(no_room_for(step))
                return trial.purpose != "ladder"
            self.recorder.begin(trial)
            await self.make(trial)
            blocks = window_blocks(self.basis)
        return True

    async def make(self, trial: Trial) -> None:
        """Measure one trial, or what an interruption left of it."""
        workload, cap, purpose = self.workload, trial.max_num_seqs, trial.purpose
        engine = await self.runner.engine_for(cap, "ladder")
        if purpose in RUNGS:
            await self.rung(trial, engine)
        elif self.evidence.replayed():
            pass  # all but its end was written down
        elif purpose == "ramp":
            await self.runner.ramp(engine, purpose, cap, workload, workload.step_s)
        elif purpose == "drift_ramp":
            await self.runner.ramp(
                engine, purpose, cap, workload, DRIFT_RAMP_SHARE * workload.step_s
            )
        else:
            window, rule = workload.windows[0], CutRule(workload.slo, 0.0, short_s(workload.step_s))
            sent = workload.sent_in(window)
            result = await self.runner.replay(engine, purpose, cap, sent, window, rule)
            self.recorder.add_replay(result, purpose)
        self.recorder.end()

    async def rung(self, trial: Trial, engine: Engine) -> None:
        """Replay every window of the step that was not replayed before an interruption."""
        workload, cap, purpose = self.workload, trial.max_num_seqs, trial.purpose
        done = self.evidence.replayed()
        best = best_attainments(self.evidence.rungs(under_way=True), workload.slo)
        for number, window in enumerate(workload.windows):
            floor = cut_floor(best.get(number, 0.0))
            bound = workload.bound(window, cap)
            # the ceiling is always tried: that nothing helps must be seen and not only computed
            ruled_out = bound < floor and cap != self.settings.ceiling
            if number in done:
                continue
            sent = workload.sent_in(window)
            if ruled_out and number:  # the first is replayed for its iterations
                result = unsent(engine.facts, cap, window, workload, bound)
                self.recorder.add_replay(result, purpose, window=number)
                continue
            rule = CutRule(workload.slo, floor, short_s(workload.step_s) if ruled_out else None)
            result = await self.runner.replay(engine, purpose, cap, sent, window, rule)
            if ruled_out:
                bound = min(bound, result.attainment_bound)
                result = replace(result, attainment_bound=bound, ruled_out=result.cut is not None)
            self.recorder.add_replay(result, purpose, window=number)
        replays = list(self.evidence.replayed().values())
        self.watcher.measured(f"{in_words(purpose)} {cap}", measure(replays, workload.slo))

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
            cap = self.conclusion.verdict.max_num_seqs
            engine = await self.runner.engine_for(cap, "confirm")
            self.watcher.stage("measuring requests one at a time, as users see an idle server")
            await self.runner.probe(engine, self.workload.requests, "confirm")
        if settings.slo is None:
            seen = evidence.unloaded("confirm")
            assert seen is not None
            self.workload = replace(self.workload, slo=slo_for(self.workload.requests, seen))
        elif not evidence.probed():
            return  # no front end was told
        self.conclusion = await self.concluded()

    def confirming_windows(self) -> Sequence[Window]:
        """Return what the confirming engine replays. What the twin foretells of it is on disk
        before the replay begins."""
        workload, view = self.workload, self.conclusion.view
        cap = self.conclusion.verdict.max_num_seqs
        said = foretold_in(self.evidence, cap)
        if said is None and view is not None and self.conclusion.by_twin:
            said = foretold_replay(self.basis, view, cap, most_s=self.left_s())
            self.recorder.append("foretold", **said.as_event())
        return workload.windows if said is None else said.windows

    async def confirm(self) -> None:
        """Measure the choice on an engine of its own, as far as the budget goes. An engine that
        does not start, dies or takes too long costs this measurement, and never the answer."""
        self.is_confirming = True
        why = "the budget left no room for it"
        try:
            if self.left_s() > self.evidence.facts().start_s:
                async with asyncio.timeout(self.left_s()):
                    await self.replay_choice()
        except RunError:
            raise
        except TimeoutError:
            why = "the budget ended before it was done"
        except (EngineError, InputError, OSError) as error:
            why = str(error)
        if not self.evidence.confirming("confirm", self.conclusion.verdict.max_num_seqs):
            self.unconfirmed = why

    async def replay_choice(self) -> None:
        """Replay the choice on an engine of its own, as recorded and with headroom."""
        await self.conclude_for_users()
        settings, verdict = self.settings, self.conclusion.verdict
        loads = {"confirm": 1.0, "headroom": settings.headroom}
        if settings.fast or settings.headroom <= 1.0 or verdict.kind == "overloaded":
            del loads["headroom"]
        await self.replay_at(verdict.max_num_seqs, loads)
        self.conclusion = await asyncio.to_thread(after_headroom, self.conclusion, self.basis)

    async def replay_at(self, cap: int, loads: Mapping[str, float]) -> None:
        """Replay windows on an engine of this cap at these loads, as far as the budget goes and
        none twice: as captured those that the ladder did not replay, with headroom those that it
        did."""
        settings, workload = self.settings, self.workload
        is_overloaded = self.conclusion.verdict.kind == "overloaded"
        for purpose, load in loads.items():
            windows = self.confirming_windows() if purpose == "confirm" else workload.windows
            done = len(self.evidence.confirming(purpose, cap))
            if purpose == "headroom" and not done and self.steps_left() < -OVERDRAWN:
                return  # the twin says what it would be
            for number, window in enumerate(windows[done:], done):
                engine = await self.runner.engine_for(cap, "confirm")
                if self.left_s() < window.replay_s:
                    return
                raised = scale_load(workload.sent_in(window), load, seed=settings.seed)
                floor = 0.0 if is_overloaded else HALF
                rule = CutRule(workload.slo, floor, budget_s=self.left_s())
                result = await self.runner.replay(engine, purpose, cap, raised, window, rule)
                self.recorder.add_replay(result, purpose, window=number)
            replays = self.evidence.confirming(purpose, cap)
            if len(replays) > done:
                self.watcher.measured(f"{in_words(purpose)} {cap}", measure(replays, workload.slo))
