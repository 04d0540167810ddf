"""The run of `tuner refine`: ramp → knee → search → compare in turns → profile.

One engine is built for the most that any live trial asks, so that cap and token budget change
without a restart. Everything measured is in the journal before the next step begins.
"""

from collections.abc import Sequence
from dataclasses import replace

from tuner.profile.stored_twin import restored
from tuner.runs.outcome import SweepOutcome
from tuner.runs.refine.acceptance import PAIRS, PairedResult, affordable
from tuner.runs.refine.balance import Windows, balanced
from tuner.runs.refine.comparison import compare, half_s, is_live
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, frees, number
from tuner.runs.refine.objective import OBJECTIVES
from tuner.runs.refine.outcome import twin_of, unloaded_of, validate
from tuner.runs.refine.refinement import (
    NO_ROOM,
    Refinement,
    RefinePlan,
    changed_besides,
    pareto,
    reason_of,
    trial_table,
    unlike,
)
from tuner.runs.refine.scoring import SearchProblem, has_room
from tuner.runs.refine.search import Search
from tuner.runs.refine.step_length import step_length
from tuner.runs.refine.study.study import Study
from tuner.runs.refine.surrogate import Surrogate, surrogate_of
from tuner.runs.refine.trial_runner import (
    RAMP,
    SEARCH,
    Build,
    Chosen,
    FinishedTrial,
    TrialRunner,
    is_knee,
)
from tuner.runs.sweep.sweep_warnings import left_out
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Unloaded
from tuner.traffic.workload import Workload, keep_what_fits, workload_of
from tuner.twin.forecast import Forecast

TRIALS = 4
STEPS = 2 + TRIALS + 2 * PAIRS + 2
"""Steps of replay that a refinement plans for: the ramp and the knee, some trials, the pairs, the
refined engine by itself and with headroom."""

ENDING = 2 * PAIRS + 1
"""Of these, what the search leaves at least, beside the one with headroom: that takes longer."""


async def refine(
    requests: Sequence[TraceRequest], plan: RefinePlan, runner: TrialRunner, study: Study
) -> Refinement:
    """Search around the profile's knee and compare what was found with it.

    Raises EngineError when engines keep failing, TraceError when nothing can be replayed, RunError
    when the storage fails, UsageError when the budget is too small.
    """
    run = _Run(plan, runner)
    try:
        return await run.go(requests, study)
    finally:
        await runner.stop()


