"""The conclusion from everything that a run has measured: by the twin, or by the windows alone.

Needs no engine: a stored run is concluded anew under another SLO in seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from tuner.replay.measure import Measurement, measure
from tuner.replay.records import Replay
from tuner.runs.evidence import RUNGS, Evidence
from tuner.runs.ladder import doubling
from tuner.runs.outcome import (
    CheckRecord,
    Conclusion,
    CurvePoint,
    InUse,
    Prediction,
    SweepOutcome,
    prediction_of,
    predictions_of,
)
from tuner.runs.prediction import confirming_windows, record_of, with_record
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep_warnings import (
    of_the_whole_run,
    where_the_twin_decides,
    where_windows_decide,
    where_windows_were_lost,
)
from tuner.traffic.slo import Unloaded, out_of_reach
from tuner.traffic.workload import Workload
from tuner.twin.aa_check import AaCheck, aa_check
from tuner.twin.forecast import Forecast, StepChange, forecast
from tuner.twin.front_end import MOST_UTILISATION, FrontEnd, contention_of, fit_front_end
from tuner.twin.knee import decide, verdict_by_twin
from tuner.twin.objective import GOOD_ATTAINMENT, HALF
from tuner.twin.simulation import hit_share, shape_of
from tuner.twin.uncertainty import Block, intervals, never_binds, relative_changes
from tuner.twin.verdict_text import ADD_REPLICAS, Verdict, headline, miss_in_words


def view_of(
    evidence: Evidence, workload: Workload, settings: SweepSettings, *, everywhere: bool = False
) -> Forecast | None:
    """Return what the twin says so far; None before anything of the engine has been seen."""
    segments = evidence.segments()
    if not segments:
        return None
    return forecast(
        segments,
        evidence.observed(),
        requests=workload.twin_requests,
        length_s=workload.twin_length_s,
        hash_block_size=settings.trace_block_size,
        facts=evidence.facts(),
        unloaded=workload.unloaded,
        slo=workload.slo,
        caps=doubling(settings.ceiling),
        requirements=settings.requirements,
        headroom=settings.headroom,
        seed=settings.seed,
        hit_share=_hit_share(evidence, workload, settings.trace_block_size),
        # not in between, or else a resumed run, which has them, would measure other steps
        probes=evidence.probed() if everywhere else (),
        everywhere=everywhere,
    )


def conclude(
    evidence: Evidence, workload: Workload, settings: SweepSettings, *, complete: bool
) -> Conclusion:
    """Return the verdict and the curve. ``complete`` is False when the budget ended the run."""
    view = None
    if not settings.closed_sessions:
        view = view_of(evidence, workload, settings, everywhere=True)
    if view is None or not view.is_believed:
        doubt = None if view is None else view.doubt
        return _by_windows(evidence, workload, settings, view, doubt, complete=complete)
    measured, otherwise = evidence.measured(workload.slo), evidence.cut_under_another(workload.slo)
    measured = {cap: one for cap, one in measured.items() if cap not in otherwise}
    numbers = {cap: view.measurement(cap) for cap in doubling(settings.ceiling)}
    verdict = verdict_by_twin(view, numbers, ceiling=settings.ceiling, complete=complete)
    changes: dict[int, Mapping[str, StepChange]] = {
        cap: view.changes(below, cap) for below, cap in pairwise(numbers)
    }
    curve = tuple(
        CurvePoint(
            numbers=one,
            measured=measured.get(cap),
            source="both" if cap in measured else "twin",
            intervals=view.intervals(cap),
            changes=changes.get(cap, {}),
        )
        for cap, one in numbers.items()
    )
    warnings = where_the_twin_decides(view, workload, verdict.max_num_seqs)
    verdict = replace(verdict, warnings=(*verdict.warnings, *warnings))
    return Conclusion(_reachable(verdict, workload, curve), curve, view, by_twin=True)


def _by_windows(  # noqa: PLR0913 - what was measured, and why the twin does not decide
    evidence: Evidence,
    workload: Workload,
    settings: SweepSettings,
    view: Forecast | None,
    doubt: str | None,
    *,
    complete: bool,
) -> Conclusion:
    """Return what the windows that were replayed say alone."""
    blocks = window_blocks(evidence, workload, settings)
    curve = _measured_curve(evidence.measured(workload.slo), blocks)
    verdict = decide(
        blocks,
        ceiling=settings.ceiling,
        complete=complete,
        requirements=settings.requirements,
    )
    verdict = _reachable(verdict, workload, curve)
    seen, cap = evidence.blocks(workload.slo), verdict.max_num_seqs
    lost = where_windows_were_lost(evidence.cut_under_another(workload.slo))
    warnings = (*where_windows_decide(seen, blocks, cap, settings, doubt), *lost)
    verdict = replace(verdict, warnings=(*verdict.warnings, *warnings))
    return Conclusion(verdict, curve, view, by_twin=False, blocks=tuple(blocks))


def window_blocks(evidence: Evidence, workload: Workload, settings: SweepSettings) -> list[Block]:
    """Return the rungs as the windows decide by them.

    Each window begins without a queue. So a cap serves no more of its windows than the queue of all
    of the traffic leaves it time for, where each request holds its slot as long as it did there.
    Turns that wait for each other grow no queue.
    """
    blocks = evidence.blocks(workload.slo)
    if settings.closed_sessions:
        return blocks
    found = []
    for block, (trial, replays) in zip(blocks, evidence.rungs(), strict=True):
        one, held = block.measurement, slots_held(replays, workload.unloaded)
        share = 1.0 if held is None else workload.queued(trial.max_num_seqs, held=held)
        if one.cut is None and share < one.attainment - GOOD_ATTAINMENT:
            goodput_rps = one.goodput_rps * share / one.attainment
            left = replace(one, attainment=share, attainment_bound=share, goodput_rps=goodput_rps)
            found.append(replace(block, measurement=left))
        else:
            found.append(block)
    return found


def slots_held(replays: Sequence[Replay], unloaded: Unloaded) -> float | None:
    """Return for how long requests held their slots, as a multiple of what they do on an idle
    engine; None where the engine does not tell."""
    done = [
        (one.e2el_s - one.queue_s, unloaded.residence_s(one.input_length, one.output_tokens))
        for replay in replays
        for one in replay.records
        if one.outcome == "ok" and one.e2el_s is not None and one.queue_s is not None
    ]
    alone_s = sum(idle_s for _, idle_s in done)
    return sum(held_s for held_s, _ in done) / alone_s if alone_s > 0 else None


def predictions(conclusion: Conclusion, front_end: FrontEnd | None) -> tuple[Prediction, ...]:
    """Return what the twin promises of the choice, as captured and with headroom; nothing of a load
    for which the front end is too busy."""
    view, cap = conclusion.view, conclusion.verdict.max_num_seqs
    if view is None or not conclusion.by_twin:
        return ()
    busy = 0.0 if front_end is None else front_end.busy(view.traffic, view.length_s)
    return tuple(one for one in predictions_of(view, cap) if one.load * busy <= MOST_UTILISATION)


def in_use(conclusion: Conclusion, cap: int, source: Literal["base", "default"]) -> InUse:
    """Return what is set now, and what it gives for the same traffic: as any cap that the traffic
    never fills, as on the curve, or between its steps by the twin, which says it as of the choice.
    """
    last, view = conclusion.curve[-1].numbers, conclusion.view
    unfilled = never_binds(last) and cap >= last.running_peak
    asked = last.max_num_seqs if unfilled else cap
    numbers = {one.numbers.max_num_seqs: one.numbers for one in conclusion.curve}.get(asked)
    if view is not None and conclusion.by_twin and asked <= last.max_num_seqs:
        numbers = prediction_of(view, asked).numbers
    if numbers is not None:
        numbers = replace(numbers, max_num_seqs=cap)
    return InUse(cap, source, never_filled=unfilled, numbers=numbers)


def verified(  # noqa: PLR0913, PLR0917 - what was concluded, and what came of it
    conclusion: Conclusion,
    record: CheckRecord | None,
    front_end: FrontEnd | None,
    evidence: Evidence,
    workload: Workload,
    settings: SweepSettings,
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
        view = with_record(view, record, front_end, confirming_windows(evidence, cap))
        if front_end is not None and verdict.requirements:
            verdict = replace(verdict, requirements=view.bounds(cap).checks(cap))
        return replace(conclusion, verdict=verdict, view=view)
    doubt = (
        f"the twin was wrong at the engine's own speed ({miss_in_words(record.at_own_speed.worst)})"
    )
    if evidence.rungs():
        complete = evidence.is_complete()
        return _by_windows(evidence, workload, settings, view, doubt, complete=complete)
    reason = (
        f"inconclusive, {cap} is the twin's choice: {doubt} in the replay that verifies it; sweep "
        "without --fast"
    )
    verdict = replace(verdict, kind="inconclusive", reason=reason)
    return replace(conclusion, verdict=verdict)


def held_to(
    verdict: Verdict, confirmed: Measurement | None, with_headroom: Measurement | None
) -> Verdict:
    """Return the verdict with what the confirming replays measured of all that is required."""
    checks = []
    for required in verdict.requirements:
        one = required.requirement
        seen = with_headroom if one.at_headroom else confirmed
        told = seen is not None and (seen.cut is None or one.name == "attainment")
        value = one.value_in(seen) if told else required.measured
        checks.append(replace(required, measured=value))
    return replace(verdict, requirements=tuple(checks))


def unclaimed(verdict: Verdict, taken: str | None) -> Verdict:
    """Return the verdict where others took the cores (``taken``): the cap may well be right, but
    its numbers are of those others too."""
    if taken is None:
        return verdict
    head = headline("inconclusive", verdict.max_num_seqs, verdict.interval)
    reason = (
        f"{head}: {taken} while it was replayed, so that nothing is promised; sweep again in "
        "another --run-dir when nothing else runs on this machine"
    )
    return replace(verdict, kind="inconclusive", reason=reason)


def agreed(conclusion: Conclusion, evidence: Evidence) -> AaCheck | None:
    """Return how the confirming engine agrees with the ladder's; None where there is no telling."""
    view = conclusion.view
    if view is None:
        return None
    return aa_check(
        view,
        evidence.observed(),
        evidence.observed(confirming=True),
        cap=conclusion.verdict.max_num_seqs,
    )


