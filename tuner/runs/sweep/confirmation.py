"""The confirming replays: predicted before they begin, checked after, and what stands then."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.replay.records import ttft_s
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build
from tuner.runs.events import PredictedReplay
from tuner.runs.evidence import CONFIRMING, Evidence
from tuner.runs.measure import Trial
from tuner.runs.sweep.conclusion import Basis, Conclusion, by_windows, restated
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import HALF, PRINTED_DRAWS
from tuner.traffic.sampling import unseen_windows
from tuner.traffic.scaling import scale_load
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload
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
    """Whether it was of windows that the ladder did not replay."""

    predicted: Check
    """What was predicted before it began; without numbers where nothing was."""

    at_own_speed: Check
    """The twin at the speed that the engine had."""

    ttft_errors: tuple[float, ...] = ()
    tpot_errors: tuple[float, ...] = ()
    """Log of measured / predicted mean of each unseen window."""


@dataclass(slots=True)
class Confirmation:
    """The choice on an engine of its own: at the recorded load, in windows that the ladder did not
    replay; with headroom, in those that it did."""

    bench: Bench
    basis: Basis
    conclusion: Conclusion
    build: Build
    left_s: Callable[[], float]
    """Returns what is left of the budget."""

    affords_headroom: Callable[[], bool] = lambda: True

    def next_trial(self) -> Trial | None:
        """Return the next window, as far as the budget goes."""
        settings, workload, evidence = self.basis.settings, self.basis.workload, self.basis.evidence
        cap = self.conclusion.verdict.max_num_seqs
        is_overloaded = self.conclusion.verdict.kind == "overloaded"
        floor = 0.0 if is_overloaded else HALF
        for purpose, load in zip(CONFIRMING, (1.0, settings.headroom), strict=True):
            is_raised = purpose == "headroom"
            if is_raised and (load <= 1.0 or is_overloaded):
                return None
            windows = workload.windows if is_raised else self._windows()
            number = len(evidence.confirming(purpose, cap))
            if number == len(windows):
                continue
            if is_raised and not number and not self.affords_headroom():
                return None  # the twin says what it would be
            if self._replays_left_s() < windows[number].replay_s:
                return None
            return Trial(
                purpose=purpose,
                build=self.build,
                cap=cap,
                windows=windows[number : number + 1],
                first=number,
                sent=lambda window, load=load: raised(workload, window, load, settings.seed),  # type: ignore[misc]
                rule=lambda *_: (CutRule(workload.slo, floor, budget_s=self.left_s()), None),
                slo=workload.slo,
            )
        return None

    def _replays_left_s(self) -> float:
        """Return what is left of the budget for replays once the confirming engine is up."""
        is_up, build = self.bench.build == self.build, self.build
        start_s = self.basis.evidence.start_needed_s(build.purpose, build.max_num_seqs)
        return self.left_s() - (0.0 if is_up else start_s)

    def _windows(self) -> tuple[Window, ...]:
        """Return what is replayed at the recorded load. What the twin predicts of it is on disk
        before the replay begins."""
        view, cap = self.conclusion.view, self.conclusion.verdict.max_num_seqs
        prediction = predicted_at(self.basis.evidence, cap)
        if prediction is None and view is not None and self.conclusion.by_twin:
            prediction = predicted_replay(self.basis, view, cap, most_s=self._replays_left_s())
            self.bench.journal.add(prediction)
        return self.basis.workload.windows if prediction is None else prediction.windows


def raised(workload: Workload, window: Window, load: float, seed: int) -> list[TraceRequest]:
    """Return what a window sends at so many times the load."""
    sent = workload.sent_in(window)
    return sent if load == 1.0 else scale_load(sent, load, seed=seed)


# The prediction


def predicted_replay(basis: Basis, view: Forecast, cap: int, *, most_s: float) -> PredictedReplay:
    """Choose what the confirming engine replays in this time, windows that the ladder did not see
    where there are any, and predict it."""
    workload = basis.workload
    windows, unseen = workload.windows, True
    if any(begun.windows for begun in basis.evidence.begun()):
        others = unseen_windows(workload.requests, windows)
        windows, unseen = others or windows, others is not None
    windows = tuple(_affordable(windows, (1 - DRAIN_SHARE) * most_s))
    numbers, means = predicted_numbers(basis, view, windows, cap) if windows else ({}, [])
    return PredictedReplay(
        max_num_seqs=cap, windows=windows, unseen=unseen, slo=workload.slo, numbers=numbers,
        means=tuple(means),
    )  # fmt: skip


def _affordable(windows: Sequence[Window], most_s: float) -> Iterator[Window]:
    """Yield as much of these windows as there is time for, the last one shortened."""
    for window in windows:
        length_s = min(window.length_s, most_s - window.run_in_s)
        if length_s < min(window.length_s, LEAST_WINDOW_S):
            return
        yield replace(window, length_s=length_s)
        most_s -= window.run_in_s + length_s


def predicted_at(evidence: Evidence, cap: int) -> PredictedReplay | None:
    """Return what was predicted of the replay at a cap; None where nothing was."""
    events = evidence.journal.of(PredictedReplay)
    return next((event for event in events if event.max_num_seqs == cap), None)


def predicted_numbers(
    basis: Basis, view: Forecast, windows: Sequence[Window], cap: int
) -> tuple[dict[str, Predicted], list[tuple[float, float]]]:
    """Return what the twin says of a replay of these windows, and of each the mean TTFT and TPOT in
    seconds."""
    planned = [
        planned_window(
            window,
            basis.workload.sent_in(window),
            hash_block_size=basis.settings.trace_block_size,
            hit_share=view.hit_share,
            kv_tokens=view.shape.kv_tokens,
        )
        for window in windows
    ]
    laws = view.fitted.draws(PRINTED_DRAWS)
    return predict(planned, laws, view.machine, view.shape, basis.workload.slo, max_num_seqs=cap)


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
    replays = [each for each in basis.evidence.confirming("confirm", cap) if not each.ruled_out]
    if view is None or not replays:
        return None
    by_speed = check_at_own_speed(replays, slo, view.fitted.law, view.shape, front_end)
    prediction = predicted_at(basis.evidence, cap)
    if prediction is None or len(replays) < len(prediction.windows):
        return CheckRecord(unseen=False, predicted=Check(()), at_own_speed=by_speed)
    numbers = prediction.numbers
    if prediction.slo != slo:  # of another SLO than that of the run only attainment is another
        numbers, _ = predicted_numbers(basis, view, prediction.windows, cap)
    ttft, tpot = list[float](), list[float]()
    for replay, (ttft_mean_s, tpot_mean_s) in zip(replays, prediction.means, strict=True):
        counted = as_sent(replay).counted
        ttft.append(_log_ratio(ttft_s(replay.requests)[counted], ttft_mean_s))
        tpot.append(_log_ratio(replay.requests["tpot_s"][counted], tpot_mean_s))
    errors = (tuple(ttft), tuple(tpot)) if prediction.unseen else ((), ())
    check = check_predicted(numbers, replays, slo)
    return CheckRecord(prediction.unseen, check, by_speed, *errors)


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
    view, verdict = conclusion.view, conclusion.verdict
    if view is None or record is None or not conclusion.by_twin:
        return conclusion
    cap = verdict.max_num_seqs
    if not record.at_own_speed.failed:
        machine = replace(
            view.machine,
            ttft_errors=record.ttft_errors,
            tpot_errors=record.tpot_errors,
            front_end=front_end,
        )
        conclusion = restated(conclusion, basis, replace(view, machine=machine))
        verdict, view = conclusion.verdict, replace(view, machine=machine)
        if front_end is not None and verdict.requirements:
            verdict = replace(verdict, requirements=view.bounds(cap).checks(cap))
        return replace(conclusion, verdict=verdict)
    if conclusion.is_proven:
        return replace(conclusion, view=None, by_twin=False)
    doubt = f"the twin was wrong at the engine's own speed ({record.at_own_speed.worst.words})"
    if basis.evidence.rungs():
        return by_windows(basis, view, doubt=doubt)
    reason = f"inconclusive, {cap} is the twin's choice: {doubt} in the replay that verifies it"
    return replace(conclusion, verdict=replace(verdict, kind="inconclusive", reason=reason))
