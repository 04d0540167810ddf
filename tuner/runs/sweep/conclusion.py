"""The conclusion from everything that a run has measured: by the twin, or by the windows alone.

Needs no engine: a stored run is concluded anew under another SLO in seconds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tuner.engines.seam import EngineFacts, IterationLog
from tuner.errors import RunError
from tuner.replay.numbers import Measurement, Spread
from tuner.replay.records import ProbeResult, Replay, e2el_s, queue_s
from tuner.runs.evidence import Evidence, MadeTrial, measured
from tuner.runs.ladder import doubling
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep_warnings import few, no_headroom, windows_decide
from tuner.traffic.constants import GOOD_ATTAINMENT, HALF
from tuner.traffic.slo import Unloaded, out_of_reach
from tuner.traffic.workload import Workload
from tuner.twin.forecast import Forecast, forecast
from tuner.twin.samples import NUMBERS, SHARES, Range, Samples
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


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the twin predicts of a cap at one load: the middle of what fresh engines give again,
    with 95 % intervals."""

    load: float
    numbers: Measurement
    intervals: Mapping[str, Range]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion from the measurements of a run."""

    verdict: Verdict
    curve: tuple[CurvePoint, ...]
    view: Forecast | None
    """The twin; None when the budget ended the run before it was made."""

    promised: Samples | None = None
    """What fresh engines give again, which the curve is of; None where the windows decided."""

    is_proven: bool = False
    """Whether pairs of replays proved the choice: what is wrong with the twin costs its predictions
    alone."""

    @property
    def by_twin(self) -> bool:
        """Whether the twin decided, and not the windows alone."""
        return self.promised is not None

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
    return forecast_of(
        basis,
        evidence.logs(),
        [rung.replayed for rung in evidence.rungs()],
        caps=doubling(basis.settings.ceiling),
        # not in between, or else a resumed run, which has them, would measure other steps
        probes=evidence.probed() if printed else (),
        printed=printed,
    )


def forecast_of(  # noqa: PLR0913 - what was measured, and what is predicted
    basis: Basis,
    logs: Sequence[IterationLog],
    replays: Sequence[Replay],
    *,
    caps: Sequence[int],
    facts: EngineFacts | None = None,
    probes: Sequence[ProbeResult] = (),
    printed: bool = False,
) -> Forecast | None:
    """Return the twin that is fitted to these iterations, and checked against these replays; None
    without any iteration."""
    settings = basis.settings
    if not logs:
        return None
    return forecast(
        logs,
        replays,
        basis.workload,
        facts or basis.evidence.facts(),
        hash_block_size=settings.trace_block_size,
        caps=caps,
        requirements=settings.requirements,
        headroom=settings.headroom,
        seed=settings.seed,
        probes=probes,
        printed=printed,
    )


# By the twin


def by_twin(basis: Basis, view: Forecast) -> Conclusion:
    """Return what the twin says of every cap, with what was measured beside it."""
    workload, ceiling, rungs = basis.workload, basis.settings.ceiling, basis.evidence.rungs()
    samples = view.promised(doubling(ceiling))
    curve = curve_by_twin(view, samples, measured(rungs, workload.slo))
    numbers = {point.numbers.max_num_seqs: point.numbers for point in curve}
    complete = basis.evidence.is_complete()
    verdict = verdict_by_twin(view, numbers, ceiling=ceiling, complete=complete)
    verdict = _warned(verdict, few(len(workload.twin_requests)))
    return Conclusion(_reachable(verdict, workload, curve), curve, view, samples)


def curve_by_twin(
    view: Forecast, samples: Samples, seen: Mapping[int, Measurement]
) -> tuple[CurvePoint, ...]:
    """Return the twin's curve, with what was measured (``seen``) beside it."""
    return tuple(
        CurvePoint(
            prediction.numbers,
            seen.get(cap),
            "both" if cap in seen else "twin",
            samples.intervals(cap),
        )
        for cap in samples.caps
        for prediction in [prediction_of(view, samples, cap)]
    )


def prediction_of(
    view: Forecast, samples: Samples, cap: int, *, raised: bool = False
) -> Prediction:
    """Return what the twin predicts of a cap, at the recorded load or with headroom."""
    numbers = view.measurement(cap, raised=raised)

    def middle(name: str) -> float:
        return samples.middle(name, cap, raised=raised)

    def spread_of(name: str) -> Spread | None:
        spread = Spread(*(middle(f"{name}_{each}_s") for each in ("mean", *SHARES)))
        return None if math.isnan(spread.mean) else spread

    share = middle("attainment")
    numbers = replace(
        numbers,
        attainment=share,
        attainment_bound=share,
        goodput_rps=share * numbers.arrival_rate_rps,
        ttft_s=spread_of("ttft"),
        tpot_s=spread_of("tpot"),
        e2el_s=spread_of("e2el"),
        queue_s=spread_of("queue"),
    )
    intervals = samples.intervals(cap, raised=raised, names=NUMBERS)
    return Prediction(view.headroom if raised else 1.0, numbers, intervals)


