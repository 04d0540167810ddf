"""The conclusion from everything that a run has measured: by the twin, or by the windows alone.

Needs no engine: a stored run is concluded anew under another SLO in seconds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from tuner.engines.seam import EngineFacts
from tuner.replay.numbers import Measurement, Spread
from tuner.replay.records import REQUEST, Replay, e2el_s, queue_s
from tuner.runs.evidence import Evidence, MadeTrial, cut_under_another, measured, uncut_windows
from tuner.runs.ladder import doubling
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep_warnings import cut_by_another_slo, few, no_headroom, windows_decide
from tuner.traffic.constants import GOOD_ATTAINMENT, HALF
from tuner.traffic.slo import Unloaded, out_of_reach
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload
from tuner.twin.forecast import Forecast, forecast
from tuner.twin.front_end import Passages
from tuner.twin.law import Segment
from tuner.twin.samples import NUMBERS, ON_CURVE, SHARES, Interval, Range, Samples
from tuner.twin.simulation import hit_share, shape_of
from tuner.twin.verdict import ADD_REPLICAS, Verdict, verdict_by_twin, verdict_by_windows
from tuner.twin.windows import Block, samples_of

Source = Literal["measured", "twin", "both"]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One cap of the curve."""

    numbers: Measurement
    """The twin's over the whole part; where it is not believed, as measured in the windows."""

    measured: Measurement | None
    """As measured in the windows; None where none were replayed."""

    source: Source
    intervals: Mapping[str, Range]
    changes: Mapping[str, Interval]
    """What it gives more than the step below; empty for the first, and where it was cut."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion from the measurements of a run."""

    verdict: Verdict
    curve: tuple[CurvePoint, ...]
    view: Forecast | None
    """The twin; None when the budget ended the run before it was made."""

    by_twin: bool
    """Whether the twin decided, and not the windows alone."""

    is_proven: bool = False
    """Whether pairs of replays proved the choice: what is wrong with the twin costs its predictions
    alone."""

    def step(self, cap: int) -> CurvePoint:
        return next(each for each in self.curve if each.numbers.max_num_seqs == cap)


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
        return by_twin(basis, view)
    return by_windows(basis, view, doubt=None if view is None else view.doubt)


def view_of(basis: Basis, *, printed: bool = False) -> Forecast | None:
    """Return what the twin says so far; None before anything of the engine has been seen."""
    evidence = basis.evidence
    windows = basis.workload.windows
    uncut = uncut_windows(evidence.rungs(under_way=True))
    return forecast_of(
        basis,
        evidence.segments(),
        evidence.observed(),
        [(windows[number], replay) for number, replay in uncut],
        caps=doubling(basis.settings.ceiling),
        # not in between, or else a resumed run, which has them, would measure other steps
        probes=evidence.probed() if printed else (),
        printed=printed,
        taken=evidence.taken(),
        # before any window was replayed, vLLM's cache is on, and an empty one is the worse guess
        nothing_replayed=not evidence.rungs(),
    )


def forecast_of(  # noqa: PLR0913 - what was measured, and what is predicted
    basis: Basis,
    segments: Sequence[Segment],
    windows: Sequence[Replay],
    uncut: Sequence[tuple[Window, Replay]],
    *,
    caps: Sequence[int],
    facts: EngineFacts | None = None,
    probes: Sequence[Passages] = (),
    printed: bool = False,
    taken: float = 0.0,
    nothing_replayed: bool = False,
) -> Forecast | None:
    """Return the twin that is fitted to these iterations, and checked against these windows; None
    without any iteration. ``uncut`` are the windows that were not cut, with their replays."""
    workload, settings = basis.workload, basis.settings
    if not segments:
        return None
    facts = facts or basis.evidence.facts()
    shape, block_size = shape_of(facts), settings.trace_block_size
    sent = [(workload.sent_in(window), replay) for window, replay in uncut]
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


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the twin predicts of a cap at one load: the middle of what fresh engines give again,
    with 95 % intervals."""

    load: float
    numbers: Measurement
    intervals: Mapping[str, Range]


def prediction_in(
    samples: Samples, view: Forecast, cap: int, load: float, names: Sequence[str]
) -> Prediction:
    raised = load > 1
    numbers = view.measurement(cap, raised=raised)

    def middle(name: str) -> float:
        return samples.middle(name, cap, raised=raised)

    def spread_of(name: str) -> Spread | None:
        spread = Spread(*(middle(f"{name}_{each}_s") for each in ("mean", *SHARES)))
        return None if math.isnan(spread.mean) else spread

    numbers = replace(
        numbers,
        attainment=middle("attainment"),
        attainment_bound=middle("attainment"),
        goodput_rps=middle("attainment") * numbers.arrival_rate_rps,
        ttft_s=spread_of("ttft"),
        tpot_s=spread_of("tpot"),
        e2el_s=spread_of("e2el"),
        queue_s=spread_of("queue"),
    )
    return Prediction(load, numbers, samples.intervals(cap, raised=raised, names=names))


def predictions_of(view: Forecast, cap: int) -> tuple[Prediction, ...]:
    """Return what the twin predicts of a cap, at the recorded load and with headroom."""
    loads, samples = (1.0,) if view.headroom == 1 else (1.0, view.headroom), view.promised((cap,))
    names = ("goodput_rps", *NUMBERS)
    return tuple(prediction_in(samples, view, cap, load, names) for load in loads)


def curve_by_twin(
    view: Forecast, caps: Sequence[int], seen: Mapping[int, Measurement]
) -> tuple[CurvePoint, ...]:
    """Return the twin's curve, with what was measured (``seen``) beside it."""
    samples = view.promised(caps)
    changes = {cap: samples.changes(below, cap) for below, cap in pairwise(caps)}
    curve = []
    for cap in caps:
        predicted = prediction_in(samples, view, cap, 1.0, ON_CURVE)
        source: Source = "both" if cap in seen else "twin"
        curve.append(
            CurvePoint(
                predicted.numbers, seen.get(cap), source, predicted.intervals, changes.get(cap, {})
            )
        )
    return tuple(curve)


