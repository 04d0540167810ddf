"""The run of ``tuner refine``: knee → search → pairs in turns → a fresh engine → profile.

One engine is built for the most that any live trial needs, so that cap and token budget change
without a restart. Each phase is a function from the events of the run to the next trial.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tuner.engines.seam import ArgumentValue, Starter
from tuner.errors import EngineError, RunError
from tuner.profile.evidence import StoredTwin
from tuner.profile.profile import ServingProfile
from tuner.replay.numbers import Measurement
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, Trial, fitting, measure
from tuner.runs.journal import Configuration, Gathered, Tried
from tuner.runs.pairs import Proof, proof_of, spread_windows
from tuner.runs.refine.search import ALIKE, BEST, Model, Study, gain_over, served_in
from tuner.runs.refine.space import CAP, LIVE, TOKENS, Space, in_words, number, restart_key
from tuner.runs.result import SweepOutcome
from tuner.runs.sweep.conclusion import (
    Basis,
    Conclusion,
    CurvePoint,
    SweepSettings,
    by_twin,
    doubling,
    view_of,
)
from tuner.runs.sweep.sweep import confirming_trial
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import MIN_STEP_S
from tuner.traffic.requirements import RequirementCheck
from tuner.traffic.slo import Unloaded
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload, affordable_step_s
from tuner.twin.law import prompt_s
from tuner.twin.verdict import Verdict

SEARCH, KNEE, REFINED = "search", "knee", "refined"
"""Purposes of trials: what is compared with the knee, and the halves of a pair."""

SIDES = (REFINED, KNEE, KNEE, REFINED)
"""Order of the halves, over and over: each side is first as often as second, so that a machine that
drifts favors neither."""

PAIRS, MOST_PAIRS = 4, 16
"""Pairs that are made at least, and where the budget has room for more; even numbers."""

MOST_STARTS_SHARE = 0.5
"""Of the budget, for engine starts: what needs more of them than that is not searched."""

MOST_FAILURES = 2
"""Engines that may fail one after the other: one more is the machine and not a configuration."""

WORTH = 0.005
"""A gain that nobody would restart a server for."""

THEN_REFINED = "; refined: "
"""Between the reason of a knee and the result of its refinement."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial of the search, and the numbers of its replay."""

    configuration: Configuration
    measured: Measurement
    gain: float | None
    """Over the knee, by the twin where it can predict it, for all of the traffic; else as
    replayed."""

    is_kept: bool
    """Whether it loses no goodput, and nothing that is required."""


