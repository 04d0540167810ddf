"""The outcome of a sweep: what was concluded and confirmed, and what is promised of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from tuner.replay.measure import Measurement, measure
from tuner.runs.evidence import Evidence
from tuner.runs.outcome import (
    Conclusion,
    InUse,
    Prediction,
    SweepOutcome,
    prediction_of,
    predictions_of,
    with_measured,
)
from tuner.runs.sweep.conclusion import Basis
from tuner.runs.sweep.confirmation import after_check, check_of, front_end_of
from tuner.runs.sweep.sweep_warnings import of_the_whole_run
from tuner.twin.forecast import Forecast
from tuner.twin.verdict import Verdict
from tuner.twin.windows import never_binds


def outcome_of(
    conclusion: Conclusion,
    basis: Basis,
    *,
    dropped: dict[str, int],
    warnings: Sequence[str],
    unconfirmed: str | None = None,
) -> SweepOutcome:
    """Return all that was found, the confirming replays included. ``unconfirmed`` is why there are
    none."""
    evidence, workload = basis.evidence, basis.workload
    starts, facts = evidence.starts(), evidence.facts()
    front_end = front_end_of(conclusion, evidence)
    checked = check_of(conclusion, basis, front_end)
    failed = checked is not None and checked.predicted.failed
    after = after_check(conclusion, basis, checked, front_end)
    confirmed = _confirmed(after, basis, "confirm")
    with_headroom = _confirmed(after, basis, "headroom")
    busy = busy_in_words(evidence, after.view)
    verdict = _marked(with_measured(after.verdict, confirmed, with_headroom), busy)
    return SweepOutcome(
        conclusion=replace(after, verdict=verdict),
        slo=workload.slo,
        part=workload.part,
        windows=workload.windows,
        arrival_rate_rps=workload.arrival_rate_rps,
        confirmed=confirmed,
        with_headroom=with_headroom,
        front_end=front_end,
        predictions=() if failed else predictions(after),
        checked=checked,
        unconfirmed=unconfirmed,
        busy=busy,
        facts=facts,
        ladder_engine=starts[0].facts.engine,
        starts_s=evidence.starts_s(),
        replay_s=evidence.replay_s(),
        dropped=dropped,
        warnings=(
            *facts.cautions,
            *warnings,
            *([] if (late := evidence.lateness()) is None else [f"{late}: {LATE_IS_COUNTED}"]),
            *of_the_whole_run(conclusion, basis.settings),
        ),
    )


def _confirmed(conclusion: Conclusion, basis: Basis, purpose: str) -> Measurement | None:
    """Return what the choice gave in the confirming replays of a purpose; None without any."""
    replays = basis.evidence.confirming(purpose, conclusion.verdict.max_num_seqs)
    return measure(replays, basis.workload.slo) if replays else None


LATE_IS_COUNTED = "the times and their intervals have that in them"

SURE_ON_A_BUSY_MACHINE = 0.9
"""Most confidence in what was measured beside others: it is below the 0.95 that counts as sure."""


def busy_in_words(evidence: Evidence, view: Forecast | None) -> str | None:
    """Say by what it is seen that the machine was busy during a run; None where it was not."""
    if (why := next(evidence.disturbances(), None)) is not None:
        return why
    if view is None:
        return None
    low, high = view.fitted.speed_range
    return None if low == high else f"its speed changed by {high / low - 1:.0%} between replays"


def _marked(verdict: Verdict, busy: str | None) -> Verdict:
    """Return the verdict of a busy machine: the cap may well be right, but it is not sure."""
    if busy is None:
        return verdict
    return replace(
        verdict,
        confidence=min(verdict.confidence, SURE_ON_A_BUSY_MACHINE),
        reason=f"{verdict.reason}; measured on a busy machine: {busy}",
    )


def predictions(conclusion: Conclusion) -> tuple[Prediction, ...]:
    """Return what the twin promises of the choice, at the recorded load and with headroom."""
    view, cap = conclusion.view, conclusion.verdict.max_num_seqs
    return () if view is None or not conclusion.by_twin else predictions_of(view, cap)


LAW_REACH = 2.0
"""Times the largest batch that was timed, up to which the law is asked about a larger cap: it rises
there as in its upper half."""


def in_use(conclusion: Conclusion, cap: int, source: Literal["base", "default"]) -> InUse:
    """Return the cap that is set now with what it gives the same traffic: predicted by the twin, or
    as replayed. Where neither covers so large a cap, the largest tried stands for it."""
    top, view = conclusion.curve[-1].numbers, conclusion.view
    most = top.max_num_seqs
    unfilled = never_binds(top) and cap >= top.running_peak
    at, numbers = cap, None
    if view is not None and conclusion.by_twin:
        # as the choice itself, of which an overloaded server's profile shows the curve
        if conclusion.verdict.kind == "overloaded":
            predicted = view.measurement
        else:
            predicted = partial(_promised, view)
        numbers = predicted(min(cap, most) if unfilled else cap)
        unfilled = never_binds(numbers) if cap > most else unfilled
        if cap > most and numbers.running_peak > LAW_REACH * view.fitted.extrapolated_from:
            at, numbers = most, predicted(most)
    else:
        measured = {step.numbers.max_num_seqs: step.numbers for step in conclusion.curve}
        numbers = measured.get(most if unfilled else cap)
        if numbers is None and cap > most and top.cut is None:
            at, numbers = most, top
    return InUse(cap, source, never_filled=unfilled, numbers_at=at, numbers=numbers)


def _promised(view: Forecast, cap: int) -> Measurement:
    return prediction_of(view, cap).numbers
