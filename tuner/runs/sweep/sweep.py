"""The path of a sweep: engine → ramp → ladder → choice, then the engine that confirms it.

One engine is started at the ceiling and its cap changes live; one fresh engine at the chosen value
confirms it, because KV pool and graph sizes follow ``max_num_seqs``. Each of the two phases asks a
function of the run's events what to measure next, until it returns nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tuner.engines.seam import Starter
from tuner.errors import EngineError, InputError, RunError, TargetError
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.replay.soundness import Read
from tuner.runs.bench import Bench, Build, Trial, Watcher, measure
from tuner.runs.journal import RUNGS, Failed, Gathered, Journal, Tried
from tuner.runs.result import SweepOutcome
from tuner.runs.sweep.conclusion import (
    Basis,
    Conclusion,
    SweepSettings,
    conclude,
    doubling,
    view_of,
    window_curve,
)
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import CONFIDENT, DRIFT_LIMIT, EQUAL_ATTAINMENT, HALF
from tuner.traffic.load import scale_load
from tuner.traffic.window import unseen_window
from tuner.traffic.workload import Workload, affordable_step_s, keep_what_fits, slo_for
from tuner.twin.forecast import Forecast
from tuner.twin.verdict import Curve, choice_by_windows, ladder_is_done, moved

SHORT_SHARE = 1 / 12
"""Of a step: a cap that cannot be the answer is replayed for its iterations alone, and seconds hold
enough of them, five of a step of 60 s (docs/numbers.md)."""

STEPS = 20 / 3
"""Steps that a sweep may replay: a ramp, three whole rungs, two confirming replays, and short ones.
At 60 s a step that is 400 s."""

DRIFT_RAMP_SHARE = 0.25
"""Share of a step for the ramp at the end, which shows whether the machine has changed. A longer
one would show less of that change more surely, and leave less for the rungs."""

MAX_RAMPS = 3
"""Ramps until the choice is CONFIDENT: on simulated machines it mostly is after one
(docs/deciding.md). Each takes the time of a rung."""

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
) -> SweepOutcome:
    """Tune ``max_num_seqs`` for these requests (in order of arrival) on the starter's engine, and
    confirm it on one that ``confirming`` starts, if that is another.

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
    run.began_s = None if journal.starts() else run.now_s()
    try:
        await run.prepare(requests)
        await run.climb()
        await run.confirm()
    finally:
        await bench.stop()
    return SweepOutcome(run.conclusion, run.basis, requests)


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

    believed: str = ""
    """What the choice was when it was last evaluated, in words."""

    is_for_users: bool = False
    """Whether the conclusion is behind the front end of the server that confirms."""

    @property
    def journal(self) -> Journal:
        return self.bench.journal

    @property
    def basis(self) -> Basis:
        return Basis(self.journal, self.workload, self.settings)

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
        settings, journal = self.settings, self.journal
        if journal.unloaded() is None:
            longest = (await self.bench.up(self.ladder)).facts.max_model_len
            requests, _ = keep_what_fits(all_requests, max_model_len=longest)
            tried = Tried("ladder", settings.ceiling)
            await self.bench.make(Trial(tried, self.ladder, requests, title=ONE_AT_A_TIME))
        requests, _ = keep_what_fits(all_requests, max_model_len=journal.facts().max_model_len)
        unloaded, budget_s = journal.unloaded(), settings.budget_s
        assert unloaded is not None
        self.workload = self.bench.selected(
            requests,
            settings.slo or slo_for(requests, unloaded),
            unloaded,
            window=settings.window,
            step_s=lambda: affordable_step_s(
                settings.step_s, steps=STEPS, budget_s=budget_s, starts_s=budget_s - self.paid_s()
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
            if not self.journal.made():
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
        start_s = self.journal.start_needed_s(build.purpose, build.max_num_seqs)
        # a start that only an interruption makes necessary costs nothing
        most_s = self.left_s() + self.journal.facts().start_s - start_s
        try:
            async with asyncio.timeout(most_s):
                await measure(self.next_confirming, self.bench)
        except (RunError, TargetError):
            raise
        except EngineError:  # which is in the journal
            return
        except (InputError, OSError, TimeoutError) as error:
            why = str(error) or "the budget ended before it was done"
            self.journal.add(Failed(build.purpose, build.max_num_seqs, why=why))

    def conclude(self) -> None:
        """Decide; once the server that confirms was probed, behind its front end and, where the SLO
        is derived, by what users see there."""
        seen = self.journal.unloaded("confirm")
        if self.settings.slo is None and seen is not None:
            slo = slo_for(self.workload.requests, seen)
            self.workload = replace(self.workload, slo=slo)
        self.conclusion, self.is_for_users = conclude(self.basis), seen is not None

    # What there is time for

    def left_s(self) -> float:
        """Return what is left of the budget for measuring, once the end is paid for. A run that was
        interrupted has spent what it measured, and no time in between."""
        spent_s = self.journal.spent_s()
        if self.began_s is not None:
            spent_s = max(spent_s, self.now_s() - self.began_s)
        return self.settings.budget_s - spent_s - ENDING_S

    def paid_s(self) -> float:
        """Return what the budget leaves for replays before the confirming engine starts."""
        server_s = SERVER_START_S * (self.settings.confirm == "server")
        return self.left_s() - self.journal.facts().start_s - server_s

    def steps_left(self) -> float:
        """Return how many steps may still be replayed before the confirming ones."""
        step_s = self.workload.step_s
        longest_s = max((each.elapsed_s for each in self.uncut()), default=step_s)
        left_s = min(STEPS * step_s - self.journal.replay_s(), self.paid_s())
        return left_s / longest_s - 1 - (self.settings.headroom > 1.0)

    def uncut(self) -> list[Replay]:
        """Return the rungs that were replayed to their end."""
        return [rung for rung in self.journal.replays(*RUNGS) if not rung.cut]

    # What is measured next

    def next_on_ladder(self) -> Trial | None:
        """Return what to measure next; None when the decision can be taken, or there is no time."""
        journal, ceiling, step_s = self.journal, self.settings.ceiling, self.workload.step_s
        if journal.is_complete():
            self.is_complete = True
            return None
        is_doubted = self.is_doubted or self.settings.closed_sessions
        view = None if is_doubted else view_of(self.basis)
        if view is not None and view.doubt is not None:
            self.is_doubted = is_doubted = True
            self.bench.watcher.warn(f"{view.doubt}: the windows must decide")
        if is_doubted:
            curve = window_curve(self.basis)
            step = next_trial(self.journal.made(), curve, ceiling=ceiling)
            has_time = not curve or self.paid_s() >= 2 * step_s
        else:
            if view is not None:
                choice = view.choice
                sureness = f"{choice.confidence:.0%} of equally likely engines"
                believed = f"so far: max_num_seqs {choice.best}, best for {sureness}"
                if believed != self.believed:
                    self.bench.watcher.stage(believed)
                self.believed = believed
            steps = self.steps_left()
            step = next_for_twin(journal.made(), view, ceiling=ceiling, steps_left=steps)
            has_time = view is None or self.paid_s() >= step_s
        self.is_complete = step is None
        return self.trial(step) if step is not None and has_time else None

    def trial(self, step: Tried) -> Trial:
        """Return a step of the ladder."""
        workload, purpose = self.workload, step.purpose
        if purpose in {"ramp", "drift_ramp"}:
            share, unloaded = 1.0 if purpose == "ramp" else DRIFT_RAMP_SHARE, workload.unloaded
            return Trial(
                step,
                self.ladder,
                workload.twin_requests,
                ramp_s=share * workload.step_s,
                tpot_s=unloaded.tpot_s or unloaded.ttft_s,
            )
        shares = (numbers_of([replay], workload.slo).attainment for replay in self.uncut())
        # what repeats a rung is cut where a first one is: at another height it would pass for noise
        best = max(shares, default=0.0) if purpose == "ladder" else 0.0
        rule = CutRule(workload.slo, max(HALF, best - EQUAL_ATTAINMENT))
        if purpose not in RUNGS:  # replayed for its iterations alone
            rule = CutRule(workload.slo, 0.0, SHORT_SHARE * workload.step_s)
        tried = Tried(purpose, step.max_num_seqs, window=workload.window)
        sent = workload.sent_in(workload.window)
        return Trial(tried, self.ladder, sent, rule)

    def next_confirming(self) -> Trial | None:
        """Return a probe of the server that confirms while it is idle, then the replays. A choice
        that moves by the probe is confirmed on a server of its own."""
        build, left_s = self.fresh, self.left_s()
        if self.settings.confirm == "server" and not self.is_for_users:
            if self.journal.unloaded("confirm") is None:
                start_s = self.journal.start_needed_s(build.purpose, build.max_num_seqs)
                tried = Tried("confirm", build.max_num_seqs)
                probing = Trial(tried, build, self.workload.requests, title=ONE_AT_A_TIME)
                return probing if left_s > start_s else None
            self.conclude()
        return confirming_trial(self.basis, self.conclusion, self.fresh, left_s)


def next_for_twin(
    done: Sequence[Tried], view: Forecast | None, *, ceiling: int, steps_left: float
) -> Tried | None:
    """Return what to measure next so that the twin can decide, or None when it can.

    First the ramp, again until the choice is sure. Then up the ladder, as far as ``steps_left``
    allows: whole windows at the choice and beside it, a short replay of what is below. Last a ramp
    that shows drift.
    """
    counts = Counter(trial.purpose for trial in done)
    unsure = view is None or view.choice.confidence < CONFIDENT
    if view is None or (unsure and counts["ramp"] < MAX_RAMPS and steps_left >= 1.0):
        return Tried("ramp", ceiling)
    caps, choice = doubling(ceiling), view.choice.best
    near = neighbors(choice, caps)
    tried = {trial.max_num_seqs for trial in done if trial.purpose == "ladder"}
    seen = tried | {trial.max_num_seqs for trial in done if trial.purpose == "short"}
    affordable = int(steps_left - DRIFT_RAMP_SHARE) if tried else max(1, int(steps_left))
    missing = [cap for cap in near if cap not in tried][: max(0, affordable)]
    for cap in caps[: caps.index(choice) + 2]:
        if cap in missing:
            return Tried("ladder", cap)
        if cap not in seen:
            return Tried("short", cap)
    most = 2 if abs(moved(view)) > DRIFT_LIMIT else 1
    return Tried("drift_ramp", ceiling) if counts["drift_ramp"] < most else None


def neighbors(choice: int, caps: Sequence[int]) -> list[int]:
    """Return the choice, the cap above it and the cap below, where there are any."""
    place = caps.index(choice)
    return [choice, *caps[place + 1 : place + 2], *caps[max(0, place - 1) : place]]


def next_trial(done: Sequence[Tried], curve: Curve, *, ceiling: int) -> Tried | None:
    """Return what to measure next so that the windows can decide alone, or None when they can.

    Up the ladder until more slots cannot help. Then the best cap and those beside it once more on
    the way down, so that a steady drift falls on all alike. Last a ramp that shows drift, where one
    came first.
    """
    caps = {(trial.purpose, trial.max_num_seqs) for trial in done}
    rest = [cap for cap in doubling(ceiling) if ("ladder", cap) not in caps]
    if rest and not ladder_is_done(curve):
        return Tried("ladder", rest[0])
    if any(numbers.cut is None for numbers in curve.values()):
        near = neighbors(choice_by_windows(curve).best, tuple(curve))
        for cap in sorted(near, reverse=True):
            if ("repeat", cap) not in caps:
                return Tried("repeat", cap)
    if ("ramp", ceiling) in caps and ("drift_ramp", ceiling) not in caps:
        return Tried("drift_ramp", ceiling)
    return None


def confirming_trial(
    basis: Basis, conclusion: Conclusion, build: Build, left_s: float
) -> Trial | None:
    """Return the next replay of the choice on an engine of its own, as far as so many seconds go:
    at the recorded load, in a window that the ladder did not replay; with headroom, in the one that
    it did."""
    settings, workload, journal = basis.settings, basis.workload, basis.journal
    cap, is_overloaded = conclusion.verdict.max_num_seqs, conclusion.verdict.kind == "overloaded"
    left_s -= journal.start_needed_s(build.purpose, build.max_num_seqs)
    purpose, window = "confirm", workload.window
    if journal.confirming(purpose, cap):
        purpose, is_due = "headroom", settings.headroom > 1.0 and not is_overloaded
        if not is_due or journal.confirming(purpose, cap) or left_s < window.replay_s:
            return None
        sent = scale_load(workload.sent_in(window), settings.headroom, seed=0)
    else:
        if any(each.window for each in journal.made()):
            window = unseen_window(workload.requests, window) or window
        most_s = (1 - DRAIN_SHARE) * left_s - window.run_in_s
        if most_s < min(window.length_s, LEAST_WINDOW_S):
            return None
        window = replace(window, length_s=min(window.length_s, most_s))
        sent = workload.sent_in(window)
    rule = CutRule(workload.slo, 0.0 if is_overloaded else HALF, stop_s=left_s)
    tried = Tried(purpose, cap, window=window)
    return Trial(tried, build, sent, rule)
