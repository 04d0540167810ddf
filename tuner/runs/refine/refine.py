"""The run of ``tuner refine``: ramp → knee → search → pairs in turns → profile.

One engine is built for the most that any live trial asks, so that cap and token budget change
without a restart. Each phase is a function from the events of the run to the next trial.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

import numpy as np

from tuner.engines.seam import ArgumentValue, EngineFacts, Starter
from tuner.errors import UsageError
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import StoredTwin, restored
from tuner.replay.measure import Measurement
from tuner.replay.measure import measure as measurement_of
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build
from tuner.runs.events import Gathered, Replayed, Selection, TrialEnded
from tuner.runs.ladder import doubling
from tuner.runs.measure import Trial, measure
from tuner.runs.outcome import Conclusion, CurvePoint, SweepOutcome, predictions_of, with_measured
from tuner.runs.refine.aims import (
    AIMS,
    GOODPUT,
    MEMORY_AIM,
    NOT_LOST,
    PAIRS,
    Aim,
    PairedResult,
    acceptance,
    affordable,
    gain_over,
    is_futile,
    proving,
    ratios_of,
)
from tuner.runs.refine.search import ALIKE, Model, Study, deficit
from tuner.runs.refine.space import (
    CAP,
    LIVE,
    MEMORY,
    MODELED,
    TOKENS,
    Configuration,
    Space,
    fails_like,
    frees,
    in_words,
    number,
    restart_key,
    smallest,
)
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.confirmation import raised
from tuner.runs.sweep.sweep_warnings import left_out
from tuner.trace.trace import TraceRequest
from tuner.traffic.requirements import Requirement, RequirementCheck
from tuner.traffic.slo import Unloaded
from tuner.traffic.window import Window
from tuner.traffic.workload import (
    MIN_STEP_S,
    Workload,
    choose_workload,
    keep_what_fits,
    workload_of,
)
from tuner.twin.check import observed
from tuner.twin.forecast import Forecast, forecast
from tuner.twin.law import Segment
from tuner.twin.simulation import hit_share, shape_of, simulate, traffic_of
from tuner.twin.verdict_text import Verdict

RAMP, SEARCH, KNEE, REFINED, ALONE, RAISED = "ramp", "search", "knee", "refined", "alone", "raised"
"""Purposes of trials: what times every batch size, and what is compared with the knee; the halves
of a pair; the refined engine by itself, at the recorded load and with headroom."""

SIDES = (REFINED, KNEE, KNEE, REFINED)
"""Order of the halves, over and over: each side is first as often as second, so that a machine that
drifts favors neither."""

LEAST_STEPS = 2 + 2 * PAIRS + 2
"""Steps of replay that a refinement makes at least: the ramp and the knee, the pairs, the refined
engine by itself and with headroom."""

MOST_FAILURES = 2
"""Engines that may fail one after the other: one more is the machine and not a configuration."""

LOST = 0.10
"""Shortfall of one window's attainment from the best in it, from which on a replay is not worth
continuing: two replays of the same at one speed hardly ever differ by so much."""

WORTH = 0.005
"""A gain that nobody would restart a server for."""

AT_LIMIT = 0.9
"""KV-cache usage from which on the next longer conversation does not fit."""

SHORTER = 0.8
"""Of a step that takes too long, what is tried next."""

SAME_LOAD = 0.1
"""Log ratio of arrival rates that a router's choice of whom to give a request makes."""

THEN_REFINED = "; refined: "
"""Between the reason of a knee and what a refinement said of it."""

NO_ROOM = (
    "with the load raised the KV cache reaches its limit: more memory than this leaves room to grow"
)

Vary = Callable[[Configuration], Starter]
"""Returns what starts engines with the profile's arguments and these changed."""


