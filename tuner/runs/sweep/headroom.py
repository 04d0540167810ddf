"""The headroom as it was measured, against what the twin said of that very replay.

A choice falls short where it serves fewer than the twin's 95 % interval allows, or breaks what is
required with headroom. Then the next cap is replayed in the same windows, once. The choice moves
where that one serves more and is as good today; otherwise it is told with both numbers.
"""

from dataclasses import replace

from tuner.replay.measure import Measurement, measure
from tuner.runs.outcome import Conclusion
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis
from tuner.runs.sweep.confirmation import front_end_of
from tuner.runs.sweep.prediction import planned_window
from tuner.traffic.scaling import scale_load
from tuner.twin.check import least_attainment
from tuner.twin.draws import PRINTED
from tuner.twin.forecast import Forecast
from tuner.twin.front_end import FrontEnd
from tuner.twin.objective import EQUAL_ATTAINMENT, candidates
from tuner.twin.verdict_text import BEFORE_THAT, headline


def after_headroom(conclusion: Conclusion, basis: Basis) -> Conclusion:
    """Return the conclusion after the headroom was replayed; as it is where it was not."""
    view, cap = conclusion.view, conclusion.verdict.max_num_seqs
    seen = _seen(basis, cap)
    if view is None or not conclusion.by_twin or seen is None:
        return conclusion
    front_end = front_end_of(conclusion, basis.evidence)
    told = _shortfall(seen, least_expected(view, basis, cap, front_end), basis.settings)
    if told is None:
        return conclusion
    eligible = view.weighed.eligible
    above = min((one for one in eligible if one > cap), default=None)
    if above is None:
        return _warned(conclusion, f"{told}; no larger cap may be chosen")
    other = _seen(basis, above)
    if other is None:
        said = f"{told}; {above} was not replayed there: --resume with a larger --budget does"
        return replace(_warned(conclusion, said), untried=above)
    told += f"; {above} served {other.attainment:.1%} there"
    if other.attainment <= seen.attainment_bound + EQUAL_ATTAINMENT:
        told += ", no more: what is said of this load is too good"
    elif above not in candidates(eligible, requests=len(view.traffic)):
        told += ", and costs something today"
    else:
        return _moved(conclusion, view, above, told)
    return _warned(conclusion, told)


def _shortfall(seen: Measurement, least: float, settings: SweepSettings) -> str | None:
    """Say in what the measured headroom falls short; None where it does not."""
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

    It is the end of a 95 % interval behind the front end that they come through, foretold as the
    confirming replay is: for an engine start that nobody has seen.
    """
    workload, settings, windows = basis.workload, basis.settings, []
    for window in workload.windows:
        sent = scale_load(workload.sent_in(window), settings.headroom, seed=settings.seed)
        windows.append(planned_window(window, sent, view, settings.trace_block_size))
    machine = replace(view.machine, front_end=front_end)
    laws = view.fitted.draws(PRINTED)
    return least_attainment(windows, laws, machine, view.shape, view.slo, max_num_seqs=cap)


def _seen(basis: Basis, cap: int) -> Measurement | None:
    """Return what all windows with headroom gave at a cap; None before all were replayed."""
    workload, replays = basis.workload, basis.evidence.confirming("headroom", cap)
    return measure(replays, workload.slo) if len(replays) == len(workload.windows) else None


def _warned(conclusion: Conclusion, said: str) -> Conclusion:
    verdict, said = conclusion.verdict, f"{said}; {BEFORE_THAT}"
    return replace(conclusion, verdict=replace(verdict, warnings=(said, *verdict.warnings)))


def _moved(conclusion: Conclusion, view: Forecast, cap: int, why: str) -> Conclusion:
    """Return the conclusion with the larger cap, which costs nothing today."""
    verdict, weighed = conclusion.verdict, view.weighed
    low, high = verdict.interval
    interval = (low, max(high, cap))
    moved = replace(
        verdict,
        max_num_seqs=cap,
        interval=interval,
        confidence=min(verdict.confidence, weighed.rightness.get(cap, 0.0)),
        reason=f"{headline(verdict.kind, cap, interval)}: {why}, and as much today",
        requirements=weighed.bounds.checks(cap),
    )
    return replace(conclusion, verdict=moved)
