"""The run of `tuner refine`: ramp → knee → search → compare in turns → profile.

One engine is built for the most that any live trial asks, so that cap and token budget change
without a restart. Everything measured is in the journal before the next step begins.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from tuner.profile.stored_twin import restored
from tuner.runs.events import Gathered
from tuner.runs.outcome import SweepOutcome
from tuner.runs.refine.acceptance import PAIRS, PairedResult, affordable
from tuner.runs.refine.comparison import compare, half_s, is_live, windows_of_pairs
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, Space, frees, number
from tuner.runs.refine.objective import OBJECTIVES
from tuner.runs.refine.outcome import twin_of, unloaded_of, validate
from tuner.runs.refine.refinement import (
    NO_ROOM,
    Refinement,
    RefinePlan,
    changed_besides,
    reason_of,
    trial_table,
    unlike,
)
from tuner.runs.refine.scoring import SearchProblem, has_room
from tuner.runs.refine.search import FIRST, Search
from tuner.runs.refine.step_length import step_length
from tuner.runs.refine.study import Study
from tuner.runs.refine.surrogate import Surrogate, surrogate_of
from tuner.runs.refine.trials import (
    RAMP,
    SEARCH,
    Build,
    FinishedTrial,
    Trials,
    is_knee,
)
from tuner.runs.sweep.sweep_warnings import left_out
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import Window
from tuner.traffic.workload import MIN_STEP_S, Workload, keep_what_fits, workload_of
from tuner.twin.forecast import Forecast

LEAST_STEPS = 2 + 2 * PAIRS + 2
"""Steps of replay that a refinement makes at least: the ramp and the knee, the pairs, the refined
engine by itself and with headroom."""

ENDING = 2 * PAIRS + 1
"""Of these, what the search leaves, beside the one with headroom: that takes longer."""


async def refine(
    requests: Sequence[TraceRequest], plan: RefinePlan, trials: Trials, study: Study
) -> Refinement:
    """Search around the profile's knee and compare what was found with it.

    Raises EngineError when engines keep failing, TraceError when nothing can be replayed,
    UsageError when the budget is too small.
    """
    run = _Run(plan, trials, study)
    try:
        return await run.go(requests)
    finally:
        await trials.stop()


class _Run:
    workload: Workload

    def __init__(self, plan: RefinePlan, trials: Trials, study: Study) -> None:
        self.plan, self.trials, self.study, self.settings = plan, trials, study, plan.settings
        self.warnings = list(plan.warnings)
        self.space = self._affordable(plan.space)
        self.dropped = 0
        self._doubted = False

    async def go(self, requests: Sequence[TraceRequest]) -> Refinement:
        self.workload = self._workload(requests)
        search = Search(self.trials, self.study, await self._problem())
        chosen = await self._searched(search)
        one = chosen.chosen
        paired = await self._paired(chosen, search.problem.surrogate)
        reason = reason_of(self.plan.profile, one, self.space.knee, paired, self.plan.aim)
        outcome = await self._validated(chosen, paired, reason)
        if outcome is not None:
            self.warnings += outcome.facts.cautions
            changed = changed_besides(self.plan.profile, one, outcome.facts.arguments)
            self.warnings += [changed] if changed else []
            if frees(one, self.space.knee) and (raised := outcome.with_headroom) is not None:
                self.warnings += [] if has_room(raised) else [NO_ROOM]
        evidence = self.trials.evidence
        return Refinement(
            chosen=one,
            paired=paired,
            pairs=() if paired is None else chosen.pairs[: paired.pairs],
            outcome=outcome,
            reason=reason,
            trials=tuple(trial_table(search.scoring)),
            workload=self.workload,
            complete=chosen.complete,
            starts_s=evidence.starts_s(),
            replay_s=evidence.replay_s(),
            failed=tuple(done.failed for done in self.trials.done() if done.failed),
            warnings=(*self.warnings, *([] if self.study.lost is None else [self.study.lost])),
        )

    def _affordable(self, space: Space) -> Space:
        """Return the space without what needs engine starts, where the budget has no time for
        those of the pairs."""
        live = tuple(knob for knob in space.knobs if knob.name in LIVE)
        starts_s = self._starts(space) * self.plan.start_s
        if starts_s + LEAST_STEPS * MIN_STEP_S <= self.settings.budget_s or not live:
            return space
        others = ", ".join(knob.name for knob in space.knobs if knob not in live)
        self.warnings.append(
            f"the budget has no time for {self._starts(space)} engine starts of "
            f"{self.plan.start_s:.0f}s: {others} was not searched; give a larger --budget"
        )
        return replace(space, knobs=live)

    async def _searched(self, search: Search) -> Gathered:
        """Return how the search ended; what the journal says where it knows."""
        chosen = self.trials.chosen()
        if chosen is None:
            complete = await search.gather()
            search.problem = search.scoring.problem = self._with_all(search.problem)
            one = dict(search.answer())
            pairs = self._pairs_of(one, search.problem)
            chosen = Gathered(complete=complete, chosen=one, pairs=pairs)
            self.trials.journal.add(chosen)
        else:
            search.problem = search.scoring.problem = self._with_all(search.problem)
        search.tell()
        if not chosen.complete:
            what = "not all that seemed worth it was tried"
            if untried := search.untried():
                what = f"nothing else of {', '.join(untried)} was tried"
            self.warnings.append(f"the budget ended the search: {what}; give a larger --budget")
        return chosen

    def _pairs_of(
        self, one: Configuration, problem: SearchProblem
    ) -> tuple[tuple[Window, ...], ...]:
        """Return the windows of as many pairs as the rest of the budget has time for."""
        if one == dict(self.space.knee):
            return ()
        live, start_s = is_live(one, self.space.knee), self.plan.start_s
        step_s = max(problem.step_s, half_s(self.trials.served(SEARCH), (self.space.knee, one)))
        after_s = (1 + self.settings.headroom) * step_s + start_s * (2 if live else 3)
        left_s = self.settings.budget_s - self.trials.evidence.spent_s() - after_s
        pairs = affordable(left_s, step_s=step_s, start_s=0.0 if live else start_s)
        return windows_of_pairs(self.workload, pairs)

    async def _paired(self, chosen: Gathered, surrogate: Surrogate | None) -> PairedResult | None:
        """Compare with the knee in turns; None where the knee itself seemed best."""
        one = chosen.chosen
        if one == dict(self.space.knee):
            return None
        forecasts = {
            name: gain
            for name, aim in OBJECTIVES.items()
            if surrogate is not None and (gain := surrogate.forecast(aim, one)) is not None
        }
        return await compare(
            self.trials,
            one,
            self.space.knee,
            workloads=[self.workload.within(windows) for windows in chosen.pairs],
            objective=self.plan.aim,
            forecasts=forecasts,
        )

    async def _validated(
        self, chosen: Gathered, paired: PairedResult | None, reason: str
    ) -> SweepOutcome | None:
        """Measure what a profile of the refined engine needs; None where the knee is kept."""
        if paired is None or paired.accepted is None:
            return None
        return await validate(
            self.trials,
            chosen.chosen,
            self.plan.profile,
            knee=self.space.knee,
            pairs=len(chosen.pairs),
            workload=self.workload,
            settings=self.settings,
            searched=self._build(),
            reason=reason,
            confidence=paired.accepted.sureness,
            dropped=self.dropped,
        )

    def _workload(self, requests: Sequence[TraceRequest]) -> Workload:
        """Choose what a trial replays, or read back what was chosen."""
        plan, slo = self.plan, self.settings.slo
        assert slo is not None
        kept, self.dropped = keep_what_fits(requests, max_model_len=plan.max_model_len)
        of, most = len(requests), plan.max_model_len
        if (text := left_out(self.dropped, of=of, max_model_len=most)) is not None:
            self.warnings.append(text)
        unloaded, chosen = unloaded_of(plan.profile), self.trials.evidence.selection()
        if chosen is None:
            workload = self._planned(kept)
        else:
            workload = workload_of(kept, slo, unloaded, chosen.part, chosen.windows, chosen.step_s)
        if plan.is_same_trace and (text := unlike(plan.profile, workload)) is not None:
            self.warnings.append(text)
            self.trials.watcher.warn(text)
        return workload

    def _planned(self, kept: Sequence[TraceRequest]) -> Workload:
        plan, settings = self.plan, self.settings
        restarts = sum(len(knob.values) - 1 for knob in self.space.knobs if knob.name not in LIVE)
        starts_s, section = self._starts(self.space) * plan.start_s, plan.profile.twin
        steps = LEAST_STEPS + min(FIRST, len(self.space.knobs)) + restarts
        workload, took_s = step_length(
            kept,
            settings,
            unloaded_of(plan.profile),
            None if section is None else restored(section, source="the profile"),
            cap=number(self.space.knee[CAP]),
            hit_share=0.0 if section is None else section.hit_share,
            steps=steps,
            least_steps=LEAST_STEPS,
            starts_s=starts_s,
        )
        most_s = min(steps * took_s, settings.budget_s - starts_s)
        self.trials.keep_workload(workload)
        self.trials.watcher.stage(
            f"a trial replays {', '.join(map(str, workload.windows))} of the trace; expect up to "
            f"{math.ceil(most_s)}s of replay and {starts_s:.0f}s of engine starts"
        )
        return workload

    def _starts(self, space: Space) -> int:
        """Return how many engine starts are planned for: of a space that needs restarts two more
        for the search, and one for each half of a pair."""
        return 1 + (0 if _is_live(space) else 2) + self._ending_starts(space)

    def _ending_starts(self, space: Space) -> int:
        """Return how many of them the search leaves: of the pairs, and of the refined engine."""
        return (1 if _is_live(space) else 2 * PAIRS) + 1

    def _build(self) -> Build:
        """Return the engine that trials of the search share."""
        return Build(max(self.settings.ceiling, self.space.most(CAP)), self.space.most(TOKENS))

    async def _problem(self) -> SearchProblem:
        """Time every batch size and replay the knee: what all else is compared with."""
        trials, knee = self.trials, self.space.knee
        while not trials.served(RAMP):  # Trials ends it when too many fail
            await trials.ramp(knee, self.workload, self._build())
        while (done := self._knee()) is None:
            await trials.trial(SEARCH, knee, self.workload, self._build())
        starts_s = self._ending_starts(self.space) * self.plan.start_s
        step_s = max(self.workload.step_s, half_s([done], (knee,)))
        first = [trials.served(RAMP)[0], done]
        return SearchProblem(
            space=self.space,
            aim=self.plan.aim,
            workload=self.workload,
            knee=done,
            surrogate=self._surrogate(twin_of(trials, knee, first, self.workload, self.settings)),
            budget_s=self.settings.budget_s - (ENDING + self.settings.headroom) * step_s - starts_s,
            start_s=self.plan.start_s,
            step_s=step_s,
            build=self._build(),
            requirements=self.settings.requirements,
        )

    def _knee(self) -> FinishedTrial | None:
        found = (done for done in self.trials.done() if is_knee(done, self.space.knee))
        return next(found, None)

    def _with_all(self, problem: SearchProblem) -> SearchProblem:
        """Return the problem with a surrogate of all that the search replayed: what the first looks
        saw too little of would pass for a gain."""
        served, knee = self.trials.served(RAMP, SEARCH), self.space.knee
        view = twin_of(self.trials, knee, served, self.workload, self.settings)
        return replace(problem, surrogate=self._surrogate(view))

    def _surrogate(self, view: Forecast | None) -> Surrogate | None:
        """Return the surrogate of a twin; None, and a warning the first time, where it is not
        believed."""
        if view is None:
            return None
        if view.is_believed:
            return surrogate_of(view, self.plan.aim, self.space.knee)
        if not self._doubted:
            self._doubted = True
            self.warnings.append(
                f"{view.doubt}: replays of the windows decided alone; a quieter machine lets the "
                "twin help"
            )
        return None


def _is_live(space: Space) -> bool:
    return all(knob.name in LIVE for knob in space.knobs)
