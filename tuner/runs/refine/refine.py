"""The run of ``tuner refine``: knee → search → pairs in turns → a fresh engine → profile.

One engine is built for the most that any live trial needs, so that cap and token budget change
without a restart. Each phase is a function from the events of the run to the next trial.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tuner.engines.seam import EngineFacts, Starter
from tuner.errors import EngineError, RunError, UsageError
from tuner.profile.evidence import StoredTwin
from tuner.profile.profile import ServingProfile
from tuner.replay.numbers import Measurement
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, Trial, fitting, measure
from tuner.runs.journal import Configuration, Failed, Gathered, Tried
from tuner.runs.ladder import doubling
from tuner.runs.paired import spread_windows
from tuner.runs.refine.proof import (
    PAIRS,
    Proof,
    affordable,
    gain_over,
    is_futile,
    keeps_goodput,
    proven,
    served,
)
from tuner.runs.refine.search import ALIKE, Model, Study
from tuner.runs.refine.space import (
    CAP,
    LIVE,
    TOKENS,
    Space,
    in_words,
    number,
    restart_key,
)
from tuner.runs.result import SweepOutcome, outcome_of
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis, Conclusion, CurvePoint, curve_by_twin, forecast_of
from tuner.runs.sweep.sweep import confirming_trial
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import MIN_STEP_S
from tuner.traffic.requirements import RequirementCheck
from tuner.traffic.slo import Unloaded
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload
from tuner.twin.forecast import Forecast
from tuner.twin.law import prompt_s
from tuner.twin.verdict import Verdict

RAMP, SEARCH, KNEE, REFINED = "ramp", "search", "knee", "refined"
"""Purposes of trials: what times every batch size, and what is compared with the knee; the halves
of a pair."""

SIDES = (REFINED, KNEE, KNEE, REFINED)
"""Order of the halves, over and over: each side is first as often as second, so that a machine that
drifts favors neither."""

MOST_STARTS_SHARE = 0.5
"""Of the budget, for engine starts: what needs more of them than that is not searched."""

MOST_FAILURES = 2
"""Engines that may fail one after the other: one more is the machine and not a configuration."""

WORTH = 0.005
"""A gain that nobody would restart a server for."""

THEN_REFINED = "; refined: "
"""Between the reason of a knee and the result of its refinement."""

Vary = Callable[[Configuration], Starter]
"""Returns what starts engines with the profile's arguments and these changed."""