@dataclass(frozen=True, slots=True)
class RefinePlan:
    """The plan of a refinement: what is refined, and how."""

    profile: ServingProfile
    space: Space
    aim: Aim
    settings: SweepSettings
    start_s: float
    """How long an engine start takes, by the profile."""

    max_model_len: int
    is_same_trace: bool
    """Whether it is the trace that the profile was tuned for."""

    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """A trial that has ended."""

    purpose: str
    configuration: dict[str, ArgumentValue]
    windows: tuple[Window, ...]
    replays: tuple[Replay, ...]
    failed: str | None
    engine: int
    """Number of the start that it was measured on."""

    @property
    def cut(self) -> str | None:
        """Say in which of its windows it was ended early, and why; None when it was not."""
        for place, replay in enumerate(self.replays, 1):
            if replay.cut is not None:
                return f"window {place} of {len(self.replays)}: {replay.cut}"
        return None


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial of the search, and what its replays gave."""

    configuration: Configuration
    measured: Measurement
    cut: str | None
    gain: float | None
    """Over the knee, by the twin where it can tell, which knows all of the traffic; else as
    replayed. None of a trial that was ended early."""

    deficit: float
    """Attainment that is missing, or by how much what is required is missed; at most 0: none."""

    @property
    def has_room(self) -> bool:
        """Whether the KV cache was off its limit: never so full, and nobody preempted."""
        return has_room(self.measured)


@dataclass(frozen=True, slots=True)
class Refinement:
    """The findings of the run."""

    chosen: Configuration
    """The knee where nothing seemed better."""

    paired: PairedResult | None
    pairs: tuple[tuple[Window, ...], ...]
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
    """Search around the profile's knee and compare what was found with it.

    Raises EngineError when engines keep failing, TraceError when nothing can be replayed,
    UsageError when the budget is too small.
    """
    run = _Run(plan, bench, vary, study)
    run.prepare(requests)
    settings = plan.settings
    bench.spare_s = lambda: settings.budget_s - bench.evidence.spent_s()
    try:
        return await run.refined()
    finally:
        await bench.stop()


class _Run:
    workload: Workload

    def __init__(self, plan: RefinePlan, bench: Bench, vary: Vary, study: Study) -> None:
        self.plan, self.bench, self.vary, self.study = plan, bench, vary, study
        self.settings, self.knee = plan.settings, dict(plan.space.knee)
        self.journal, self.evidence = bench.journal, bench.evidence
        self.warnings = list(plan.warnings)
        self.dropped = 0
        self.is_complete = True
        self.space = self._affordable(plan.space)
        self.model: Model | None = None
        """None before the knee was replayed, and where the twin is not believed."""

        self.first: list[Configuration] | None = None
        """The candidates that one engine serves, the best by the twin first."""

    async def refined(self) -> Refinement:
        await measure(self.next_in_search, self.bench, most_failures=MOST_FAILURES)
        gathered = next(self.journal.of(Gathered), None)
        self._weigh()
        if gathered is None:
            one = dict(self.best())
            pairs = self._pairs_of(one)
            gathered = Gathered(complete=self.is_complete, chosen=one, pairs=pairs)
            self.journal.add(gathered)
        one, windows = gathered.chosen, gathered.pairs
        for row in self.rows():
            self.study.tell(row.configuration, row.gain, row.deficit, "replay")
        if not gathered.complete:
            self.warnings.append(
                "the budget ended the search: not all that seemed worth it was tried; give a "
                "larger --budget"
            )
        paired = outcome = None
        if one != self.knee:
            self.bench.watcher.stage(
                f"comparing {in_words(one)} with the knee, in turns: {len(windows)} pairs"
            )
            await measure(
                lambda: self.next_half(one, windows), self.bench, most_failures=MOST_FAILURES
            )
            paired = self._proof(one, len(windows))
        reason = reason_of(self.plan, one, paired)
        if paired is not None and paired.accepted is not None:
            turn = 2 * len(windows)
            await measure(
                lambda: self.next_alone(one, turn), self.bench, most_failures=MOST_FAILURES
            )
            outcome = self._outcome(one, reason, paired.accepted.sureness)
            self.warnings += outcome.facts.cautions
            raised = outcome.with_headroom
            if frees(one, self.knee) and raised is not None and not has_room(raised):
                self.warnings.append(NO_ROOM)
        lost = [] if self.study.lost is None else [self.study.lost]
        return Refinement(
            chosen=one,
            paired=paired,
            pairs=() if paired is None else windows[: paired.pairs],
            outcome=outcome,
            reason=reason,
            trials=tuple(self.rows()),
            complete=gathered.complete,
            starts_s=self.evidence.starts_s(),
            replay_s=self.evidence.replay_s(),
            failed=tuple(done.failed for done in self.done() if done.failed),
            warnings=(*self.warnings, *lost),
        )

    # What was measured

    def done(self, *purposes: str) -> list[Done]:
        """Return every trial that has ended, or those of these purposes that did not fail."""
        replays: dict[int, list[Replay]] = {}
        for event in self.journal.of(Replayed):
            replays.setdefault(event.trial, []).append(self.journal.replay(event))
        ended = zip(self.evidence.begun(), self.journal.of(TrialEnded), strict=False)
        found = [
            Done(
                begun.purpose, begun.configuration, begun.windows, tuple(replays.get(place, ())),
                end.failed, end.engine,
            )
            for place, (begun, end) in enumerate(ended)
        ]  # fmt: skip
        return [
            one for one in found
            if not purposes or (one.purpose in purposes and one.failed is None)
        ]  # fmt: skip

    def check(self) -> None:
        """Raise ValueError for a configuration that is not searched: whoever wrote the journal
        could name any engine argument, and it would be started."""
        chosen = [event.chosen for event in self.journal.of(Gathered)]
        for one in [*(begun.configuration for begun in self.evidence.begun()), *chosen]:
            if not self.plan.space.holds(one):
                raise ValueError(f"{in_words(one)} is not searched")

    def rows(self) -> list[TrialRow]:
        """Return the trials of the search that served, with their scores."""
        searched = self.done(SEARCH)
        knee = next(
            (self._numbers(one) for one in searched if one.configuration == self.knee), None
        )
        rows = []
        for done in searched:
            one, measured, gain = done.configuration, self._numbers(done), None
            lacking = broken_by(measured, self.settings.requirements)
            if done.cut is None and knee is not None:
                if self.model is not None and self.model.tells(one):
                    gain = self.model.gain(one)
                    lacking = max(lacking, self.model.deficit(one))
                else:
                    gain = gain_over(self.plan.aim, measured, knee)
                    lacking = max(lacking, deficit(measured.attainment, knee.attainment))
            rows.append(TrialRow(one, measured, done.cut, gain, lacking))
        return rows

    def _numbers(self, done: Done) -> Measurement:
        return measurement_of(done.replays, self.workload.slo)

    def best(self) -> Configuration:
        """Return the best of what was replayed: the knee unless another is worth a restart; of
        equal ones the one with the least memory that keeps the KV cache off its limit, then the
        fewest slots."""
        known = [
            (row.configuration, row.gain)
            for row in self.rows()
            if row.gain is not None
            and row.deficit <= 0
            and (row.has_room or not frees(row.configuration, self.knee))
        ]
        top = max((gain for _, gain in known), default=0.0)
        if top < WORTH:  # only less memory is worth a restart
            freed = [one for one, gain in known if gain > -WORTH and frees(one, self.knee)]
            return min(freed, key=smallest, default=self.knee)
        return min((one for one, gain in known if gain > top - ALIKE), key=smallest)

    # Phases

    def next_in_search(self) -> Trial | None:  # noqa: PLR0911 - one for each kind of trial
        """Return the ramp, the knee, the best by the twin, then each other argument once."""
        self.evidence.check(self.check)
        if (half := self.evidence.under_way()) is not None:
            return self.trial(half.purpose, half.configuration)
        if next(self.journal.of(Gathered), None) is not None:
            return None
        if not self.done(RAMP):
            return self.ramp(self.knee, turn=0)
        tried = [one.configuration for one in self.done() if one.purpose == SEARCH]
        if self.knee not in [one.configuration for one in self.done(SEARCH)]:
            return self.trial(SEARCH, self.knee)
        if self.first is None:
            self._weigh(first_look=True)
            self.first = self.neighbors() if self.model is None else self.study.best_by(self.model)
        failed = [one.configuration for one in self.done() if one.failed is not None]
        served = {restart_key(one.configuration) for one in self.done(SEARCH, RAMP)}
        for one in [*self.first, *self.flipped()]:
            is_dead = restart_key(one) not in served and any(fails_like(one, f) for f in failed)
            if dict(one) in tried or is_dead:
                continue
            trial = self.trial(SEARCH, one)
            start_s = 0.0 if self.bench.build == trial.build else self.plan.start_s
            if self.evidence.spent_s() + start_s + self._step_s() > self._search_s():
                self.is_complete = False
                return None
            return trial
        return None

    def next_half(self, one: Configuration, windows: Sequence[tuple[Window, ...]]) -> Trial | None:
        """Return the next half of a pair; None when all were made, or half of them leave no hope.

        Both sides share one engine whose limits change live, or else each half has a fresh one, as
        no two starts are alike.
        """
        if (half := self.evidence.under_way()) is not None and half.purpose in SIDES:
            place = len(self.done(REFINED, KNEE))
            return self._half(half.purpose, one, windows[place // 2], place)
        done = self.done(REFINED, KNEE)
        if len(done) == 2 * len(windows):
            return None
        if len(done) == len(windows):
            ratios = ratios_of(self._pairs(done), {})
            less = self._serves_with_less(one)
            if is_futile(self.plan.aim, ratios, pairs=len(windows), frees_memory=less):
                return None
        return self._half(SIDES[len(done) % 4], one, windows[len(done) // 2], len(done))

    def next_alone(self, one: Configuration, turn: int) -> Trial | None:
        """Return what is missing of an engine built for exactly the choice."""
        shared = is_live(one, self.knee) and all(
            number(one[name]) >= number(self.knee[name]) for name in LIVE
        )
        turn = 1 if shared else turn
        if not self.done(ALONE):
            return self.trial(ALONE, one, turn=turn)
        if self.settings.headroom > 1 and not self.done(RAISED):
            return self.trial(RAISED, one, turn=turn)
        is_ramped = any(is_live(done.configuration, one) for done in self.done(RAMP))
        has_failed = any(done.failed for done in self.done() if done.purpose == RAMP)
        return None if is_ramped or has_failed else self.ramp(one, turn=turn + 1)

    def neighbors(self) -> list[Configuration]:
        """Return the knee's neighbors of the live arguments."""
        return [
            {**self.knee, knob.name: knob.values[place]}
            for knob in self.space.knobs
            if knob.name in LIVE
            for center in [knob.values.index(self.knee[knob.name])]
            for place in (center - 1, center + 1)
            if 0 <= place < len(knob.values)
        ]

    def flipped(self) -> list[Configuration]:
        """Return the best so far with one other argument changed, for each that needs a restart;
        less and less memory, as the first that does not start rules out the rest."""
        best = self.best()
        live = {name: best[name] for name in LIVE}
        return [
            {**self.knee, **live, knob.name: value}
            for knob in self.space.knobs
            if knob.name not in (LIVE if self.model is None else MODELED)
            for value in (reversed(knob.values) if knob.name in MEMORY else knob.values)
            if value != self.knee[knob.name]
        ]

    # Trials

    def ramp(self, one: Configuration, *, turn: int) -> Trial:
        cap = self.searched_cap
        return Trial(
            purpose=RAMP,
            build=self.build(one, cap, self.space.most(TOKENS), turn),
            cap=cap,
            workload=self.workload,
            ramp_s=self.workload.step_s,
            configuration=dict(one),
        )

    def trial(self, purpose: str, one: Configuration, *, turn: int = 0) -> Trial:
        if purpose == RAMP:
            return self.ramp(one, turn=turn)
        build = self.build(one, self.searched_cap, self.space.most(TOKENS), 0)
        if purpose in {ALONE, RAISED}:
            build = self.build(one, number(one[CAP]), number(one[TOKENS]), turn)
        return self._trial(purpose, one, build, self.workload.windows)

    def _half(
        self, side: str, one: Configuration, windows: tuple[Window, ...], place: int
    ) -> Trial:
        own = one if side == REFINED else self.knee
        cap, tokens, turn = number(own[CAP]), number(own[TOKENS]), 1 + place
        if is_live(one, self.knee):
            cap, tokens = (max(number(one[name]), number(self.knee[name])) for name in LIVE)
            turn = 1
        return self._trial(side, own, self.build(own, cap, tokens, turn), windows)

    def _trial(
        self, purpose: str, one: Configuration, build: Build, windows: tuple[Window, ...]
    ) -> Trial:
        workload, load = self.workload, self.settings.headroom if purpose == RAISED else 1.0
        floors = self._floors() if purpose == SEARCH else [0.0] * len(windows)

        return Trial(
            purpose=purpose,
            build=build,
            cap=number(one[CAP]),
            tokens=number(one[TOKENS]),
            windows=windows,
            sent=lambda window: raised(workload, window, load, self.settings.seed),
            rule=lambda place, _: (CutRule(workload.slo, floors[place]), None),
            slo=workload.slo,
            configuration=dict(one),
            title=f"{purpose} {in_words(one)}",
        )

    def _floors(self) -> list[float]:
        """Return per window the attainment below which a trial has lost for certain."""
        best = [LOST] * len(self.workload.windows)
        for done in self.done(SEARCH):
            for place, replay in enumerate(done.replays):
                if replay.cut is None:
                    share = measurement_of([replay], self.workload.slo).attainment
                    best[place] = max(best[place], share)
        return [share - LOST for share in best]

    def build(self, one: Configuration, cap: int, tokens: int, turn: int) -> Build:
        """Return an engine that is built for these limits; another turn is another engine."""
        key = restart_key(one)
        changed = {name: value for name, value in one.items() if name != CAP} | {TOKENS: tokens}
        title = f"starting an engine for {in_words(changed)}"
        return Build(f"{tokens} {turn} {key}", cap, self.vary(changed), key, title)

    @property
    def searched_cap(self) -> int:
        return max(self.settings.ceiling, self.space.most(CAP))

    # What there is time for

    def _affordable(self, space: Space) -> Space:
        """Return the space without what needs engine starts, where the budget has no time for one
        of them and for those of its pairs."""
        starts_s = (3 + 2 * PAIRS) * self.plan.start_s
        live = tuple(knob for knob in space.knobs if knob.name in LIVE)
        if space.is_live or not live:
            return space
        if starts_s + LEAST_STEPS * MIN_STEP_S <= self.settings.budget_s:
            return space
        others = ", ".join(knob.name for knob in space.knobs if knob not in live)
        self.warnings.append(
            f"the budget has no time for {3 + 2 * PAIRS} engine starts of "
            f"{self.plan.start_s:.0f}s: {others} was not searched; give a larger --budget"
        )
        return replace(space, knobs=live)

    def _ending_starts_s(self, *, live: bool) -> float:
        return self.plan.start_s * (2 if live else 2 * PAIRS + 2)

    def _step_s(self) -> float:
        return max(self.workload.step_s, self._half_s((self.knee,)))

    def _search_s(self) -> float:
        """Return what the search may spend, so that the pairs and the end are paid for."""
        ending = 2 * PAIRS + 1 + self.settings.headroom
        starts_s = self._ending_starts_s(live=self.space.is_live)
        return self.settings.budget_s - ending * self._step_s() - starts_s

    def _half_s(self, sides: Sequence[Configuration]) -> float:
        """Return how long half of a pair takes, by trials of its sides: an engine that is
        overloaded drains for longer than its windows are, on one side more than on the other."""
        took: dict[str, list[float]] = {}
        for done in self.done(SEARCH):
            if done.configuration in sides:
                seconds = sum(replay.elapsed_s for replay in done.replays)
                took.setdefault(str(done.configuration), []).append(seconds)
        return fmean(map(fmean, took.values())) if took else 0.0

    def _pairs_of(self, one: Configuration) -> tuple[tuple[Window, ...], ...]:
        """Return the windows of as many pairs as the rest of the budget has time for."""
        if one == self.knee:
            return ()
        live, start_s = is_live(one, self.knee), self.plan.start_s
        step_s = max(self.workload.step_s, self._half_s((self.knee, one)))
        after_s = (1 + self.settings.headroom) * step_s + start_s * (2 if live else 3)
        left_s = self.settings.budget_s - self.evidence.spent_s() - after_s
        pairs = affordable(left_s, step_s=step_s, start_s=0.0 if live else start_s)
        return windows_of_pairs(self.workload, pairs)

    def prepare(self, requests: Sequence[TraceRequest]) -> None:
        """Choose what a trial replays, or read back what was chosen."""
        plan, settings = self.plan, self.settings
        assert settings.slo is not None
        kept, self.dropped = keep_what_fits(requests, max_model_len=plan.max_model_len)
        of, most = len(requests), plan.max_model_len
        if (text := left_out(self.dropped, of=of, max_model_len=most)) is not None:
            self.warnings.append(text)
        unloaded, chosen = unloaded_of(plan.profile), self.evidence.selection()
        if chosen is None:
            self.workload = self._planned(kept, unloaded)
            part, windows = self.workload.part, self.workload.windows
            self.journal.add(Selection(part=part, windows=windows, step_s=self.workload.step_s))
        else:
            self.workload = workload_of(
                kept, settings.slo, unloaded, chosen.part, chosen.windows, chosen.step_s
            )
        if plan.is_same_trace and (text := unlike(plan.profile, self.workload)) is not None:
            self.warnings.append(text)
            self.bench.watcher.warn(text)

    def _planned(self, requests: Sequence[TraceRequest], unloaded: Unloaded) -> Workload:
        """Return the longest step of which LEAST_STEPS fit the budget, by what the knee takes for
        it: an overloaded engine takes longer for a window than the window is. Raises UsageError."""
        settings, section = self.settings, self.plan.profile.twin
        assert settings.slo is not None
        starts_s = self.plan.start_s + self._ending_starts_s(live=self.space.is_live)
        left_s = settings.budget_s - starts_s
        twin = None if section is None else restored(section, source="the profile")
        tries = min(3, len(self.space.knobs)) + sum(
            len(knob.values) - 1 for knob in self.space.knobs if knob.name not in LIVE
        )
        step_s = min(settings.step_s, max(MIN_STEP_S, left_s / (LEAST_STEPS + tries)))
        while True:
            workload = choose_workload(
                requests, settings.slo, unloaded, asked=settings.window, step_s=step_s
            )
            took_s = workload.step_s
            if twin is not None and section is not None:
                took_s = max(took_s, self._taken_s(workload, twin, section.hit_share))
            if LEAST_STEPS * took_s <= left_s:
                break
            if step_s <= MIN_STEP_S:
                least_s = LEAST_STEPS * took_s
                raise UsageError(
                    f"--budget {settings.budget_s:.0f}s is too small: engine starts take about "
                    f"{starts_s:.0f}s, {LEAST_STEPS} replays {least_s:.0f}s at least",
                    hint=f"Give at least --budget {math.ceil(least_s + starts_s)}s.",
                )
            step_s = max(MIN_STEP_S, step_s * SHORTER)
        self.bench.watcher.stage(
            f"a trial replays {', '.join(map(str, workload.windows))} of the trace; expect up to "
            f"{min((LEAST_STEPS + tries) * took_s, left_s):.0f}s of replay and {starts_s:.0f}s of "
            "engine starts"
        )
        return workload

    def _taken_s(self, workload: Workload, twin: StoredTwin, hits: float) -> float:
        """Return how long the knee takes for the windows, to the last token."""
        total_s = 0.0
        for window in workload.windows:
            traffic = traffic_of(
                workload.sent_in(window),
                hash_block_size=self.settings.trace_block_size,
                hit_share=hits,
                kv_tokens=twin.shape.kv_tokens,
            )
            took_s = window.replay_s
            if len(traffic):
                first_s = float(traffic.arrival_s[0]) - (window.start_s - window.run_in_s)
                cap = number(self.knee[CAP])
                replay = simulate(traffic, twin.law, twin.shape, max_num_seqs=cap)
                took_s = max(took_s, first_s + replay.duration_s)
            total_s += took_s
        return total_s

    # The twin

    def _weigh(self, *, first_look: bool = False) -> None:
        """Fit the twin to the first looks, or to all that the search replayed: what the first looks
        saw too little of would pass for a gain."""
        done = self.done(RAMP, SEARCH)
        if first_look:
            done = done[:2]
        view = self.view(self.knee, done)
        self.model = None
        if view is None:
            return
        if view.is_believed:
            self.model = Model(view, self.plan.aim, self.knee)
        elif not any(str(view.doubt) in text for text in self.warnings):
            self.warnings.append(
                f"{view.doubt}: replays of the windows decided alone; a quieter machine lets the "
                "twin help"
            )

    def view(
        self,
        one: Configuration,
        done: Sequence[Done],
        caps: Collection[int] = (),
        *,
        printed: bool = False,
    ) -> Forecast | None:
        """Return the twin of the engines that share what needs a restart with a configuration; None
        without any iteration. Only what is ``printed`` is evaluated at every cap."""
        workload, settings, facts = self.workload, self.settings, self.facts(one)
        alike = [each for each in done if not each.failed and is_live(each.configuration, one)]
        segments, seen, sent, free_s = list[Segment](), [], [], 0.0
        for each in alike:
            tokens = number(each.configuration[TOKENS])
            for place, replay in enumerate(each.replays):
                start_s = max(free_s, replay.start_s)
                free_s = start_s + replay.elapsed_s
                if len(replay.iterations):
                    segments.append(Segment(replay.iterations, start_s, each.engine))
                if len(replay.requests) and not replay.ruled_out:
                    seen.append(observed(replay, max_num_batched_tokens=tokens))
                if each.purpose not in {RAMP, RAISED} and replay.cut is None:
                    sent.append((workload.sent_in(each.windows[place]), replay))
        if not segments:
            return None
        own = {**facts.arguments, TOKENS: one[TOKENS]}
        return forecast(
            segments,
            seen,
            requests=workload.twin_requests,
            length_s=workload.twin_length_s,
            hash_block_size=settings.trace_block_size,
            facts=replace(facts, arguments=own),
            unloaded=workload.unloaded,
            slo=workload.slo,
            caps=sorted({*doubling(settings.ceiling), number(one[CAP]), *caps}),
            requirements=settings.requirements,
            headroom=settings.headroom,
            seed=settings.seed,
            hit_share=hit_share(
                sent,
                hash_block_size=settings.trace_block_size,
                kv_tokens=shape_of(facts).kv_tokens,
            ),
            printed=printed,
        )

    def facts(self, one: Configuration) -> EngineFacts:
        """Return the facts of the newest engine that was built for exactly this, or else of one
        with these arguments."""
        starts = [start for start in self.evidence.starts() if start.key == restart_key(one)]
        exact = [
            start
            for start in starts
            if start.max_num_seqs == one[CAP] and start.facts.max_num_batched_tokens == one[TOKENS]
        ]
        return (exact or starts)[-1].facts

    # The end

    def _pairs(self, done: Sequence[Done]) -> list[tuple[Measurement, Measurement]]:
        """Return (knee, refined), pair by pair."""
        found = []
        for first, second in zip(done[::2], done[1::2], strict=False):
            by_side = {half.purpose: self._numbers(half) for half in (first, second)}
            found.append((by_side[KNEE], by_side[REFINED]))
        return found

    def _serves_with_less(self, one: Configuration) -> bool:
        """Whether the refined one has less memory, and kept its KV cache off the limit."""
        seen = self._pairs(self.done(REFINED, KNEE))
        return frees(one, self.knee) and all(has_room(refined) for _, refined in seen)

    def _proof(self, one: Configuration, pairs: int) -> PairedResult:
        done = self.done(REFINED, KNEE)
        forecasts = {}
        if self.model is not None and self.model.tells(one):
            here, there = self.model.numbers(one), self.model.numbers(self.knee)
            gains = {name: aim.gain(here, there) for name, aim in AIMS.items()}
            forecasts = {name: gain for name, gain in gains.items() if gain is not None}
        ratios = ratios_of(self._pairs(done), forecasts)
        accepted = None
        if len(done) == 2 * pairs:
            less = self._serves_with_less(one)
            accepted = acceptance(self.plan.aim, ratios, frees_memory=less)
        return PairedResult(ratios, accepted, len(done) // 2)

    def _outcome(self, one: Configuration, reason: str, confidence: float) -> SweepOutcome:
        """Return the refined choice as a sweep would have found it."""
        workload, cap = self.workload, number(one[CAP])
        alone = [replay for done in self.done(ALONE) for replay in done.replays]
        above = [replay for done in self.done(RAISED) for replay in done.replays]
        confirmed = measurement_of(alone, workload.slo)
        raised = measurement_of(above, workload.slo) if above else None
        tried = {
            number(done.configuration[CAP])
            for done in self.done(SEARCH)
            if is_live(done.configuration, one)
        }
        view = self.view(one, self.done(), tried, printed=True)
        if view is not None and not view.is_believed:
            view = None
        interval, checks = (cap, cap), _unchecked(self.settings.requirements)
        curve: tuple[CurvePoint, ...] = (CurvePoint(confirmed, confirmed, "measured", {}, {}),)
        if view is not None:
            low, high = view.weighed.interval
            interval, checks = (min(low, cap), max(high, cap)), view.weighed.bounds.checks(cap)
            curve = _curve(view, confirmed)
        kind = self.plan.profile.decision.verdict
        verdict = Verdict(kind, cap, interval, confidence, reason, requirements=checks)
        facts = self.facts(one)
        return SweepOutcome(
            conclusion=Conclusion(
                with_measured(verdict, confirmed, raised), curve, view, by_twin=view is not None
            ),
            slo=workload.slo,
            part=workload.part,
            windows=workload.windows,
            arrival_rate_rps=workload.arrival_rate_rps,
            confirmed=confirmed,
            with_headroom=raised,
            predictions=() if view is None else predictions_of(view, cap),
            checked=None,
            facts=facts,
            ladder_engine=facts.engine,
            starts_s=self.evidence.starts_s(),
            replay_s=self.evidence.replay_s(),
            dropped={"over_max_model_len": self.dropped} if self.dropped else {},
            warnings=(),
        )


def _unchecked(requirements: Sequence[Requirement]) -> tuple[RequirementCheck, ...]:
    return tuple(RequirementCheck(one, None) for one in requirements)


def _curve(view: Forecast, measured: Measurement) -> tuple[CurvePoint, ...]:
    """Return the curve of max_num_seqs at the refined arguments."""
    caps, chosen = view.weighed.samples.caps, measured.max_num_seqs
    below = {high: low for low, high in pairwise(caps)}
    return tuple(
        CurvePoint(
            numbers=view.measurement(cap),
            measured=measured if cap == chosen else None,
            source="both" if cap == chosen else "twin",
            intervals=view.intervals(cap),
            changes=view.changes(below[cap], cap) if cap in below else {},
        )
        for cap in caps
    )


def unloaded_of(profile: ServingProfile) -> Unloaded:
    """Return what an idle engine did, as far as the profile tells: how long windows drain."""
    step = profile.curve[0]
    numbers = step.measured or step
    ttft, tpot = numbers.ttft_ms, numbers.tpot_ms
    return Unloaded(
        ttft_s=0.0 if ttft is None or tpot is None else min(ttft.p50, 5 * tpot.p50) / 1e3,
        ttft_s_per_input_token=0.0,
        tpot_s=0.0 if tpot is None else tpot.p50 / 1e3,
    )


def windows_of_pairs(workload: Workload, pairs: int) -> tuple[tuple[Window, ...], ...]:
    """Return the windows of each pair: as many and as long as the search's, evenly spaced over the
    requests from a random start, so that together they stand for all of the traffic.

    They overlap where the part has no room for all; each pair has the search's where it has none
    for two of them.
    """
    part, own = workload.part, workload.windows
    count, each_s = pairs * len(own), sum(one.replay_s for one in own)
    if 2 * each_s > part.length_s:
        return (own,) * pairs
    has_room = pairs * each_s <= part.length_s
    offset = np.random.default_rng(0).uniform()
    requests, free_s = workload.requests, part.begin_s
    found: list[list[Window]] = [[] for _ in range(pairs)]
    for place in range(count):
        like = own[place // pairs]
        at_s = requests[int(len(requests) * (place + offset) / count)].arrival_s
        start_s = min(max(at_s, free_s, part.begin_s + like.run_in_s), part.end_s - like.length_s)
        free_s = start_s + like.length_s if has_room else part.begin_s
        found[place % pairs].append(replace(like, start_s=start_s, weight=1.0))
    return tuple(map(tuple, found))


def is_live(one: Configuration, other: Configuration) -> bool:
    """Whether one engine can serve both."""
    return restart_key(one) == restart_key(other)


def broken_by(measured: Measurement, requirements: Sequence[Requirement]) -> float:
    """Return by how much of its limit a trial misses what it misses most of what is required at the
    recorded load; less than any deficit where it misses nothing."""
    misses = [
        one.miss(value)
        for one in requirements
        if not one.at_headroom and (value := one.value_in(measured)) is not None
    ]
    most = max(misses, default=0.0)
    return most if most > 0 else -math.inf


def has_room(measured: Measurement) -> bool:
    """Whether the KV cache was off its limit: never so full, and nobody preempted."""
    usage = measured.kv_cache_usage
    return measured.preemptions == 0 and (usage is None or usage.peak < AT_LIMIT)


def reason_of(plan: RefinePlan, one: Configuration, paired: PairedResult | None) -> str:
    """Return the sentence that says what was gained, with its intervals, or why nothing was."""
    decision, knee = plan.profile.decision, plan.space.knee
    before = decision.reason.partition(THEN_REFINED)[0]
    if paired is None:
        return f"{before}{THEN_REFINED}nothing better was found"
    changed = ", ".join(
        f"{name} {_shown(knee.get(name))} -> {_shown(value)}"
        for name, value in one.items()
        if value != knee.get(name)
    )
    over = f"over {paired.pairs} pairs of replays in turns: " + ", ".join(
        map(str, paired.ratios.values())
    )
    if paired.accepted is not None:
        is_memory = paired.accepted.of == MEMORY_AIM
        what = "serves as well with less memory" if is_memory else "against it"
        return (
            f"refined from the {decision.verdict} at {decision.max_num_seqs}: {changed}; {what} "
            f"{over}"
        )
    goodput = paired.ratios.get(GOODPUT.name)
    better = [aim for aim in proving(plan.aim) if aim.name in paired.ratios
              and paired.ratios[aim.name].is_better]  # fmt: skip
    why = f"no gain of {changed} is proven"
    if better and goodput is not None and goodput.low < NOT_LOST:
        why = (
            f"{changed} gains in {better[0].text}, but may lose over {1 - NOT_LOST:.0%} of goodput "
            f"({goodput.low - 1:+.2%} at worst)"
        )
    return f"{before}{THEN_REFINED}{why} {over}"


def unlike(profile: ServingProfile, workload: Workload) -> str | None:
    """Say that a trace brings another load here than where it was tuned for; None where it is the
    same, or the windows are not."""
    here, there = workload.arrival_rate_rps, profile.validity.arrival_rate_rps
    if str(workload.part) != profile.validity.window or abs(math.log(here / there)) < SAME_LOAD:
        return None
    return (
        f"{here:.2f} requests/s of this trace arrive here, {there:.2f} where the profile was "
        "tuned: give the --replicas and --router of its sweep"
    )


def _shown(value: object) -> str:
    return "default" if value is None else str(value)
