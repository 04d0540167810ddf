"""The outcome of a sweep or a refinement, before it is written anywhere. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tuner.engines.seam import EngineFacts
from tuner.errors import RunError
from tuner.replay.numbers import Measurement, measure
from tuner.runs.events import EngineStart
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import (
    Basis,
    Conclusion,
    CurvePoint,
    Prediction,
    conclude,
    predictions_of,
)
from tuner.runs.sweep.confirmation import CheckRecord, after_check, check_of, front_end_of
from tuner.runs.sweep.sweep_warnings import left_out
from tuner.trace.trace import TraceRequest
from tuner.traffic.workload import Workload, keep_what_fits, slo_for, workload_of
from tuner.twin.forecast import Forecast
from tuner.twin.front_end import FrontEnd
from tuner.twin.verdict import Verdict
from tuner.twin.windows import never_binds

SURE_ON_A_BUSY_MACHINE = 0.9
"""Most confidence in what was measured beside others: it is below the 0.95 that counts as sure."""

LAW_REACH = 2.0
"""Times the largest batch that was timed, up to which the law predicts a larger cap: it rises there
as in its upper half."""


@dataclass(frozen=True, slots=True)
class InUse:
    """The cap that is set where the traffic is served now, and what that gives."""

    max_num_seqs: int
    source: Literal["base", "default"]
    """The file after ``--base``, or vLLM's own default."""

    never_filled: bool
    """Whether the traffic never fills so many slots."""

    numbers_at: int
    """The cap that the numbers are of: the largest tried where it stands for more."""

    numbers: Measurement | None
    """None where nothing is known of so many slots."""


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """The result of a run."""

    conclusion: Conclusion
    workload: Workload
    confirmed: Measurement | None
    """The chosen cap on its own fresh engine at the recorded load."""

    with_headroom: Measurement | None
    """The same at ``headroom`` times the load."""

    predictions: tuple[Prediction, ...]
    """At the recorded load and with headroom; none where the twin is not believed, or its
    prediction of the confirming replay failed: then that replay is the promise."""

    checked: CheckRecord | None
    """None where nothing confirmed, or there is no twin."""

    facts: EngineFacts
    """Of the confirming engine where there was one, else of the ladder's."""

    starts: tuple[EngineStart, ...]
    replay_s: float
    dropped: int
    """Requests that are longer than the engine takes."""

    warnings: tuple[str, ...]
    unconfirmed: str | None = None
    """Why no fresh engine confirmed the choice; None where one did, or none was to."""

    busy: str | None = None
    """By what it was seen that the machine was busy; None where it was not."""

    in_use: InUse | None = None
    """None where nothing is known of what is set now."""

    front_end: FrontEnd | None = None
    """What stands before the confirming engine; None where that was no server."""

    @property
    def verdict(self) -> Verdict:
        return self.conclusion.verdict

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        return self.conclusion.curve

    @property
    def chosen(self) -> CurvePoint:
        return self.conclusion.step(self.verdict.max_num_seqs)

    @property
    def starts_s(self) -> float:
        return sum(start.facts.start_s for start in self.starts)


def outcome_of(  # noqa: PLR0913 - what is known besides
    conclusion: Conclusion,
    basis: Basis,
    *,
    dropped: int = 0,
    warnings: Sequence[str] = (),
    unconfirmed: str | None = None,
    facts: EngineFacts | None = None,
) -> SweepOutcome:
    """Return the outcome, the confirming replays included. ``unconfirmed`` is why there are
    none; ``facts`` are of the engine that the choice is for, where it is not the newest."""
    evidence, workload, facts = basis.evidence, basis.workload, facts or basis.evidence.facts()
    front_end = front_end_of(conclusion, evidence)
    checked = check_of(conclusion, basis, front_end)
    after = after_check(conclusion, basis, checked, front_end)
    cap, view = after.verdict.max_num_seqs, after.view
    confirmed, with_headroom = (
        measure(replays, workload.slo) if (replays := evidence.confirming(purpose, cap)) else None
        for purpose in ("confirm", "headroom")
    )
    busy = busy_in_words(evidence, view)
    verdict = with_measured(after.verdict, confirmed, with_headroom)
    if busy is not None:  # the cap may well be right, but it is not sure
        verdict = replace(
            verdict,
            confidence=min(verdict.confidence, SURE_ON_A_BUSY_MACHINE),
            reason=f"{verdict.reason}; measured on a busy machine: {busy}",
        )
    is_predicted = view is not None and after.by_twin and not (checked and checked.predicted.failed)
    if (late := evidence.lateness()) is not None:
        warnings = [*warnings, f"{late}: the times and their intervals include that"]
    return SweepOutcome(
        conclusion=replace(after, verdict=verdict),
        workload=workload,
        confirmed=confirmed,
        with_headroom=with_headroom,
        predictions=predictions_of(view, cap) if view is not None and is_predicted else (),
        checked=checked,
        facts=facts,
        starts=tuple(evidence.starts()),
        replay_s=evidence.replay_s(),
        dropped=dropped,
        warnings=(*facts.cautions, *warnings),
        unconfirmed=unconfirmed,
        busy=busy,
        front_end=front_end,
    )