def restated(conclusion: Conclusion, basis: Basis, view: Forecast) -> Conclusion:
    """Return the conclusion with the twin as the confirming replay corrected it. A choice that this
    would move stays as it was confirmed."""
    if not conclusion.is_proven:
        again = by_twin(basis, view)
        is_same = again.verdict.max_num_seqs == conclusion.verdict.max_num_seqs
        return again if is_same else replace(again, verdict=conclusion.verdict)
    measured_ = [each.measured for each in conclusion.curve if each.measured is not None]
    samples = view.promised([each.numbers.max_num_seqs for each in conclusion.curve])
    curve = curve_by_twin(view, samples, {each.max_num_seqs: each for each in measured_})
    return replace(conclusion, curve=curve, view=view, promised=samples)


# By the windows


def by_windows(basis: Basis, view: Forecast | None, *, doubt: str | None) -> Conclusion:
    """Return what the windows that were replayed say alone. ``doubt`` is why the twin does not.
    Raises RunError where none says anything."""
    evidence, workload, settings = basis.evidence, basis.workload, basis.settings
    blocks = window_blocks(basis)
    if not blocks:
        raise RunError(
            f"{evidence.journal.run_dir}: no step of the ladder was measured under this SLO",
            hint="Continue the run first: tuner resume RUN_DIR; or sweep with this --slo.",
        )
    curve = _measured_curve(measured(evidence.rungs(), workload.slo), blocks)
    verdict = verdict_by_windows(
        blocks,
        ceiling=settings.ceiling,
        complete=evidence.is_complete(),
        requirements=settings.requirements,
    )
    verdict = _warned(
        _reachable(verdict, workload, curve),
        windows_decide(doubt),
        no_headroom(settings.headroom),
    )
    return Conclusion(verdict, curve, view)


def window_blocks(basis: Basis) -> list[Block]:
    """Return the rungs as the windows decide by them.

    Each window begins without a queue. So a cap serves no more of its windows than the queue of all
    of the traffic leaves it time for, where each request holds its slot as long as it did there.
    Turns that wait for each other grow no queue.
    """
    slo, rungs = basis.workload.slo, basis.evidence.rungs()
    known = measured(rungs, slo)
    rungs = [rung for rung in rungs if rung.begun.max_num_seqs in known]
    if basis.settings.closed_sessions:
        return [rung.block(slo) for rung in rungs]
    return [_with_queue(rung, basis.workload) for rung in rungs]


def _with_queue(rung: MadeTrial, workload: Workload) -> Block:
    block = rung.block(workload.slo)
    numbers, held = block.measurement, slots_held(rung.replayed, workload.unloaded)
    share = 1.0 if held is None else workload.queued(rung.trial.max_num_seqs, held=held)
    if numbers.cut is None and share < numbers.attainment - GOOD_ATTAINMENT:
        rps = numbers.goodput_rps * share / numbers.attainment
        numbers = replace(numbers, attainment=share, attainment_bound=share, goodput_rps=rps)
    return replace(block, measurement=numbers)


def slots_held(replay: Replay, unloaded: Unloaded) -> float | None:
    """Return for how long requests held their slots, as a multiple of what they do on an idle
    engine; None where the engine does not tell."""
    sent = replay.requests
    held_s = e2el_s(sent) - queue_s(sent)
    known = ~np.isnan(held_s)
    lengths = zip(sent["input_length"][known], sent["output_tokens"][known], strict=True)
    alone_s = float(sum(unloaded.residence_s(*each) for each in lengths))
    return float(held_s[known].sum()) / alone_s if alone_s > 0 else None


def _measured_curve(
    measured: Mapping[int, Measurement], blocks: Sequence[Block]
) -> tuple[CurvePoint, ...]:
    samples = samples_of(blocks)
    steps = []
    for cap, numbers in measured.items():
        bound = {"attainment": (numbers.attainment, numbers.attainment_bound)}
        intervals = samples.intervals(cap) if numbers.cut is None else bound
        steps.append(CurvePoint(numbers, numbers, "measured", intervals))
    return tuple(steps)


def _warned(verdict: Verdict, *warnings: str | None) -> Verdict:
    return replace(verdict, warnings=(*verdict.warnings, *filter(None, warnings)))


def _reachable(verdict: Verdict, workload: Workload, curve: Sequence[CurvePoint]) -> Verdict:
    """Blame neither the load nor the ceiling for an SLO that an idle engine breaks."""
    why = out_of_reach(workload.slo, workload.unloaded)
    if why is None or any(step.numbers.attainment >= HALF for step in curve):
        return verdict
    warnings = tuple(each for each in verdict.warnings if each != ADD_REPLICAS)
    return replace(verdict, kind="overloaded", reason=why, warnings=warnings)
