"""The conclusion from everything that a run has measured: by the twin, or by the windows alone.

Needs no engine: a stored run is concluded anew under another SLO in seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tuner.engines.seam import EngineFacts
from tuner.replay.measure import Measurement
from tuner.replay.records import REQUEST, Replay, e2el_s, queue_s
from tuner.runs.evidence import Evidence
from tuner.runs.ladder import doubling
from tuner.runs.outcome import Conclusion, CurvePoint
from tuner.runs.rungs import Rung, cut_under_another, measured, whole_windows
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep_warnings import (
    where_the_twin_decides,
    where_windows_decide,
    where_windows_were_lost,
)
from tuner.traffic.constants import GOOD_ATTAINMENT, HALF
from tuner.traffic.slo import Unloaded, out_of_reach
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload
from tuner.twin.forecast import Forecast, forecast
from tuner.twin.front_end import Passages
from tuner.twin.law import Segment
from tuner.twin.simulation import hit_share, shape_of
from tuner.twin.verdict import ADD_REPLICAS, Verdict, verdict_by_twin, verdict_by_windows
from tuner.twin.windows import Block, samples_of


@dataclass(frozen=True, slots=True)
class Basis:
    """The basis of a conclusion: what was measured, of which traffic, under which settings."""

    evidence: Evidence
    workload: Workload
    settings: SweepSettings


def conclude(basis: Basis) -> Conclusion:
    """Return the verdict and the curve: by the twin, where it is believed."""
    view = None if basis.settings.closed_sessions else view_of(basis, printed=True)
    if view is not None and view.is_believed:
        return _by_twin(basis, view)
    return by_windows(basis, view, doubt=None if view is None else view.doubt)


def view_of(basis: Basis, *, printed: bool = False) -> Forecast | None:
    """Return what the twin says so far; None before anything of the engine has been seen."""
    evidence = basis.evidence
    return forecast_of(
        basis,
        evidence.segments(),
        evidence.observed(),
        [
            (basis.workload.windows[number], replay)
            for number, replay in whole_windows(evidence.rungs(under_way=True))
        ],
        caps=doubling(basis.settings.ceiling),
        # not in between, or else a resumed run, which has them, would measure other steps
        probes=evidence.probed() if printed else (),
        printed=printed,
        taken=evidence.taken(),
        # before any window was replayed, vLLM's cache is on, and that nothing is in it is the
        # worse guess
        nothing_replayed=not evidence.rungs(),
    )


def forecast_of(  # noqa: PLR0913 - what was measured, and what it is asked
    basis: Basis,
    segments: Sequence[Segment],
    windows: Sequence[Replay],
    whole: Sequence[tuple[Window, Replay]],
    *,
    caps: Sequence[int],
    facts: EngineFacts | None = None,
    probes: Sequence[Passages] = (),
    printed: bool = False,
    taken: float = 0.0,
    nothing_replayed: bool = False,
) -> Forecast | None:
    """Return the twin that is fitted to these iterations, and checked against these windows; None
    without any iteration. ``whole`` are the windows that were not cut, with their replays."""
    workload, settings = basis.workload, basis.settings
    if not segments:
        return None
    facts = facts or basis.evidence.facts()
    shape, block_size = shape_of(facts), settings.trace_block_size
    sent = [(workload.sent_in(window), replay) for window, replay in whole]
    hits = hit_share(sent, hash_block_size=block_size, kv_tokens=shape.kv_tokens)
    return forecast(
        segments,
        windows,
        requests=workload.twin_requests,
        length_s=workload.twin_length_s,
        hash_block_size=block_size,
        facts=facts,
        unloaded=workload.unloaded,
        slo=workload.slo,
        caps=caps,
        requirements=settings.requirements,
        headroom=settings.headroom,
        seed=settings.seed,
        hit_share=float(shape.prefix_caching) if nothing_replayed else hits,
        probes=probes,
        printed=printed,
        taken=taken,
    )


def curve_by_twin(
    view: Forecast, caps: Sequence[int], seen: Mapping[int, Measurement]
) -> tuple[CurvePoint, ...]:
    """Return the twin's curve, with what was measured (``seen``) beside it."""
    samples = view.choice.samples
    changes = {cap: samples.changes(below, cap) for below, cap in pairwise(caps)}
    return tuple(
        CurvePoint(
            numbers=view.measurement(cap),
            measured=seen.get(cap),
            source="both" if cap in seen else "twin",
            intervals=samples.intervals(cap),
            changes=changes.get(cap, {}),
        )
        for cap in caps
    )