@dataclass(frozen=True, slots=True)
class RefinePlan:
    """The plan of a refinement: what is refined, and how."""

    profile: ServingProfile
    space: Space
    settings: SweepSettings
    start_s: float
    """How long an engine start takes, by the profile."""

    max_model_len: int
    twin: StoredTwin | None = None
    """The profile's; None where windows decided."""

    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial of the search, and the numbers of its replays."""

    configuration: Configuration
    measured: Measurement
    gain: float | None
    """Over the knee, by the twin where it can predict it, for all of the traffic; else as
    replayed."""

    is_kept: bool
    """Whether it loses no goodput, and nothing that is required."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """The result of the run."""

    chosen: Configuration
    """The knee where nothing seemed better."""

    proof: Proof | None
    outcome: SweepOutcome | None
    """For a profile of the refined engine; None where the knee is kept."""

    reason: str
    trials: tuple[TrialRow, ...]
    complete: bool
    starts_s: tuple[float, ...]
    replay_s: float
    failed: tuple[str, ...]
    warnings: tuple[str, ...]


async def refine(
    requests: Sequence[TraceRequest], plan: RefinePlan, bench: Bench, vary: Vary, study: Study
) -> Refinement:
    """Search around the profile's knee and compare the best candidate with it.

    Raises EngineError when engines keep failing, TraceError when nothing can be replayed,
    UsageError when the budget is too small.
    """
    run = Refining(plan, bench, vary, study)
    run.prepare(requests)
    bench.spare_s = lambda: plan.settings.budget_s - bench.evidence.spent_s()
    try:
        return await run.refined()
    finally:
        await bench.stop()


class Refining:
    """A refinement under way. Whoever has made the bench stops it."""

    workload: Workload

    def __init__(self, plan: RefinePlan, bench: Bench, vary: Vary, study: Study) -> None:
        self.plan, self.bench, self.vary, self.study = plan, bench, vary, study
        self.settings, self.knee, self.start_s = plan.settings, plan.space.knee, plan.start_s
        self.journal, self.evidence, self.made = bench.journal, bench.evidence, bench.evidence.made
        self.warnings, self.is_complete = [*plan.warnings], True
        self.space, twin = self._affordable(plan.space), plan.twin
        self.model = None if twin is None else Model(twin, plan.settings, self.knee)
        self.first: list[Configuration] | None = None
        """The candidates that the twin predicts to be best."""

    async def refined(self) -> Refinement:
        await self._measure(self.next_in_search)
        gathered = self.journal.last(Gathered)
        if gathered is None:
            best = self.best()
            pairs = self._pairs_of(best)
            gathered = Gathered(complete=self.is_complete, chosen=best, pairs=pairs)
            self.journal.add(gathered)
        chosen, windows = gathered.chosen, gathered.pairs
        for row in self.rows():
            self.study.tell(row.configuration, row.gain, fidelity="replay", is_kept=row.is_kept)
        if not gathered.complete:
            self.warnings.append(
                "the budget ended the search: not all that seemed worth it was tried; give a "
                "larger --budget"
            )
        proof = outcome = None
        if chosen != self.knee:
            self.bench.watcher.stage(
                f"comparing {in_words(chosen)} with the knee, in turns: {len(windows)} pairs"
            )
            await self._measure(partial(self.next_half, chosen, windows))
            proof = proven(self._pairs())
            if proof.pairs < len(windows):  # the look gave up
                proof = replace(proof, sureness=None)
        reason = reason_of(self.plan, chosen, proof)
        if proof is not None and proof.sureness is not None:
            await self._measure(partial(self.next_ramp, chosen))
            outcome = await self._confirmed(chosen, reason, proof.sureness)
            self.warnings += outcome.warnings
        return Refinement(
            chosen=chosen,
            proof=proof,
            outcome=outcome,
            reason=reason,
            trials=tuple(self.rows()),
            complete=gathered.complete,
            starts_s=tuple(start.facts.start_s for start in self.evidence.starts()),
            replay_s=self.evidence.replay_s(),
            failed=tuple(failed.why for failed in self.journal.of(Failed)),
            warnings=(*self.warnings, *([self.study.lost] if self.study.lost else [])),
        )

    async def _measure(self, plan: Callable[[], Trial | None]) -> None:
        await measure(plan, self.bench, most_failures=MOST_FAILURES)

    @property
    def basis(self) -> Basis:
        return Basis(self.evidence, self.workload, self.settings)

    def prepare(self, requests: Sequence[TraceRequest]) -> None:
        """Choose what a trial replays, or read back what was chosen."""
        slo = self.settings.slo
        assert slo is not None
        kept, warnings = fitting(requests, self.plan.max_model_len)
        self.warnings += warnings
        self.workload = self.bench.selected(
            kept,
            slo,
            unloaded_of(self.plan.profile, self.plan.twin),
            window=self.settings.window,
            step_s=self._planned_step_s,
        )

    # What was measured

    def check(self) -> None:
        """Raise RunError for a configuration that is not searched: a stranger's journal could
        name any engine argument, and it would be started."""
        chosen = [event.chosen for event in self.journal.of(Gathered)]
        for each in [*(trial.configuration for trial in self.evidence.trials()), *chosen]:
            if not self.plan.space.holds(each):
                raise RunError(
                    f"{self.journal.run_dir}/journal.jsonl: {in_words(each)} is not searched",
                    hint="Start again in another --run-dir.",
                )

    def rows(self) -> list[TrialRow]:
        """Return the trials of the search that served, with their gains."""
        searched, slo = {str(t.configuration): t for t in self.made(SEARCH)}, self.workload.slo
        measured = {key: self.evidence.numbers(t, slo) for key, t in searched.items()}
        knee, rows = measured.get(str(self.knee)), []
        for key, trial in searched.items():
            tried, gain, is_kept = trial.configuration, None, False
            if knee is not None:
                here, there = served(measured[key]), served(knee)
                if self.model is not None and self.model.predicts(tried):
                    here, there = self.model.served(tried), self.model.served(self.knee)
                gain, is_kept = gain_over(here, there), keeps_goodput(here, there)
            is_kept = is_kept and all(
                value is None or required.is_met_by(value)
                for required in self.settings.requirements
                if not required.at_headroom
                for value in [required.value_in(measured[key])]
            )
            rows.append(TrialRow(tried, measured[key], gain, is_kept))
        return rows

    def best(self) -> Configuration:
        """Return the best of what was replayed, of equal ones that with the fewest slots: the knee
        unless another is worth a restart."""
        known = [(row.gain, row.configuration) for row in self.rows() if row.is_kept and row.gain]
        top = max((gain for gain, _ in known), default=0.0)
        if top < WORTH:
            return self.knee
        alike = [each for gain, each in known if gain > top - ALIKE]
        return min(alike, key=lambda each: number(each[CAP]))

    # Phases

    def next_in_search(self) -> Trial | None:
        """Return the knee, the best by the twin, then each other argument once."""
        self.check()
        if self.journal.last(Gathered) is not None:
            return None
        every = self.evidence.trials()
        tried = [each.configuration for each in every]
        if self.knee not in tried:
            return self.trial(self.knee)
        if self.first is None:
            self.first = [] if self.model is None else self.model.best(self.space, self.study)
        alive = {restart_key(each.configuration) for each in self.made()}
        failed = {restart_key(each.configuration) for each in self.journal.of(Failed)}
        dead = failed - alive
        for each in [*self.first, *self.flipped()]:
            if each in tried or restart_key(each) in dead:
                continue
            trial = self.trial(each)
            start_s = 0.0 if self.bench.build == trial.build else self.start_s
            half_s = self._half_s(self.knee)
            needed_s = start_s + half_s
            needed_s += self._ending_s(half_s, pairs=PAIRS, live=self.space.is_live)
            self.is_complete = self.evidence.spent_s() + needed_s <= self.settings.budget_s
            return trial if self.is_complete else None
        return None

    def flipped(self) -> list[Configuration]:
        """Return the best so far with one argument changed that the twin does not predict, for each
        of its values."""
        best = self.best()
        base = {**self.knee, **{name: best[name] for name in LIVE}}
        return [
            {**base, knob.name: value}
            for knob in self.space.knobs
            for value in knob.values
            if value != self.knee[knob.name]
            and (self.model is None or not self.model.predicts({**self.knee, knob.name: value}))
        ]

    def next_half(self, chosen: Configuration, windows: Sequence[Window]) -> Trial | None:
        """Return the next half of a pair; None when all were made, or half of them leave no hope.

        Both sides share one engine whose limits change live, or else each half has a fresh one, as
        no two starts are alike.
        """
        done = len(self.made(REFINED, KNEE))
        is_half_way = done == len(windows)
        if done == 2 * len(windows) or (is_half_way and is_futile(self._pairs(), planned=done)):
            return None
        side = SIDES[done % 4]
        own = chosen if side == REFINED else self.knee
        build = self.largest(own)
        if not self._is_live(chosen):
            build = self.build(own, limits_of(own), 1 + done)
        return self._trial(side, own, build, windows[done // 2])

    def next_ramp(self, chosen: Configuration) -> Trial | None:
        """Return what times every batch size of the chosen engine, once."""
        if any(each.purpose == RAMP for each in self.evidence.trials()):
            return None
        build = self.largest(chosen) if self._is_live(chosen) else self.fresh(chosen)
        return self._trial(RAMP, chosen, build, None)

    # Trials

    def trial(self, configuration: Configuration) -> Trial:
        window = self.workload.window
        return self._trial(SEARCH, configuration, self.largest(configuration), window)

    def _trial(
        self, purpose: str, own: Configuration, build: Build, window: Window | None
    ) -> Trial:
        """Return a replay of this window; without any a ramp to what the engine is built for."""
        workload, title = self.workload, f"{purpose} {in_words(own)}"
        cap, tokens = (build.max_num_seqs, 0) if window is None else limits_of(own)
        tried = Tried(purpose=purpose, max_num_seqs=cap, configuration=own, window=window)
        if window is None:
            unloaded = workload.unloaded
            tpot_s = unloaded.tpot_s or unloaded.ttft_s
            return Trial(
                tried, build, workload.twin_requests, None, workload.step_s, tpot_s, title=title
            )
        rule = CutRule(workload.slo, 0.0)
        return Trial(tried, build, workload.sent_in(window), rule, tokens=tokens, title=title)

    def build(self, configuration: Configuration, limits: Sequence[int], turn: int) -> Build:
        """Return an engine that is built for these limits; another turn is another engine."""
        (cap, tokens), key = limits, restart_key(configuration)
        changed = {k: v for k, v in configuration.items() if k != CAP} | {TOKENS: tokens}
        title = f"starting an engine for {in_words(changed)}"
        return Build(f"{tokens} {turn} {key}", cap, self.vary(changed), key, title)

    def largest(self, configuration: Configuration) -> Build:
        """Return the engine that serves all that needs no restart beside this."""
        most = max(self.settings.ceiling, self.space.most(CAP)), self.space.most(TOKENS)
        return self.build(configuration, most, 0)

    def fresh(self, chosen: Configuration) -> Build:
        """Return an engine that is built for exactly the choice."""
        return replace(self.build(chosen, limits_of(chosen), 0), purpose="confirm")

    def _is_live(self, chosen: Configuration) -> bool:
        """Whether one engine serves the choice and the knee."""
        return restart_key(chosen) == restart_key(self.knee)

    # What there is time for

    def _affordable(self, space: Space) -> Space:
        """Return the space without what needs engine starts, where the budget has no time for one
        of them and for those of its pairs."""
        starts = 3 + 2 * PAIRS
        live = tuple(knob for knob in space.knobs if knob.name in LIVE)
        is_affordable = starts * self.start_s <= MOST_STARTS_SHARE * self.settings.budget_s
        if space.is_live or not live or is_affordable:
            return space
        others = ", ".join(knob.name for knob in space.knobs if knob not in live)
        self.warnings.append(
            f"the budget has no time for {starts} engine starts of {self.start_s:.0f}s: {others} "
            "was not searched; give a larger --budget"
        )
        return replace(space, knobs=live)

    def _ending_s(self, half_s: float, *, pairs: int = 0, live: bool) -> float:
        """Return what pairs and the replays that confirm take, starts included."""
        starts = 1 if live else 2 * pairs + 1
        return (2 * pairs + 2 + self.settings.headroom) * half_s + starts * self.start_s

    def _half_s(self, *sides: Configuration) -> float:
        """Return how long half of a pair takes, by trials of its sides: an engine that is
        overloaded drains for longer than its windows are."""
        known = [t.elapsed_s for t in self.made(SEARCH) if t.configuration in sides]
        return max(self.workload.step_s, float(np.mean(known)) if known else 0.0)

    def _pairs_of(self, chosen: Configuration) -> tuple[Window, ...]:
        """Return the windows of as many pairs as the rest of the budget has time for."""
        if chosen == self.knee:
            return ()
        live, half_s = self._is_live(chosen), self._half_s(self.knee, chosen)
        left_s = self.settings.budget_s - self.evidence.spent_s()
        left_s -= self._ending_s(half_s, live=live)
        pairs = affordable(left_s, step_s=half_s, start_s=0.0 if live else self.start_s)
        own, part = self.workload.window, self.workload.part
        return spread_windows(self.workload.requests, part, own, pairs)

    def _planned_step_s(self) -> float:
        """Return the longest step of which all replays and trials fit the budget. Raises
        UsageError. A window of an overloaded engine takes longer than it is, by its tail."""
        profile, live = self.plan.profile, self.space.is_live
        restarts = [knob.values for knob in self.space.knobs if knob.name not in LIVE]
        tries = 1 + min(3, len(self.space.knobs)) + sum(len(values) - 1 for values in restarts)
        starts_s = self.start_s + self._ending_s(0.0, pairs=PAIRS, live=live)
        replays = 2 * PAIRS + 2 + self.settings.headroom
        left_s, tail = self.settings.budget_s - starts_s, profile.promise.e2el_ms
        least_s = (1 + replays) * MIN_STEP_S
        if left_s < least_s:
            raise UsageError(
                f"--budget {self.settings.budget_s:.0f}s is too small: engine starts take about "
                f"{starts_s:.0f}s, the replays {least_s:.0f}s at least",
                hint=f"Give at least --budget {math.ceil(least_s + starts_s)}s.",
            )
        drain_s = 0.0 if tail is None else tail.p99 / 1e3 * len(profile.validity.windows)
        fitting_s = min(left_s / (tries + replays), left_s / (1 + replays) - drain_s)
        return min(self.settings.step_s, max(MIN_STEP_S, fitting_s))

    # The end

    def view(self, chosen: Configuration) -> Forecast | None:
        """Return the twin of the engines that share with the choice what needs a restart; None
        where it is not believed."""
        key = restart_key(chosen)
        alike = [trial for trial in self.made() if restart_key(trial.configuration) == key]
        replays = [
            replace(self.journal.replay(trial), token_budget=limits_of(trial.configuration)[1])
            for trial in alike
            if trial.window is not None
        ]
        tried = [number(trial.configuration[CAP]) for trial in alike]
        view = forecast_of(
            self.basis,
            self.evidence.logs(alike),
            replays,
            caps=sorted({*doubling(self.settings.ceiling), *tried}),
            facts=self.facts(chosen),
            printed=True,
        )
        return view if view is not None and view.is_believed else None

    def facts(self, configuration: Configuration) -> EngineFacts:
        """Return what the newest engine reported that serves this, as if it were built for it."""
        key = restart_key(configuration)
        facts = [start.facts for start in self.evidence.starts() if start.key == key][-1]
        arguments = {**facts.arguments, TOKENS: configuration[TOKENS]}
        return replace(facts, arguments=arguments)

    def _pairs(self) -> list[tuple[Measurement, Measurement]]:
        """Return (knee, refined), pair by pair."""
        slo, made = self.workload.slo, self.made(REFINED, KNEE)
        halves = [(trial.purpose, self.evidence.numbers(trial, slo)) for trial in made]
        turns = map(dict, zip(halves[::2], halves[1::2], strict=False))
        return [(turn[KNEE], turn[REFINED]) for turn in turns]

    async def _confirmed(
        self, chosen: Configuration, reason: str, confidence: float
    ) -> SweepOutcome:
        """Confirm the choice on an engine of its own, as a sweep does."""
        conclusion = self._conclusion(chosen, reason, confidence)
        build = self.fresh(chosen)
        with suppress(EngineError):
            await measure(
                lambda: confirming_trial(self.basis, conclusion, build, self.bench.spare_s()),
                self.bench,
            )
        requests = self.workload.requests
        return outcome_of(conclusion, self.basis, requests, self.facts(chosen))

    def _conclusion(self, chosen: Configuration, reason: str, confidence: float) -> Conclusion:
        """Return the refined choice as a sweep would have concluded it."""
        cap, view = number(chosen[CAP]), self.view(chosen)
        measured = numbers_of(self.evidence.replays(REFINED), self.workload.slo)
        interval, promised = (cap, cap), None
        checks = tuple(RequirementCheck(each, None) for each in self.settings.requirements)
        curve: tuple[CurvePoint, ...] = (CurvePoint(measured, measured, "measured", {}),)
        if view is not None:
            low, high = view.choice.interval
            interval, checks = (min(low, cap), max(high, cap)), view.choice.bounds.checks(cap)
            promised = view.promised(view.choice.samples.caps)
            curve = curve_by_twin(view, promised, {cap: measured})
        kind = self.plan.profile.decision.verdict
        verdict = Verdict(kind, cap, interval, confidence, reason, requirements=checks)
        return Conclusion(verdict, curve, view, promised, is_proven=True)


def limits_of(configuration: Configuration) -> tuple[int, int]:
    return number(configuration[CAP]), number(configuration[TOKENS])


def unloaded_of(profile: ServingProfile, twin: StoredTwin | None) -> Unloaded:
    """Return what an idle engine does, by the profile's twin or as far as the profile shows it."""
    if twin is not None:
        alone_s = prompt_s(twin.law, float(np.median(twin.traffic.input_length)))
        return Unloaded(alone_s + twin.shape.lag_s, 0.0, float(twin.law.decode_s[1]))
    step = profile.curve[0]
    numbers = step.measured or step
    ttft, tpot = numbers.ttft_ms, numbers.tpot_ms
    return Unloaded(
        ttft_s=0.0 if ttft is None or tpot is None else min(ttft.p50, 5 * tpot.p50) / 1e3,
        ttft_s_per_input_token=0.0,
        tpot_s=0.0 if tpot is None else tpot.p50 / 1e3,
    )


def reason_of(plan: RefinePlan, chosen: Configuration, proof: Proof | None) -> str:
    """Return the sentence that says what was gained, with its intervals, or why nothing was."""
    decision, knee = plan.profile.decision, plan.space.knee
    before = decision.reason.partition(THEN_REFINED)[0]
    if proof is None:
        return f"{before}{THEN_REFINED}nothing better was found"
    changed = ", ".join(
        f"{name} {_shown(knee[name])} -> {_shown(value)}"
        for name, value in chosen.items()
        if value != knee[name]
    )
    over = f"over {proof.pairs} pairs of replays in turns: {proof.in_words()}"
    if proof.sureness is None:
        return f"{before}{THEN_REFINED}no gain of {changed} is proven {over}"
    knee_at = f"the {decision.verdict} at {decision.max_num_seqs}"
    return f"refined from {knee_at}: {changed}; against it {over}"


def _shown(value: object) -> str:
    return "default" if value is None else str(value)
