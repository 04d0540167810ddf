"""The confirming replay against the conclusion: what it checks, and what stands after it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.runs.evidence import Evidence
from tuner.runs.outcome import CheckRecord, Conclusion
from tuner.runs.sweep.conclusion import Basis, by_windows
from tuner.runs.sweep.prediction import foretold_in, foretold_numbers
from tuner.twin.check import Check, Observed, check_at_own_speed, check_foretold, driver
from tuner.twin.draws import flicker_of
from tuner.twin.forecast import Forecast, delays_s
from tuner.twin.front_end import FrontEnd, contention_of, fit_front_end, passages_of
from tuner.twin.verdict_text import miss_in_words


def front_end_of(conclusion: Conclusion, evidence: Evidence) -> FrontEnd | None:
    """Return the front end of the server that confirmed the choice, by its probes alone where it
    replayed nothing. None where that was no server, or told too little."""
    cap, view, facts = conclusion.verdict.max_num_seqs, conclusion.view, evidence.facts()
    replays = evidence.confirming("confirm", cap)
    if facts.engine != "serve" or not replays:
        return None if view is None else view.machine.front_end
    logs = [one.iterations for one in replays]
    contention = 1.0 if view is None else contention_of(view.fitted.law, logs)
    passages = [passages_of(one.requests, one.iterations) for one in replays]
    parts = [*evidence.probed(), *passages]
    return fit_front_end(parts, contention=contention, processes=facts.api_servers)


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
    by_speed = check_at_own_speed(windows, law, slo, driver(law, view.shape, front_end))
    said = foretold_in(basis.evidence, cap)
    if said is None or len(windows) < len(said.windows):
        return CheckRecord(unseen=False, foretold=Check(()), at_own_speed=by_speed)
    numbers = said.numbers
    if said.slo != slo:  # of another SLO than that of the run only attainment is another
        numbers, _ = foretold_numbers(basis, view, said.windows, cap)
    errors = _errors_of(windows, said.means) if said.unseen else ((), ())
    return CheckRecord(said.unseen, check_foretold(numbers, windows, slo), by_speed, *errors)


def _confirming_windows(evidence: Evidence, cap: int) -> list[Observed]:
    """Return what was replayed to confirm a cap."""
    return [one for one in evidence.observed(confirming=True) if one.max_num_seqs == cap]


def _errors_of(
    windows: Sequence[Observed], means: Sequence[tuple[float, float]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return log(measured / predicted) of the mean TTFT and TPOT of each window, from the predicted
    means in seconds."""
    pairs = list(zip(windows, means, strict=True))
    return (
        tuple(_log_ratio(one.ttft_s[one.planned.counted], ttft) for one, (ttft, _) in pairs),
        tuple(_log_ratio(one.tpot_s[one.planned.counted], tpot) for one, (_, tpot) in pairs),
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
    nothing does. What is required is held to the front end that the replay showed.
    """
    view, verdict = conclusion.view, conclusion.verdict
    if view is None or record is None or not conclusion.by_twin:
        return conclusion
    cap = verdict.max_num_seqs
    if not record.at_own_speed.failed:
        windows = _confirming_windows(basis.evidence, cap)
        view = _with_record(view, record, front_end, windows)
        if front_end is not None and verdict.requirements:
            verdict = replace(verdict, requirements=view.bounds(cap).checks(cap))
        return replace(conclusion, verdict=verdict, view=view)
    doubt = (
        f"the twin was wrong at the engine's own speed ({miss_in_words(record.at_own_speed.worst)})"
    )
    if basis.evidence.rungs():
        return by_windows(basis, view, doubt=doubt)
    reason = f"inconclusive, {cap} is the twin's choice: {doubt} in the replay that verifies it"
    verdict = replace(verdict, kind="inconclusive", reason=reason)
    return replace(conclusion, verdict=verdict)


def _with_record(
    view: Forecast,
    record: CheckRecord,
    front_end: FrontEnd | None,
    windows: Sequence[Observed],
) -> Forecast:
    """Return the twin that knows how far off it was in windows that it had not seen, and what
    stands before the engine.

    ``windows`` are those of the confirming replay. Behind a front end its engine shares its cores
    as the one to come does, so the flicker and the delays are taken from it.
    """
    machine = replace(
        view.machine,
        ttft_errors=record.ttft_errors,
        tpot_errors=record.tpot_errors,
        front_end=front_end,
    )
    whole = [one for one in windows if not one.cut]
    if front_end is not None and whole:
        law = view.fitted.law
        machine = replace(
            machine,
            flicker=flicker_of([one.iterations for one in whole], law),
            delays_s=delays_s(whole, law, driver(law, view.shape, front_end)),
        )
    return replace(view, machine=machine)