def _by_twin(basis: Basis, view: Forecast) -> Conclusion:
    workload, settings = basis.workload, basis.settings
    rungs = basis.evidence.rungs()
    otherwise = cut_under_another(rungs, workload.slo)
    seen = {cap: one for cap, one in measured(rungs, workload.slo).items() if cap not in otherwise}
    curve = curve_by_twin(view, doubling(settings.ceiling), seen)
    numbers = {point.numbers.max_num_seqs: point.numbers for point in curve}
    complete = basis.evidence.is_complete()
    verdict = verdict_by_twin(view, numbers, ceiling=settings.ceiling, complete=complete)
    warnings = where_the_twin_decides(view, workload, verdict.max_num_seqs)
    verdict = replace(verdict, warnings=(*verdict.warnings, *warnings))
    return Conclusion(_reachable(verdict, workload, curve), curve, view, by_twin=True)


def by_windows(basis: Basis, view: Forecast | None, *, doubt: str | None) -> Conclusion:
    """Return what the windows that were replayed say alone. ``doubt`` is why the twin does not."""
    evidence, workload, settings = basis.evidence, basis.workload, basis.settings
    rungs, blocks = evidence.rungs(), window_blocks(basis)
    curve = _measured_curve(measured(rungs, workload.slo), blocks)
    verdict = verdict_by_windows(
        blocks,
        ceiling=settings.ceiling,
        complete=evidence.is_complete(),
        requirements=settings.requirements,
    )
    verdict = _reachable(verdict, workload, curve)
    seen, cap = [one.block(workload.slo) for one in rungs], verdict.max_num_seqs
    lost = where_windows_were_lost(cut_under_another(rungs, workload.slo))
    warnings = (*where_windows_decide(seen, blocks, cap, settings, doubt), *lost)
    verdict = replace(verdict, warnings=(*verdict.warnings, *warnings))
    return Conclusion(verdict, curve, view, by_twin=False, blocks=tuple(blocks))


def window_blocks(basis: Basis) -> list[Block]:
    """Return the rungs as the windows decide by them.

    Each window begins without a queue. So a cap serves no more of its windows than the queue of all
    of the traffic leaves it time for, where each request holds its slot as long as it did there.
    Turns that wait for each other grow no queue.
    """
    slo, rungs = basis.workload.slo, basis.evidence.rungs()
    if basis.settings.closed_sessions:
        return [one.block(slo) for one in rungs]
    return [_with_queue(one, basis.workload) for one in rungs]


def _with_queue(rung: Rung, workload: Workload) -> Block:
    block = rung.block(workload.slo)
    one, held = block.measurement, slots_held(rung.replays.values(), workload.unloaded)
    share = 1.0 if held is None else workload.queued(rung.trial.max_num_seqs, held=held)
    if one.cut is None and share < one.attainment - GOOD_ATTAINMENT:
        goodput_rps = one.goodput_rps * share / one.attainment
        one = replace(one, attainment=share, attainment_bound=share, goodput_rps=goodput_rps)
    return replace(block, measurement=one)


def slots_held(replays: Iterable[Replay], unloaded: Unloaded) -> float | None:
    """Return for how long requests held their slots, as a multiple of what they do on an idle
    engine; None where the engine does not tell."""
    sent = np.concatenate([np.zeros(0, REQUEST), *(one.requests for one in replays)])
    held_s = e2el_s(sent) - queue_s(sent)
    told = ~np.isnan(held_s)
    lengths = zip(sent["input_length"][told], sent["output_tokens"][told], strict=True)
    alone_s = float(sum(unloaded.residence_s(*one) for one in lengths))
    return float(held_s[told].sum()) / alone_s if alone_s > 0 else None


def _measured_curve(
    measured: Mapping[int, Measurement], blocks: Sequence[Block]
) -> tuple[CurvePoint, ...]:
    _, samples = samples_of(blocks)
    steps, below = list[CurvePoint](), None
    for cap, one in measured.items():
        is_whole = one.cut is None
        steps.append(
            CurvePoint(
                numbers=one,
                measured=one,
                source="measured",
                intervals=samples.intervals(cap)
                if is_whole
                else {"attainment": (one.attainment, one.attainment_bound)},
                changes=samples.changes(below, cap) if is_whole and below is not None else {},
            )
        )
        below = cap if is_whole else None
    return tuple(steps)


def _reachable(verdict: Verdict, workload: Workload, curve: Sequence[CurvePoint]) -> Verdict:
    """Blame neither the load nor the ceiling for an SLO that an idle engine breaks."""
    why = out_of_reach(workload.slo, workload.unloaded)
    if why is None or any(step.numbers.attainment >= HALF for step in curve):
        return verdict
    warnings = tuple(one for one in verdict.warnings if one != ADD_REPLICAS)
    return replace(verdict, kind="overloaded", reason=f"overloaded: {why}", warnings=warnings)
