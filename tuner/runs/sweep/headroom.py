"""The measured headroom, against what the twin predicted of that very replay.

A choice falls short where it serves fewer than the twin's 95 % interval allows, or breaks what is
required with headroom. The choice stays, and a warning names the next cap.
"""

from dataclasses import replace

from tuner.replay.measure import Measurement, measure
from tuner.runs.outcome import Conclusion
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis
from tuner.runs.sweep.confirmation import front_end_of
from tuner.runs.sweep.prediction import planned_for
from tuner.twin.check import least_attainment
from tuner.twin.draws import PRINTED
from tuner.twin.forecast import Forecast
from tuner.twin.front_end import FrontEnd
from tuner.twin.verdict_text import BEFORE_THAT


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
    above = min((one for one in view.weighed.eligible if one > cap), default=None)
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
    laws = view.fitted.draws(PRINTED)
    return least_attainment(windows, laws, machine, view.shape, view.slo, max_num_seqs=cap)
