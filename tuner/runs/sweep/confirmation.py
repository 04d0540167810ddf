"""The confirming replays: predicted before they begin, checked after, and what stands then."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.replay.records import ttft_s
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, ToReplay, Trial
from tuner.runs.events import PredictedReplay
from tuner.runs.evidence import Evidence
from tuner.runs.sweep.conclusion import Basis, Conclusion, by_windows, restated
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import HALF, PRINTED_DRAWS
from tuner.traffic.sampling import unseen_windows
from tuner.traffic.scaling import scale_load
from tuner.traffic.window import Window
from tuner.twin.check import (
    Check,
    PlannedWindow,
    Predicted,
    as_sent,
    check_at_own_speed,
    check_predicted,
    predict,
)
from tuner.twin.forecast import Forecast
from tuner.twin.front_end import FrontEnd, contention_of, fit_front_end, passages_of
from tuner.twin.simulation import traffic_of

DRAIN_SHARE = 0.1
"""Of the time of a replay, for what is unfinished when the last request was sent."""

LEAST_WINDOW_S = 8.0
"""Less of a window, its run-in left out, confirms nothing."""


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """The twin against the confirming replay."""

    unseen: bool
    """Whether it was of a window that the ladder did not replay."""

    predicted: Check
    """What was predicted before it began; without numbers where nothing was."""

    at_own_speed: Check
    """The twin at the speed that the engine had."""

    ttft_errors: tuple[float, ...] = ()
    tpot_errors: tuple[float, ...] = ()
    """Log of measured / predicted mean of an unseen window."""


@dataclass(slots=True)
class Confirmation:
    """The choice on an engine of its own: at the recorded load, in a window that the ladder did not
    replay; with headroom, in the one that it did."""

    bench: Bench
    basis: Basis
    conclusion: Conclusion
    build: Build
    left_s: Callable[[], float]
    """Returns what is left of the budget."""

    affords_headroom: Callable[[], bool] = lambda: True

    def next_trial(self) -> Trial | None:
        """Return the next replay, as far as the budget goes."""
        settings, workload, evidence = self.basis.settings, self.basis.workload, self.basis.evidence
        cap = self.conclusion.verdict.max_num_seqs
        is_overloaded = self.conclusion.verdict.kind == "overloaded"
        window, load, purpose = self._window(), 1.0, "confirm"
        if evidence.confirming(purpose, cap):
            if settings.headroom <= 1.0 or is_overloaded or evidence.confirming("headroom", cap):
                return None
            if not self.affords_headroom():
                return None  # the twin says what it would be
            (window,), load, purpose = workload.windows, settings.headroom, "headroom"
        if window is None or self._replays_left_s() < window.replay_s:
            return None
        sent = workload.sent_in(window)
        sent = sent if load == 1.0 else scale_load(sent, load, seed=settings.seed)
        floor = 0.0 if is_overloaded else HALF
        rule = CutRule(workload.slo, floor, budget_s=self.left_s())
        replay = ToReplay(window, sent, rule)
        return Trial(purpose=purpose, build=self.build, cap=cap, replay=replay)

    def _replays_left_s(self) -> float:
        """Return what is left of the budget for replays once the confirming engine is up."""
        is_up, build = self.bench.build == self.build, self.build
        start_s = self.basis.evidence.start_needed_s(build.purpose, build.max_num_seqs)
        return self.left_s() - (0.0 if is_up else start_s)

    def _window(self) -> Window | None:
        """Return what is replayed at the recorded load; None without time for it. What the twin
        predicts of it is on disk before the replay begins."""
        view, cap = self.conclusion.view, self.conclusion.verdict.max_num_seqs
        prediction = predicted_at(self.basis.evidence, cap)
        if prediction is None:
            window, unseen = self._affordable()
            if window is None or view is None or not self.conclusion.by_twin:
                return window
            numbers, means_s = predicted_numbers(self.basis, view, window, cap)
            prediction = PredictedReplay(
                max_num_seqs=cap, window=window, unseen=unseen, slo=self.basis.workload.slo,
                numbers=numbers, means_s=means_s,
            )  # fmt: skip
            self.bench.journal.add(prediction)
        return prediction.window

    def _affordable(self) -> tuple[Window | None, bool]:
        """Return as much of a window as there is time for, and whether the ladder did not see it:
        where there is any of those."""
        workload, windows, unseen = self.basis.workload, self.basis.workload.windows, True
        if any(begun.window for begun in self.basis.evidence.begun()):
            others = unseen_windows(workload.requests, windows)
            windows, unseen = others or windows, others is not None
        (window,) = windows
        most_s = (1 - DRAIN_SHARE) * self._replays_left_s() - window.run_in_s
        if most_s < min(window.length_s, LEAST_WINDOW_S):
            return None, unseen
        return replace(window, length_s=min(window.length_s, most_s)), unseen


# The prediction


def predicted_at(evidence: Evidence, cap: int) -> PredictedReplay | None:
    """Return what was predicted of the replay at a cap; None where nothing was."""
    events = evidence.journal.of(PredictedReplay)
    return next((event for event in events if event.max_num_seqs == cap), None)


def predicted_numbers(
    basis: Basis, view: Forecast, window: Window, cap: int
) -> tuple[dict[str, Predicted], tuple[float, float]]:
    """Return what the twin says of a replay of this window, and the mean TTFT and TPOT in
    seconds."""
    planned = planned_window(
        window,
        basis.workload.sent_in(window),
        hash_block_size=basis.settings.trace_block_size,
        hit_share=view.hit_share,
        kv_tokens=view.shape.kv_tokens,
    )
    laws, slo = view.fitted.draws(PRINTED_DRAWS), basis.workload.slo
    numbers, (means_s,) = predict([planned], laws, view.machine, view.shape, slo, max_num_seqs=cap)
    return numbers, means_s


def planned_window(
    window: Window,
    sent: Sequence[TraceRequest],
    *,
    hash_block_size: int,
    hit_share: float,
    kv_tokens: int,
) -> PlannedWindow:
    """Return a window as it is sent, for the twin to predict."""
    traffic = traffic_of(
        sent, hash_block_size=hash_block_size, hit_share=hit_share, kv_tokens=kv_tokens
    )
    aborted_s = [each.arrival_s for each in sent if each.status == "aborted"]
    counted = (traffic.arrival_s >= window.start_s) & ~np.isin(traffic.arrival_s, aborted_s)
    span_s = (window.start_s, window.start_s + window.length_s)
    return PlannedWindow(traffic, counted, span_s)


# The check


def front_end_of(conclusion: Conclusion, evidence: Evidence) -> FrontEnd | None:
    """Return the front end of the server that confirmed the choice, by its probes alone where it
    replayed nothing. None where that was no server, or showed too little."""
    view, replays = conclusion.view, evidence.confirming("confirm", conclusion.verdict.max_num_seqs)
    if evidence.facts().engine != "serve" or not replays:
        return None if view is None else view.machine.front_end
    logs = [replay.iterations for replay in replays]
    contention = 1.0 if view is None else contention_of(view.fitted.law, logs)
    passages = [passages_of(replay.requests) for replay in replays]
    return fit_front_end([*evidence.probed(), *passages], contention=contention)


def check_of(
    conclusion: Conclusion, basis: Basis, front_end: FrontEnd | None
) -> CheckRecord | None:
    """Return the twin against the confirming replay; None without a replay or without a twin.
    ``front_end`` is what its requests came through."""
    view, cap, slo = conclusion.view, conclusion.verdict.max_num_seqs, basis.workload.slo
    replays = basis.evidence.confirming("confirm", cap)
    if view is None or not replays:
        return None
    by_speed = check_at_own_speed(replays, slo, view.fitted.law, view.shape, front_end)
    prediction = predicted_at(basis.evidence, cap)
    if prediction is None:
        return CheckRecord(unseen=False, predicted=Check(()), at_own_speed=by_speed)
    numbers = prediction.numbers
    if prediction.slo != slo:  # of another SLO than that of the run only attainment is another
        numbers, _ = predicted_numbers(basis, view, prediction.window, cap)
    check = check_predicted(numbers, replays, slo)
    if not prediction.unseen:
        return CheckRecord(unseen=False, predicted=check, at_own_speed=by_speed)
    seen, (ttft_mean_s, tpot_mean_s) = replays[0].requests, prediction.means_s
    seen = seen[as_sent(replays[0]).counted]
    return CheckRecord(
        unseen=True,
        predicted=check,
        at_own_speed=by_speed,
        ttft_errors=(_log_ratio(ttft_s(seen), ttft_mean_s),),
        tpot_errors=(_log_ratio(seen["tpot_s"], tpot_mean_s),),
    )


def _log_ratio(measured_s: Floats, predicted_s: float) -> float:
    known_s = measured_s[~np.isnan(measured_s)]
    mean_s = float(known_s.mean()) if len(known_s) else math.nan
    return math.log(mean_s / predicted_s) if predicted_s > 0 and mean_s > 0 else 0.0


def after_check(
    conclusion: Conclusion, basis: Basis, record: CheckRecord | None, front_end: FrontEnd | None
) -> Conclusion:
    """Return the conclusion after the confirming replay.

    Where the scheduler model failed at the engine's own speed, the windows decide; without windows
    nothing does. What is required is compared behind the front end that the replay showed.
    """
    view, cap = conclusion.view, conclusion.verdict.max_num_seqs
    if view is None or record is None or not conclusion.by_twin:
        return conclusion
    if not record.at_own_speed.failed:
        machine = replace(
            view.machine,
            ttft_errors=record.ttft_errors,
            tpot_errors=record.tpot_errors,
            front_end=front_end,
        )
        view = replace(view, machine=machine)
        conclusion = restated(conclusion, basis, view)
        verdict = conclusion.verdict
        if front_end is not None and verdict.requirements:
            verdict = replace(verdict, requirements=view.bounds(cap).checks(cap))
        return replace(conclusion, verdict=verdict)
    if conclusion.is_proven:
        return replace(conclusion, view=None, promised=None)
    doubt = f"the twin was wrong at the engine's own speed ({record.at_own_speed.worst.words})"
    if basis.evidence.rungs():
        return by_windows(basis, view, doubt=doubt)
    reason = f"inconclusive, {cap} is the twin's choice: {doubt} in the replay that verifies it"
    verdict = replace(conclusion.verdict, kind="inconclusive", reason=reason)
    return replace(conclusion, verdict=verdict)