def by_twin(basis: Basis, view: Forecast) -> Conclusion:
    """Return what the twin says of every cap, with what was measured beside it."""
    workload, ceiling, rungs = basis.workload, basis.settings.ceiling, basis.evidence.rungs()
    otherwise = cut_under_another(rungs, workload.slo)
    seen = {
        cap: each for cap, each in measured(rungs, workload.slo).items() if cap not in otherwise
    }
    curve = curve_by_twin(view, doubling(ceiling), seen)
    numbers = {point.numbers.max_num_seqs: point.numbers for point in curve}
    complete = basis.evidence.is_complete()
    verdict = verdict_by_twin(view, numbers, ceiling=ceiling, complete=complete)
    verdict = _warned(verdict, few(len(workload.twin_requests)))
    return Conclusion(_reachable(verdict, workload, curve), curve, view, by_twin=True)


def restated(conclusion: Conclusion, basis: Basis, view: Forecast) -> Conclusion:
    """Return the conclusion with the twin as the confirming replay corrected it. A choice that this
    would move stays as it was confirmed."""
    if conclusion.is_proven:
        seen = {
            each.measured.max_num_seqs: each.measured for each in conclusion.curve if each.measured
        }
        curve = curve_by_twin(view, [each.numbers.max_num_seqs for each in conclusion.curve], seen)
        return replace(conclusion, curve=curve, view=view)
    again = by_twin(basis, view)
    is_same = again.verdict.max_num_seqs == conclusion.verdict.max_num_seqs
    return again if is_same else replace(again, verdict=conclusion.verdict)


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
    lost = cut_under_another(rungs, workload.slo)
    verdict = _warned(
        _reachable(verdict, workload, curve),
        windows_decide(doubt),
        no_headroom(settings.headroom),
        cut_by_another_slo(lost),
    )
    return Conclusion(verdict, curve, view, by_twin=False)


def _warned(verdict: Verdict, *warnings: str | None) -> Verdict:
    return replace(verdict, warnings=(*verdict.warnings, *filter(None, warnings)))


def window_blocks(basis: Basis) -> list[Block]:
    """Return the rungs as the windows decide by them.

    Each window begins without a queue. So a cap serves no more of its windows than the queue of all
    of the traffic leaves it time for, where each request holds its slot as long as it did there.
    Turns that wait for each other grow no queue.
    """
    slo, rungs = basis.workload.slo, basis.evidence.rungs()
    if basis.settings.closed_sessions:
        return [rung.block(slo) for rung in rungs]
    return [_with_queue(rung, basis.workload) for rung in rungs]


def _with_queue(rung: MadeTrial, workload: Workload) -> Block:
    block = rung.block(workload.slo)
    numbers, held = block.measurement, slots_held(rung.replays.values(), workload.unloaded)
    share = 1.0 if held is None else workload.queued(rung.trial.max_num_seqs, held=held)
    if numbers.cut is None and share < numbers.attainment - GOOD_ATTAINMENT:
        goodput_rps = numbers.goodput_rps * share / numbers.attainment
        numbers = replace(
            numbers, attainment=share, attainment_bound=share, goodput_rps=goodput_rps
        )
    return replace(block, measurement=numbers)


def slots_held(replays: Iterable[Replay], unloaded: Unloaded) -> float | None:
    """Return for how long requests held their slots, as a multiple of what they do on an idle
    engine; None where the engine does not tell."""
    sent = np.concatenate([np.zeros(0, REQUEST), *(replay.requests for replay in replays)])
    held_s = e2el_s(sent) - queue_s(sent)
    known = ~np.isnan(held_s)
    lengths = zip(sent["input_length"][known], sent["output_tokens"][known], strict=True)
    alone_s = float(sum(unloaded.residence_s(*each) for each in lengths))
    return float(held_s[known].sum()) / alone_s if alone_s > 0 else None


def _measured_curve(
    measured: Mapping[int, Measurement], blocks: Sequence[Block]
) -> tuple[CurvePoint, ...]:
    _, samples = samples_of(blocks)
    steps, below = list[CurvePoint](), None
    for cap, numbers in measured.items():
        is_whole = numbers.cut is None
        bound = {"attainment": (numbers.attainment, numbers.attainment_bound)}
        steps.append(
            CurvePoint(
                numbers=numbers,
                measured=numbers,
                source="measured",
                intervals=samples.intervals(cap) if is_whole else bound,
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
    warnings = tuple(each for each in verdict.warnings if each != ADD_REPLICAS)
    return replace(verdict, kind="overloaded", reason=f"overloaded: {why}", warnings=warnings)