class _Run:
    def __init__(self, plan: RefinePlan, runner: TrialRunner) -> None:
        self.plan, self.runner = plan, runner
        self.settings, self.space = plan.settings, plan.space
        self.warnings = list(plan.warnings)
        self.dropped = 0
        self._doubted = False
        section = plan.profile.twin
        self.before = None if section is None else restored(section, source="the profile")
        self.workload: Workload

    async def go(self, requests: Sequence[TraceRequest], study: Study) -> Refinement:
        self.workload = self._workload(requests)
        problem = await self._problem()
        search = Search(self.runner, study, problem)
        chosen = await self._searched(search)
        one = chosen.configuration
        paired = await self._paired(chosen, search.problem)
        aim = self.plan.objectives[0]
        reason = reason_of(self.plan.profile, one, self.space.knee, paired, aim)
        outcome = await self._validated(chosen, paired, reason)
        if outcome is not None:
            self.warnings += outcome.facts.cautions
            said = changed_besides(self.plan.profile, one, outcome.facts.arguments)
            self.warnings += [said] if said else []
            if frees(one, self.space.knee) and (raised := outcome.with_headroom) is not None:
                self.warnings += [] if has_room(raised) else [NO_ROOM]
        trials = trial_table(search.scoring)
        return Refinement(
            chosen=one,
            paired=paired,
            pairs=() if paired is None else chosen.pairs[: paired.pairs],
            outcome=outcome,
            reason=reason,
            trials=tuple(trials),
            front=tuple(pareto(trials, self.plan.objectives)),
            importances=tuple(
                (aim.name, tuple(study.importances(place)))
                for place, aim in enumerate(self.plan.objectives)
            ),
            workload=self.workload,
            complete=chosen.complete,
            starts_s=self.runner.evidence.starts_s(),
            replay_s=self.runner.evidence.replay_s(),
            pruned=study.pruned,
            of_others=len(study.others()),
            failed=tuple(done.failed for done in self.runner.done() if done.failed),
            warnings=(
                *self.warnings,
                *([] if study.lost is None else [study.lost]),
            ),
        )

    async def _searched(self, search: Search) -> Chosen:
        """Return how the search ended; what the journal says where it knows."""
        chosen = self.runner.chosen()
        if chosen is None:
            complete = await search.gather(self.plan.curve)
            search.score_anew(self._with_all(search.problem))
            one = dict(search.answer())
            chosen = Chosen(one, complete, self._pairs_of(one, search.problem))
            self.runner.choose(chosen)
        else:
            search.score_anew(self._with_all(search.problem))
            search.catch_up(self.plan.curve)
        if not chosen.complete:
            what = "not all that seemed worth it was tried"
            if untried := search.untried():
                what = f"nothing else of {', '.join(untried)} was tried"
            self.warnings.append(f"the budget ended the search: {what}; give a larger --budget")
        return chosen

    def _pairs_of(self, one: Configuration, problem: SearchProblem) -> tuple[Windows, ...]:
        """Return the windows of as many pairs as the rest of the budget has time for."""
        if one == dict(self.space.knee):
            return ()
        live, start_s = is_live(one, self.space.knee), self.plan.start_s
        step_s = max(problem.step_s, half_s(self.runner.served(SEARCH), (self.space.knee, one)))
        after_s = (1 + self.settings.headroom) * step_s + start_s * (2 if live else 3)
        left_s = self.settings.budget_s - self.runner.evidence.spent_s() - after_s
        return balanced(
            self.workload,
            _steady(problem.surrogate),
            one,
            self.plan.objectives[0],
            pairs=affordable(left_s, step_s=step_s, start_s=0.0 if live else start_s),
            hash_block_size=self.settings.trace_block_size,
        )

    async def _paired(self, chosen: Chosen, problem: SearchProblem) -> PairedResult | None:
        """Compare with the knee in turns; None where the knee itself seemed best."""
        if chosen.configuration == dict(self.space.knee):
            return None
        one, surrogate = chosen.configuration, problem.surrogate
        said = {
            name: None if surrogate is None else surrogate.forecast(aim, one)
            for name, aim in OBJECTIVES.items()
        }
        return await compare(
            self.runner,
            one,
            self.space.knee,
            workloads=[self.workload.within(windows) for windows in chosen.pairs],
            objective=self.plan.objectives[0],
            forecasts={name: gain for name, gain in said.items() if gain is not None},
        )

    async def _validated(
        self, chosen: Chosen, paired: PairedResult | None, reason: str
    ) -> SweepOutcome | None:
        """Measure what a profile of the refined engine needs; None where the knee is kept."""
        if paired is None or paired.accepted is None:
            return None
        return await validate(
            self.runner,
            chosen.configuration,
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
        plan, settings = self.plan, self.settings
        assert settings.slo is not None
        kept, self.dropped = keep_what_fits(requests, max_model_len=plan.max_model_len)
        of, most = len(requests), plan.max_model_len
        if (said := left_out(self.dropped, of=of, max_model_len=most)) is not None:
            self.warnings.append(said)
        unloaded = unloaded_of(plan.profile)
        chosen = self.runner.evidence.selection()
        if chosen is None:
            workload = self._planned(kept, unloaded)
        else:
            workload = workload_of(
                kept, settings.slo, unloaded, chosen.part, chosen.windows, chosen.step_s
            )
        if plan.is_same_trace and (said := unlike(plan.profile, workload)) is not None:
            self.warnings.append(said)
            self.runner.watcher.warn(said)
        return workload

    def _planned(self, kept: Sequence[TraceRequest], unloaded: Unloaded) -> Workload:
        plan, settings = self.plan, self.settings
        steps, starts_s = STEPS + self.runner.width - 1, self._starts() * plan.start_s
        section = plan.profile.twin
        workload, took_s = step_length(
            kept,
            settings,
            unloaded,
            self.before,
            cap=number(self.space.knee[CAP]),
            hit_share=0.0 if section is None else section.hit_share,
            steps=steps,
            least_steps=steps - TRIALS,
            starts_s=starts_s,
        )
        most_s = min(steps * took_s, settings.budget_s - starts_s)
        self.runner.keep_workload(workload)
        self.runner.watcher.stage(
            f"a trial replays {', '.join(map(str, workload.windows))} of the trace; expect up to "
            f"{most_s:.0f}s of replay and {starts_s:.0f}s of engine starts"
        )
        return workload

    def _starts(self) -> int:
        """Return how many engine starts are planned for: of a space that needs restarts two more
        for the search."""
        return self.runner.width + (0 if self._is_live() else 2) + self._ending_starts()

    def _ending_starts(self) -> int:
        """Return how many of them the search leaves: of the pairs, and of the refined engine."""
        return (1 if self._is_live() else 2 * PAIRS) + 1

    def _is_live(self) -> bool:
        return all(knob.name in LIVE for knob in self.space.knobs)

    def _build(self) -> Build:
        """Return the engine that trials of the search share."""
        return Build(max(self.settings.ceiling, self.space.most(CAP)), self.space.most(TOKENS))

    async def _problem(self) -> SearchProblem:
        """Time every batch size and replay the knee: what all else is compared with."""
        runner, knee = self.runner, self.space.knee
        runner.begin(knee, self.workload, self._build())
        while (first := self._first_looks()) is None:
            if any(map(runner.is_here, runner.served(RAMP))):
                await runner.trial(SEARCH, knee, self.workload, self._build())
            else:
                await runner.ramp(knee, self.workload, self._build())
        starts_s = self._ending_starts() * self.plan.start_s
        step_s = max(self.workload.step_s, half_s(first[-1:], (knee,)))
        return SearchProblem(
            space=self.space,
            objectives=self.plan.objectives,
            workload=self.workload,
            knee=first[-1],
            surrogate=self._surrogate(twin_of(runner, knee, first, self.workload, self.settings)),
            budget_s=self.settings.budget_s - (ENDING + self.settings.headroom) * step_s - starts_s,
            start_s=self.plan.start_s,
            step_s=step_s,
            build=self._build(),
            hash_block_size=self.settings.trace_block_size,
            requirements=self.settings.requirements,
        )

    def _with_all(self, problem: SearchProblem) -> SearchProblem:
        """Return the problem with a surrogate of all that the search replayed: what the first looks
        saw too little of would pass for a gain."""
        served, knee = self.runner.served(RAMP, SEARCH), problem.knee
        done = [one for one in served if one.worker == knee.worker]
        view = twin_of(self.runner, self.space.knee, done, self.workload, self.settings)
        return replace(problem, surrogate=self._surrogate(view))

    def _surrogate(self, view: Forecast | None) -> Surrogate | None:
        """Return the surrogate of a twin; None, and a warning the first time, where it is not
        believed."""
        if view is None:
            return None
        if view.is_believed:
            return surrogate_of(view, self.plan.objectives, self.space.knee)
        if not self._doubted:
            self._doubted = True
            self.warnings.append(
                f"{view.doubt}: replays of the windows decided alone; a quieter machine lets the "
                "twin help"
            )
        return None

    def _first_looks(self) -> list[FinishedTrial] | None:
        """Return the ramp and the knee in one place: what the surrogate is made of, then as after a
        resume. None while there are none."""
        ramps = {one.worker: one for one in reversed(self.runner.served(RAMP))}
        for one in self.runner.served(SEARCH):
            if is_knee(one, self.space.knee) and one.worker in ramps:
                return [ramps[one.worker], one]
        return None


def _steady(surrogate: Surrogate | None) -> Surrogate | None:
    """Return the surrogate at machine speed: what a comparison states is of that."""
    return None if surrogate is None else surrogate.at_machine_speed()
