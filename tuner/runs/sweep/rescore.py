"""A stored run rescored under another SLO, without an engine."""

from collections.abc import Sequence

from tuner.errors import RunError
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.runs.outcome import SweepOutcome
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis, conclude
from tuner.runs.sweep.confirmation import after_headroom
from tuner.runs.sweep.outcome import outcome_of
from tuner.runs.sweep.sweep_warnings import left_out
from tuner.trace.trace import TraceRequest
from tuner.traffic.workload import keep_what_fits, slo_for, workload_of


def rescore(
    requests: Sequence[TraceRequest], settings: SweepSettings, journal: Journal
) -> SweepOutcome:
    """Return what the measurements of a run say under ``settings.slo``, or the derived one.

    Raises RunError when the run had not come far enough.
    """
    evidence = Evidence(journal)
    evidence.check()
    unloaded, choice = evidence.unloaded(), evidence.selection()
    if unloaded is None or choice is None or not evidence.trials():
        raise RunError(
            f"{journal.run_dir}: nothing was measured that could be rescored",
            hint="Continue it first: tuner resume RUN_DIR.",
        )
    most = evidence.facts().max_model_len
    kept, dropped = keep_what_fits(requests, max_model_len=most)
    as_users_see = evidence.unloaded("confirm") or unloaded
    slo = settings.slo or slo_for(kept, as_users_see)
    workload = workload_of(kept, slo, unloaded, choice.part, choice.windows, choice.step_s)
    basis = Basis(evidence, workload, settings)
    conclusion = after_headroom(conclude(basis), basis)
    if not conclusion.curve:
        raise RunError(
            f"{journal.run_dir}: no step of the ladder was measured",
            hint="Continue it first: tuner resume RUN_DIR.",
        )
    counts = {"over_max_model_len": dropped} if dropped else {}
    warning = left_out(dropped, of=len(requests), max_model_len=most)
    warnings = [] if warning is None else [warning]
    return outcome_of(conclusion, basis, dropped=counts, warnings=warnings)