def front_end_of(conclusion: Conclusion, evidence: Evidence) -> FrontEnd | None:
    """Return the front end of the server that confirmed the choice, by its probes alone where it
    replayed nothing. None where that was no server, or told too little."""
    cap, view, facts = conclusion.verdict.max_num_seqs, conclusion.view, evidence.facts()
    logs = [one.iterations for one in evidence.confirming("confirm", cap)]
    if facts.engine != "serve" or not logs:
        return None if view is None else view.machine.front_end
    contention = 1.0 if view is None else contention_of(view.fitted.law, logs)
    parts = evidence.passages(cap)
    return fit_front_end(parts, contention=contention, processes=facts.api_servers)


def _measured_curve(
    measured: Mapping[int, Measurement], blocks: Sequence[Block]
) -> tuple[CurvePoint, ...]:
    def changes(below: int | None, cap: int) -> dict[str, StepChange]:
        if below is None:
            return {}
        found = relative_changes(blocks, below, cap)
        return {name: StepChange(*values) for name, values in found.items()}

    return tuple(
        CurvePoint(
            numbers=one,
            measured=one,
            source="measured",
            intervals=(
                {"attainment": (one.attainment, one.attainment_bound)}
                if one.cut
                else intervals(blocks, cap)
            ),
            changes=changes(below, cap),
        )
        for below, (cap, one) in zip([None, *measured], measured.items(), strict=False)
    )


