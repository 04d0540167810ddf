"""The confirming replays: predicted before they begin, checked after, and what stands then.

A choice falls short with headroom where it serves fewer than the prediction's 95 % interval allows,
or breaks what is required there. The choice stays, and a warning names the next cap.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.replay.measure import Measurement, measure
from tuner.replay.records import Replay, ttft_s
from tuner.runs.events import PredictedReplay
from tuner.runs.evidence import Evidence
from tuner.runs.outcome import CheckRecord, Conclusion
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis, by_windows
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import PRINTED_DRAWS
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
from tuner.twin.verdict import BEFORE_THAT

DRAIN_SHARE = 0.1
"""Of the time of a replay, for what is unfinished when the last request was sent."""

LEAST_WINDOW_S = 8.0
"""Less of a window, its run-in left out, confirms nothing."""


def predicted_replay(basis: Basis, view: Forecast, cap: int, *, most_s: float) -> PredictedReplay:
    """Choose what the confirming engine replays in this time, windows that the ladder did not see
    where there are any, and predict it."""
    workload = basis.workload
    windows, unseen = workload.windows, True
    if basis.evidence.rungs():
        others = unseen_windows(workload.requests, workload.part, windows)
        windows, unseen = others or windows, others is not None
    windows = tuple(_affordable(windows, (1 - DRAIN_SHARE) * most_s))
    numbers, means = predicted_numbers(basis, view, windows, cap) if windows else ({}, [])
    return PredictedReplay(
        max_num_seqs=cap, windows=windows, unseen=unseen, slo=workload.slo, numbers=numbers,
        means=tuple(means),
    )  # fmt: skip


def _affordable(windows: Sequence[Window], most_s: float) -> Iterator[Window]:
    """Yield as much of these windows as there is time for, the last one shortened."""
    for one in windows:
        length_s = min(one.length_s, most_s - one.run_in_s)
        if length_s < min(one.length_s, LEAST_WINDOW_S):
            return
        yield replace(one, length_s=length_s)
        most_s -= one.run_in_s + length_s


def prediction_in(evidence: Evidence, cap: int) -> PredictedReplay | None:
    """Return what was predicted of the replay at a cap; None where nothing was."""
    events = evidence.journal.of(PredictedReplay)
    return next((one for one in events if one.max_num_seqs == cap), None)


def predicted_numbers(
    basis: Basis, view: Forecast, windows: Sequence[Window], cap: int
) -> tuple[dict[str, Predicted], list[tuple[float, float]]]:
    """Return what the twin says of a replay of these windows, and of each the mean TTFT and TPOT in
    seconds."""
    planned, laws = planned_for(view, basis, windows), view.fitted.draws(PRINTED_DRAWS)
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
    aborted_s = [one.arrival_s for one in sent if one.status == "aborted"]
    counted = (traffic.arrival_s >= window.start_s) & ~np.isin(traffic.arrival_s, aborted_s)
    span_s = (window.start_s, window.start_s + window.length_s)
    return PlannedWindow(traffic, counted, span_s, window.weight)


def raised(workload: Workload, window: Window, load: float, seed: int) -> list[TraceRequest]:
    """Return what a window sends at so many times the load."""
    sent = workload.sent_in(window)
    return sent if load == 1.0 else scale_load(sent, load, seed=seed)


def planned_for(
    view: Forecast, basis: Basis, windows: Sequence[Window], load: float = 1.0
) -> list[PlannedWindow]:
    """Return windows as they are sent at so many times the load, for the twin to predict."""
    workload, settings = basis.workload, basis.settings
    return [
        planned_window(
            window,
            raised(workload, window, load, settings.seed),
            hash_block_size=settings.trace_block_size,
            hit_share=view.hit_share,
            kv_tokens=view.shape.kv_tokens,
        )
        for window in windows
    ]


def front_end_of(conclusion: Conclusion, evidence: Evidence) -> FrontEnd | None:
    """Return the front end of the server that confirmed the choice, by its probes alone where it
    replayed nothing. None where that was no server, or told too little."""
    cap, view, facts = conclusion.verdict.max_num_seqs, conclusion.view, evidence.facts()
    replays = evidence.confirming("confirm", cap)
    if facts.engine != "serve" or not replays:
        return None if view is None else view.machine.front_end
    logs = [one.iterations for one in replays]
    contention = 1.0 if view is None else contention_of(view.fitted.law, logs)
    passages = [passages_of(one.requests) for one in replays]
    parts = [*evidence.probed(), *passages]
    return fit_front_end(parts, contention=contention)


def check_of(
    conclusion: Conclusion, basis: Basis, front_end: FrontEnd | None
) -> CheckRecord | None:
    """Return the twin against the confirming replay; None without a replay or without a twin.
    ``front_end`` is what its requests came through."""
    view, cap, slo = conclusion.view, conclusion.verdict.max_num_seqs, basis.workload.slo
    windows = _confirming_windows(basis.evidence, cap)
    if view is None or not windows:
        return None
    law = view.fitted.law
    by_speed = check_at_own_speed(windows, slo, law, view.shape, front_end)
    prediction = prediction_in(basis.evidence, cap)
    if prediction is None or len(windows) < len(prediction.windows):
        return CheckRecord(unseen=False, predicted=Check(()), at_own_speed=by_speed)
    numbers = prediction.numbers
    if prediction.slo != slo:  # of another SLO than that of the run only attainment is another
        numbers, _ = predicted_numbers(basis, view, prediction.windows, cap)
    errors = _errors_of(windows, prediction.means) if prediction.unseen else ((), ())
    return CheckRecord(prediction.unseen, check_predicted(numbers, windows, slo), by_speed, *errors)


def _confirming_windows(evidence: Evidence, cap: int) -> list[Replay]:
    """Return what was replayed to confirm a cap."""
    return [one for one in evidence.observed(confirming=True) if one.max_num_seqs == cap]


def _errors_of(
    windows: Sequence[Replay], means: Sequence[tuple[float, float]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return log(measured / predicted) of the mean TTFT and TPOT of each window, from the predicted
    means in seconds."""
    ttft, tpot = list[float](), list[float]()
    for one, (ttft_mean_s, tpot_mean_s) in zip(windows, means, strict=True):
        counted = as_sent(one).counted
        ttft.append(_log_ratio(ttft_s(one.requests)[counted], ttft_mean_s))
        tpot.append(_log_ratio(one.requests["tpot_s"][counted], tpot_mean_s))
    return tuple(ttft), tuple(tpot)