class Refining:
    """A refinement under way, and its result."""

    workload: Workload
    chosen: Configuration
    """The knee where nothing seemed better."""

    reason: str
    proof: Proof | None = None
    outcome: SweepOutcome | None = None
    """For a profile of the refined engine; None where the knee is kept."""

    def __init__(  # noqa: PLR0913 - what is refined, how, and on what
        self,
        profile: ServingProfile,
        twin: StoredTwin | None,
        space: Space,
        settings: SweepSettings,
        *,
        bench: Bench,
        vary: Callable[[Configuration], Starter],
        study: Study,
    ) -> None:
        """``twin`` is the profile's, None where windows decided; ``vary`` returns what starts
        engines with the profile's arguments and these changed."""
        assert settings.slo is not None
        self.profile, self.twin, self.settings, self.knee = profile, twin, settings, space.knee
        self.bench, self.vary, self.study = bench, vary, study
        self.journal, self.made = bench.journal, bench.journal.made
        self.model = None if twin is None else Model(twin, settings.slo, self.knee)
        self.first: list[Configuration] | None = None
        """The candidates that the twin predicts to be best."""

        self.warnings, self.is_complete, self.space = list[str](), True, space
        measured, live = profile.provenance, [k for k in space.knobs if k.name in LIVE]
        self.start_s = measured.engine_seconds.starts / max(1, measured.engine_starts)
        starts = 3 + 2 * PAIRS
        is_affordable = starts * self.start_s <= MOST_STARTS_SHARE * settings.budget_s
        if live and not space.is_live and not is_affordable:
            others = ", ".join(knob.name for knob in space.knobs if knob not in live)
            self.warnings.append(
                f"the budget has no time for {starts} engine starts of {self.start_s:.0f}s: "
                f"{others} was not searched; give a larger --budget"
            )
            self.space = replace(space, knobs=tuple(live))

    async def refine(self, requests: Sequence[TraceRequest]) -> None:
        """Search around the profile's knee and compare the best candidate with it.

        Raises EngineError when engines keep failing, TraceError when nothing can be replayed,
        UsageError when the budget is too small.
        """
        kept, warnings = fitting(requests, number(self.profile.engine.get("max_model_len", 1)))
        self.warnings += warnings
        self.prepare(kept)
        self.bench.spare_s = lambda: self.settings.budget_s - self.journal.spent_s()
        try:
            await self._compare(await self._gather())
        finally:
            await self.bench.stop()
        self.warnings += [self.study.lost] if self.study.lost else []

    async def _gather(self) -> Gathered:
        """Search; return the best, and the windows in which it is compared with the knee: as many
        as there is time for."""
        await self._measure(self.next_in_search)
        if (gathered := self.journal.last(Gathered)) is None:
            chosen, own, pairs = self.best(), self.workload.window, 0
            if chosen != self.knee:
                half_s = self._half_s()
                left_s = self.bench.spare_s() - self._ending_s(half_s)
                two_s = 4 * (half_s + (0.0 if self._is_live(chosen) else self.start_s))
                pairs = min(MOST_PAIRS, PAIRS + 2 * max(0, int(left_s // two_s)))
            windows = spread_windows(self.workload.requests, self.workload.part, own, pairs)
            gathered = Gathered(complete=self.is_complete, chosen=chosen, pairs=windows)
            self.journal.add(gathered)
        for row in self.rows():
            self.study.tell(row.configuration, row.gain, fidelity="replay", is_kept=row.is_kept)
        if not gathered.complete:
            self.warnings.append(
                "the budget ended the search: not all that seemed worth it was tried; give a "
                "larger --budget"
            )
        return gathered

    async def _compare(self, gathered: Gathered) -> None:
        """Compare the best with the knee, and confirm it where it is proven to be better."""
        self.chosen, windows = gathered.chosen, gathered.pairs
        if self.chosen != self.knee:
            self.bench.watcher.stage(
                f"comparing {in_words(self.chosen)} with the knee, in turns: {len(windows)} pairs"
            )
            await self._measure(partial(self.next_half, self.chosen, windows))
            self.proof = self.evidence()
            if self.proof.pairs < len(windows):  # the look gave up
                self.proof = replace(self.proof, sureness=None)
        self.reason = self._reason()
        if self.proof is not None and self.proof.sureness is not None:
            self.outcome = await self._confirmed(self.proof.sureness)
            self.warnings += self.outcome.warnings

    async def _measure(self, plan: Callable[[], Trial | None]) -> None:
        await measure(plan, self.bench, most_failures=MOST_FAILURES)

    def prepare(self, requests: Sequence[TraceRequest]) -> None:
        """Choose what a trial replays, or read back what was chosen."""
        assert self.settings.slo is not None
        step = self.profile.curve[0]
        tpot_s = 0.0 if step.tpot_ms is None else step.tpot_ms.p50 / 1e3
        unloaded = Unloaded(tpot_s, 0.0, tpot_s)
        if self.twin is not None:
            law, lengths = self.twin.law, self.twin.traffic.input_length
            alone_s = prompt_s(law, float(np.median(lengths))) + self.twin.shape.lag_s
            unloaded = Unloaded(alone_s, 0.0, float(law.decode_s[1]))
        self.workload = self.bench.selected(
            requests,
            self.settings.slo,
            unloaded,
            window=self.settings.window,
            step_s=self._planned_step_s,
        )

    # What was measured

    def check(self) -> None:
        """Raise RunError for a configuration that is not searched: a stranger's journal could
        name any engine argument, and it would be started."""
        chosen = [event.chosen for event in self.journal.of(Gathered)]
        for each in [*(trial.configuration for trial in self.journal.trials()), *chosen]:
            if not self.space.holds(each):
                raise RunError(
                    f"{self.journal.run_dir}/journal.jsonl: {in_words(each)} is not searched",
                    hint="Start again in another --run-dir.",
                )

    def rows(self) -> list[TrialRow]:
        """Return the trials of the search that served, with their gains."""
        required = [each for each in self.settings.requirements if not each.at_headroom]
        measured = {
            str(t.configuration): (t.configuration, self.journal.numbers(t, self.workload.slo))
            for t in self.made(SEARCH)
        }
        knee, rows = measured.get(str(self.knee)), list[TrialRow]()
        for tried, numbers in measured.values():
            gain, is_kept = None, False
            if knee is not None:
                here, there = served_in(numbers), served_in(knee[1])
                if self.model is not None and self.model.predicts(tried):
                    here, there = self.model.served(tried), self.model.served(self.knee)
                gain, is_kept = gain_over(here, there)
            values = [(each, each.value_in(numbers)) for each in required]
            is_kept = is_kept and all(v is None or each.is_met_by(v) for each, v in values)
            rows.append(TrialRow(tried, numbers, gain, is_kept))
        return rows

    def best(self) -> Configuration:
        """Return the best of what was replayed, of equal ones that with the fewest slots: the knee
        unless another is worth a restart."""
        known = [(row.gain, row.configuration) for row in self.rows() if row.is_kept and row.gain]
        top = max((gain for gain, _ in known), default=0.0)
        alike = [each for gain, each in known if gain > top - ALIKE and top >= WORTH]
        return min(alike, key=lambda each: number(each[CAP]), default=self.knee)

    def evidence(self) -> Proof:
        """Return what the pairs have shown so far."""
        slo, made = self.workload.slo, self.made(REFINED, KNEE)
        halves = [(trial.purpose, self.journal.numbers(trial, slo)) for trial in made]
        pairs = map(dict, zip(halves[::2], halves[1::2], strict=False))
        return proof_of([(pair[KNEE], pair[REFINED]) for pair in pairs])

    # Phases

    def next_in_search(self) -> Trial | None:
        """Return the knee, the best by the twin, then each other argument once, for each of its
        values."""
        self.check()
        if self.journal.last(Gathered) is not None:
            return None
        window = self.workload.window
        tried = [each.configuration for each in self.journal.trials()]
        if self.knee not in tried:
            return self._trial(SEARCH, self.knee, window)
        if self.first is None:
            self.first = [] if self.model is None else self.model.best(self.space, self.study)
        alive = {restart_key(each.configuration) for each in self.made()}
        best = self.best()
        base = {**self.knee, **{name: best[name] for name in LIVE}}
        flipped = [
            {**base, knob.name: value}
            for knob in self.space.knobs
            for value in knob.values
            if value != self.knee[knob.name]
            and (self.model is None or not self.model.predicts({**self.knee, knob.name: value}))
        ]
        for each in [*self.first, *flipped]:
            key = restart_key(each)
            is_dead = key not in alive and key in map(restart_key, tried)
            if each in tried or is_dead:
                continue
            trial, half_s = self._trial(SEARCH, each, window), self._half_s()
            needed_s = half_s + self._ending_s(half_s)
            needed_s += 0.0 if self.bench.build == trial.build else self.start_s
            self.is_complete = self.journal.spent_s() + needed_s <= self.settings.budget_s
            return trial if self.is_complete else None
        return None

    def next_half(self, chosen: Configuration, windows: Sequence[Window]) -> Trial | None:
        """Return the next half of a pair; None when all were made, or half of them leave no hope.

        Both sides share one engine whose limits change live, or else each half has a fresh one, as
        no two starts are alike.
        """
        done = len(self.made(REFINED, KNEE))
        is_half_way = done == len(windows)
        if done == 2 * len(windows) or (is_half_way and self.evidence().is_futile(planned=done)):
            return None
        side = SIDES[done % 4]
        own = chosen if side == REFINED else self.knee
        build = None if self._is_live(chosen) else self.build(own, limits_of(own), 1 + done)
        return self._trial(side, own, windows[done // 2], build)

    # Trials

    def _trial(
        self, purpose: str, own: Configuration, window: Window, build: Build | None = None
    ) -> Trial:
        """Return a replay of this window, by default on the engine that is built for all that needs
        no restart beside this."""
        if build is None:
            most = max(self.settings.ceiling, self.space.most(CAP)), self.space.most(TOKENS)
            build = self.build(own, most, 0)
        cap, tokens = limits_of(own)
        return Trial(
            Tried(purpose=purpose, max_num_seqs=cap, configuration=own, window=window),
            build,
            self.workload.sent_in(window),
            CutRule(self.workload.slo, 0.0),
            tokens=tokens,
            title=f"{purpose} {in_words(own)}",
        )

    def build(self, configuration: Configuration, limits: Sequence[int], turn: int) -> Build:
        """Return an engine that is built for these limits; another turn is another engine."""
        (cap, tokens), key = limits, restart_key(configuration)
        changed = {k: v for k, v in configuration.items() if k != CAP} | {TOKENS: tokens}
        title = f"starting an engine for {in_words(changed)}"
        return Build(f"{tokens} {turn} {key}", cap, self.vary(changed), key, title)

    def _is_live(self, chosen: Configuration) -> bool:
        """Whether one engine serves the choice and the knee."""
        return restart_key(chosen) == restart_key(self.knee)

    # What there is time for

    def _ending_s(self, half_s: float) -> float:
        """Return what the fewest pairs and the replays that confirm take, starts included."""
        starts = 1 if self.space.is_live else 2 * PAIRS + 1
        return (2 * PAIRS + 2 + self.settings.headroom) * half_s + starts * self.start_s

    def _half_s(self) -> float:
        """Return how long half of a pair takes, as the knee did: an engine that is overloaded
        drains for longer than its windows are."""
        knees = [t.elapsed_s for t in self.made(SEARCH) if t.configuration == self.knee]
        return max([self.workload.step_s, *knees])

    def _planned_step_s(self) -> float:
        """Return the longest step of which all replays and trials fit the budget. Raises
        UsageError. A window of an overloaded engine takes longer than it is, by its tail."""
        budget_s, tail = self.settings.budget_s, self.profile.promise.e2el_ms
        restarts = sum(len(k.values) - 1 for k in self.space.knobs if k.name not in LIVE)
        starts_s = self.start_s + self._ending_s(0.0)
        replays, left_s = self._ending_s(1.0) - self._ending_s(0.0) + 1, budget_s - starts_s
        step_s = affordable_step_s(
            self.settings.step_s, steps=replays, budget_s=budget_s, starts_s=starts_s
        )
        drained_s = left_s / replays - (0.0 if tail is None else tail.p99 / 1e3)
        return max(MIN_STEP_S, min(step_s, left_s / (BEST + restarts + replays), drained_s))

    # The end

    def _reason(self) -> str:
        """Return the sentence that says what was gained, with its intervals, or why nothing was."""
        decision, proof = self.profile.decision, self.proof
        before = decision.reason.partition(THEN_REFINED)[0]
        if proof is None:
            return f"{before}{THEN_REFINED}nothing better was found"
        changed = ", ".join(
            f"{name} {_or_default(self.knee[name])} -> {_or_default(value)}"
            for name, value in self.chosen.items()
            if value != self.knee[name]
        )
        over = f"over {proof.pairs} pairs of replays in turns: {proof.in_words()}"
        if proof.sureness is None:
            return f"{before}{THEN_REFINED}no gain of {changed} is proven {over}"
        knee = f"the {decision.verdict} at {decision.max_num_seqs}"
        return f"refined from {knee}: {changed}; against it {over}"

    async def _confirmed(self, confidence: float) -> SweepOutcome:
        """Confirm the choice on an engine of its own, and conclude as a sweep does: by the twin of
        the engines that share with it what needs a restart, where that is believed."""
        basis, chosen = Basis(self.journal, self.workload, self.settings), self.chosen
        key, cap = restart_key(chosen), number(chosen[CAP])
        alike = [trial for trial in self.made() if restart_key(trial.configuration) == key]
        facts = [start.facts for start in self.journal.starts() if start.key == key][-1]
        facts = replace(facts, arguments={**facts.arguments, TOKENS: chosen[TOKENS]})
        caps = {*doubling(self.settings.ceiling), *(each.max_num_seqs for each in alike)}
        view = view_of(basis, alike, caps=sorted(caps), facts=facts, printed=True)
        measured = numbers_of(self.journal.replays(REFINED), self.workload.slo)
        checks = tuple(RequirementCheck.of(each) for each in self.settings.requirements)
        curve: tuple[CurvePoint, ...] = (CurvePoint(measured, measured, "measured", {}),)
        low, high, promised = cap, cap, None
        if view is not None and view.doubt is None:
            (low, high), checks = view.choice.interval, view.choice.checks[cap]
            again = by_twin(basis, view, {cap: measured})
            promised, curve = again.promised, again.curve
        verdict = Verdict(
            self.profile.decision.verdict,
            cap,
            (min(low, cap), max(high, cap)),
            confidence,
            self.reason,
            requirements=checks,
        )
        believed = None if promised is None else view
        conclusion = Conclusion(verdict, curve, believed, promised, is_proven=True)
        build = replace(self.build(chosen, limits_of(chosen), 0), purpose="confirm")
        with suppress(EngineError):
            await measure(
                lambda: confirming_trial(basis, conclusion, build, self.bench.spare_s()), self.bench
            )
        return SweepOutcome(conclusion, basis, self.workload.requests, facts)


def limits_of(configuration: Configuration) -> tuple[int, int]:
    return number(configuration[CAP]), number(configuration[TOKENS])


def _or_default(value: ArgumentValue) -> ArgumentValue:
    return "default" if value is None else value