def _reachable(verdict: Verdict, workload: Workload, curve: Sequence[CurvePoint]) -> Verdict:
    """Blame neither the load nor the ceiling for an SLO that an idle engine breaks."""
    why = out_of_reach(workload.slo, workload.unloaded)
    if why is None or any(step.numbers.attainment >= HALF for step in curve):
        return verdict
    warnings = tuple(one for one in verdict.warnings if one != ADD_REPLICAS)
    return replace(verdict, kind="overloaded", reason=f"overloaded: {why}", warnings=warnings)


def _hit_share(evidence: Evidence, workload: Workload, hash_block_size: int) -> float:
    """Return what the prefix cache gave of what may still have been in it, in the windows that were
    replayed whole.

    Before any was, as with --fast, a cache that is on is taken to give all of that: vLLM's is on,
    and that nothing is found in it is the worse guess.
    """
    shape = shape_of(evidence.facts())
    if not any(trial.purpose in RUNGS for trial in evidence.trials()):
        return float(shape.prefix_caching)
    sent = (
        (workload.sent_in(workload.windows[number]), replay)
        for number, replay in evidence.whole_windows()
    )
    return hit_share(sent, hash_block_size=hash_block_size, kv_tokens=shape.kv_tokens)


def outcome_of(  # noqa: PLR0913 - what was asked, measured and concluded
    evidence: Evidence,
    workload: Workload,
    settings: SweepSettings,
    conclusion: Conclusion,
    *,
    dropped: dict[str, int],
    warnings: Sequence[str],
) -> SweepOutcome:
    """Return all that was found, the confirming replays included."""
    facts = evidence.facts()
    front_end = front_end_of(conclusion, evidence)
    block = settings.trace_block_size
    checked = record_of(conclusion, front_end, evidence, workload, hash_block_size=block)
    after = verified(conclusion, checked, front_end, evidence, workload, settings)
    failed = checked is not None and checked.foretold.failed
    confirm, headroom = (
        evidence.confirming(name, after.verdict.max_num_seqs) for name in ("confirm", "headroom")
    )
    confirmed = measure(confirm, workload.slo) if confirm else None
    with_headroom = measure(headroom, workload.slo) if headroom else None
    taken = evidence.crowded()
    verdict = unclaimed(held_to(after.verdict, confirmed, with_headroom), taken)
    return SweepOutcome(
        conclusion=replace(after, verdict=verdict),
        slo=workload.slo,
        part=workload.part,
        windows=workload.windows,
        arrival_rate_rps=workload.arrival_rate_rps,
        confirmed=confirmed,
        with_headroom=with_headroom,
        aa_check=agreed(conclusion, evidence),
        front_end=front_end,
        predictions=() if failed or taken else predictions(after, front_end),
        checked=checked,
        facts=facts,
        ladder_engine=evidence.ladder_engine(),
        starts_s=evidence.starts_s(),
        replay_s=evidence.replay_s(),
        kv_blocks=evidence.kv_blocks(),
        start_parts_s=evidence.start_parts_s(),
        dropped=dropped,
        warnings=(
            *facts.cautions,
            *evidence.read_apart(),
            *warnings,
            *of_the_whole_run(conclusion, front_end, settings),
        ),
    )