def busy_in_words(evidence: Evidence, view: Forecast | None) -> str | None:
    """Say by what it is seen that the machine was busy during a run; None where it was not."""
    if (why := next(evidence.disturbances(), None)) is not None:
        return why
    if view is None:
        return None
    low, high = view.fitted.speed_range
    return None if low == high else f"its speed changed by {high / low - 1:.0%} between replays"


def with_measured(
    verdict: Verdict, confirmed: Measurement | None, with_headroom: Measurement | None
) -> Verdict:
    """Return the verdict with what the confirming replays measured of all that is required."""
    checks = []
    for check in verdict.requirements:
        required = check.requirement
        seen = with_headroom if required.at_headroom else confirmed
        is_known = seen is not None and (seen.cut is None or required.name == "attainment")
        value = required.value_in(seen) if is_known and seen is not None else check.measured
        checks.append(replace(check, measured=value))
    return replace(verdict, requirements=tuple(checks))


def in_use(conclusion: Conclusion, cap: int, source: Literal["base", "default"]) -> InUse:
    """Return the cap that is set now with what it gives the same traffic: predicted by the twin, or
    as replayed. Where neither covers so large a cap, the largest tried stands for it."""
    top, view = conclusion.curve[-1].numbers, conclusion.view
    most = top.max_num_seqs
    is_unfilled = never_binds(top) and cap >= top.running_peak
    if view is None or not conclusion.by_twin:
        measured = {step.numbers.max_num_seqs: step.numbers for step in conclusion.curve}
        at = most if is_unfilled or (cap > most and top.cut is None) else cap
        numbers_at = cap if is_unfilled or at not in measured else at
        return InUse(cap, source, is_unfilled, numbers_at, measured.get(at))

    at, numbers = cap, _predicted(conclusion, view, min(cap, most) if is_unfilled else cap)
    is_unfilled = never_binds(numbers) if cap > most else is_unfilled
    if cap > most and numbers.running_peak > LAW_REACH * view.fitted.extrapolated_from:
        at, numbers = most, _predicted(conclusion, view, most)
    return InUse(cap, source, is_unfilled, at, numbers)


def _predicted(conclusion: Conclusion, view: Forecast, cap: int) -> Measurement:
    on_curve = (each.numbers for each in conclusion.curve if each.numbers.max_num_seqs == cap)
    return next(on_curve, None) or predictions_of(view, cap)[0].numbers


def rescore(
    requests: Sequence[TraceRequest], settings: SweepSettings, journal: Journal
) -> SweepOutcome:
    """Return what the measurements of a run say under ``settings.slo``, or the derived one.

    Raises RunError when the run had not come far enough.
    """
    evidence = Evidence(journal)
    evidence.check()
    unloaded, choice = evidence.unloaded(), evidence.selection()
    hint = "Continue it first: tuner resume RUN_DIR."
    if unloaded is None or choice is None or not evidence.trials():
        raise RunError(f"{journal.run_dir}: nothing was measured that could be rescored", hint=hint)
    most = evidence.facts().max_model_len
    kept, dropped = keep_what_fits(requests, max_model_len=most)
    slo = settings.slo or slo_for(kept, evidence.unloaded("confirm") or unloaded)
    workload = workload_of(kept, slo, unloaded, choice.part, choice.windows, choice.step_s)
    basis = Basis(evidence, workload, settings)
    conclusion = conclude(basis)
    if not conclusion.curve:
        raise RunError(f"{journal.run_dir}: no step of the ladder was measured", hint=hint)
    warning = left_out(dropped, of=len(requests), max_model_len=most)
    return outcome_of(conclusion, basis, dropped=dropped, warnings=[warning] if warning else [])