def _log_ratio(measured_s: Floats, predicted_s: float) -> float:
    known_s = measured_s[~np.isnan(measured_s)]
    mean_s = float(known_s.mean()) if len(known_s) else math.nan
    return math.log(mean_s / predicted_s) if predicted_s > 0 and mean_s > 0 else 0.0


def after_check(
    conclusion: Conclusion, basis: Basis, record: CheckRecord | None, front_end: FrontEnd | None
) -> Conclusion:
    """Return the conclusion after the confirming replay.

    Where the scheduler model failed at the engine's own speed, the windows decide; without windows
    nothing does. What is required is held to the front end that the replay showed.
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
        view = replace(view, machine=machine)
        if front_end is not None and verdict.requirements:
            verdict = replace(verdict, requirements=view.bounds(cap).checks(cap))
        return replace(conclusion, verdict=verdict, view=view)
    doubt = f"the twin was wrong at the engine's own speed ({record.at_own_speed.worst.words})"
    if basis.evidence.rungs():
        return by_windows(basis, view, doubt=doubt)
    reason = f"inconclusive, {cap} is the twin's choice: {doubt} in the replay that verifies it"
    verdict = replace(verdict, kind="inconclusive", reason=reason)
    return replace(conclusion, verdict=verdict)


def after_headroom(conclusion: Conclusion, basis: Basis) -> Conclusion:
    """Add a warning where the replay with headroom fell short of its prediction."""
    view, cap = conclusion.view, conclusion.verdict.max_num_seqs
    workload, replays = basis.workload, basis.evidence.confirming("headroom", cap)
    if view is None or not conclusion.by_twin or len(replays) < len(workload.windows):
        return conclusion
    measured = measure(replays, workload.slo)
    least = least_expected(view, basis, cap, front_end_of(conclusion, basis.evidence))
    shortfall = _shortfall(measured, least, basis.settings)
    if shortfall is None:
        return conclusion
    above = min((one for one in view.choice.eligible if one > cap), default=None)
    cure = "no larger cap may be chosen" if above is None else f"the next cap is {above}"
    verdict = conclusion.verdict
    warnings = (f"{shortfall}; {cure}; {BEFORE_THAT}", *verdict.warnings)
    return replace(conclusion, verdict=replace(verdict, warnings=warnings))


def _shortfall(seen: Measurement, least: float, settings: SweepSettings) -> str | None:
    """Return in what the measured headroom falls short; None where it does not."""
    broken = [
        one
        for one in settings.requirements
        if one.at_headroom
        and (value := one.value_in(seen)) is not None
        and not one.is_met_by(value)
    ]
    if seen.attainment_bound >= least and not broken:
        return None
    share = f"{'at most ' if seen.cut else ''}{seen.attainment_bound:.1%}"
    why = f"which breaks {broken[0]}" if broken else f"where the twin said {least:.1%} at least"
    return (
        f"at {settings.headroom:g} times the load {seen.max_num_seqs} served {share} of the "
        f"windows that were replayed, {why}"
    )


def least_expected(view: Forecast, basis: Basis, cap: int, front_end: FrontEnd | None) -> float:
    """Return the lower end of the attainment that is expected, in the windows that are replayed
    with headroom, at a cap.

    It is the end of a 95 % interval behind the front end that they come through, for an engine
    start that nobody has seen.
    """
    windows = planned_for(view, basis, basis.workload.windows, basis.settings.headroom)
    machine = replace(view.machine, front_end=front_end)
    laws = view.fitted.draws(PRINTED_DRAWS)
    found, _ = predict(windows, laws, machine, view.shape, view.slo, max_num_seqs=cap)
    return found["attainment"].low if "attainment" in found else 0.0
