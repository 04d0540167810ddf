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
from tuner.runs.evidence import CONFIRMING, RUNGS, Evidence
from tuner.runs.journal import Replayed
from tuner.runs.ladder import doubling
from tuner.runs.settings import SweepSettings
from tuner.traffic.constants import GOOD_ATTAINMENT, HALF
from tuner.traffic.description import FEW_REQUESTS
from tuner.traffic.slo import Unloaded, out_of_reach
from tuner.traffic.workload import Workload
from tuner.twin.check import Number, alarm, check_at_own_speed, fit_front_end
from tuner.twin.forecast import Forecast, forecast
from tuner.twin.samples import SHARES, Range, Samples, slowdowns
from tuner.twin.simulation import FrontEnd
from tuner.twin.verdict import ADD_REPLICAS, Verdict, verdict_by_twin, verdict_by_windows
from tuner.twin.windows import Block, Trial, samples_of


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One cap of the curve."""

    numbers: Measurement
    """The twin's over the whole part; where it is not believed, as measured in the windows."""

    measured: Measurement | None
    """As measured in the windows; None where none were replayed."""

    source: Literal["measured", "twin", "both"]
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

    @property
    def chosen(self) -> CurvePoint:
        cap = self.verdict.max_num_seqs
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
    if view is not None and view.doubt is None:
        return by_twin(basis, view)
    return by_windows(basis, view, doubt=None if view is None else view.doubt)


def view_of(basis: Basis, *, printed: bool = False) -> Forecast | None:
    """Return what the twin says so far; None before anything of the engine has been seen."""
    evidence = basis.evidence
    return forecast_of(
        basis,
        evidence.logs(),
        evidence.replays(*RUNGS),
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
    if not logs:
        return None
    return forecast(
        logs,
        replays,
        basis.workload,
        facts or basis.evidence.facts(),
        hash_block_size=basis.settings.trace_block_size,
        caps=caps,
        requirements=basis.settings.requirements,
        headroom=basis.settings.headroom,
        probes=probes,
        printed=printed,
    )


# By the twin


def by_twin(basis: Basis, view: Forecast) -> Conclusion:
    """Return what the twin says of every cap, with what was measured beside it."""
    workload, ceiling = basis.workload, basis.settings.ceiling
    samples, warnings = view.promised(doubling(ceiling)), list[str]()
    curve = curve_by_twin(view, samples, basis.evidence.measured(workload.slo))
    numbers = {point.numbers.max_num_seqs: point.numbers for point in curve}
    complete = basis.evidence.is_complete()
    verdict = verdict_by_twin(view, numbers, ceiling=ceiling, complete=complete)
    if (count := len(workload.twin_requests)) < FEW_REQUESTS:
        warnings.append(
            f"a tuning of {count} request{'s' * (count != 1)} says little: what is sure of them is "
            "not sure of the next ones; capture more"
        )
    return Conclusion(_reachable(verdict, workload, curve, warnings), curve, view, samples)


def curve_by_twin(
    view: Forecast, samples: Samples, seen: Mapping[int, Measurement]
) -> tuple[CurvePoint, ...]:
    """Return the twin's curve, with what was measured (``seen``) beside it."""
    return tuple(
        CurvePoint(
            numbers_by_twin(view, samples, cap),
            seen.get(cap),
            "both" if cap in seen else "twin",
            samples.intervals(cap),
        )
        for cap in samples.caps
    )


def numbers_by_twin(
    view: Forecast, samples: Samples, cap: int, *, raised: bool = False
) -> Measurement:
    """Return what the twin predicts of a cap, at the recorded load or with headroom: the middle of
    what fresh engines give again."""
    numbers = view.measurement(cap, raised=raised)

    def spread_of(name: str) -> Spread | None:
        names = [f"{name}_{each}_s" for each in ("mean", *SHARES)]
        spread = Spread(*(samples.middle(each, cap, raised=raised) for each in names))
        return None if math.isnan(spread.mean) else spread

    share = samples.middle("attainment", cap, raised=raised)
    return replace(
        numbers,
        attainment=share,
        attainment_bound=share,
        goodput_rps=share * numbers.arrival_rate_rps,
        ttft_s=spread_of("ttft"),
        tpot_s=spread_of("tpot"),
        e2el_s=spread_of("e2el"),
        queue_s=spread_of("queue"),
    )


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
    samples, curve = samples_of(blocks), list[CurvePoint]()
    for cap, numbers in evidence.measured(workload.slo).items():
        bound = {"attainment": (numbers.attainment, numbers.attainment_bound)}
        intervals = samples.intervals(cap) if numbers.cut is None else bound
        curve.append(CurvePoint(numbers, numbers, "measured", intervals))
    verdict = verdict_by_windows(
        blocks,
        ceiling=settings.ceiling,
        complete=evidence.is_complete(),
        requirements=settings.requirements,
    )
    warnings = []
    if doubt is not None:
        warnings.append(
            f"{doubt}, so the windows that were replayed decide alone: they say less of the rest "
            "of the trace; a larger --budget or a quieter machine lets the twin decide"
        )
    if settings.headroom > 1:
        warnings.append(
            "the windows decide, so the choice is for the recorded load: watch it with tuner watch"
        )
    return Conclusion(_reachable(verdict, workload, curve, warnings), tuple(curve), view)


def window_blocks(basis: Basis) -> list[Block]:
    """Return the rungs as the windows decide by them.

    Each window begins without a queue. So a cap serves no more of its windows than the queue of all
    of the traffic leaves it time for, where each request holds its slot as long as it did there.
    Turns that wait for each other grow no queue.
    """
    evidence, blocks = basis.evidence, list[Block]()
    known = evidence.measured(basis.workload.slo)
    for rung in evidence.made(*RUNGS):
        if (cap := rung.max_num_seqs) in known:
            numbers = evidence.numbers(rung, basis.workload.slo)
            if not basis.settings.closed_sessions:
                numbers = _with_queue(basis, rung, numbers)
            blocks.append(Block(Trial(cap, rung.purpose), numbers))  # type: ignore[arg-type]
    return blocks


def _with_queue(basis: Basis, rung: Replayed, numbers: Measurement) -> Measurement:
    replay, workload = basis.evidence.journal.replay(rung), basis.workload
    held = slots_held(replay, workload.unloaded)
    share = 1.0 if held is None else workload.queued(rung.max_num_seqs, held=held)
    if numbers.cut is not None or share >= numbers.attainment - GOOD_ATTAINMENT:
        return numbers
    rps = numbers.goodput_rps * share / numbers.attainment
    return replace(numbers, attainment=share, attainment_bound=share, goodput_rps=rps)


def slots_held(replay: Replay, unloaded: Unloaded) -> float | None:
    """Return for how long requests held their slots, as a multiple of what they do on an idle
    engine; None where the engine does not tell."""
    sent = replay.requests
    held_s = e2el_s(sent) - queue_s(sent)
    known = ~np.isnan(held_s)
    lengths = zip(sent["input_length"][known], sent["output_tokens"][known], strict=True)
    alone_s = float(sum(unloaded.residence_s(*each) for each in lengths))
    return float(held_s[known].sum()) / alone_s if alone_s > 0 else None


def _reachable(
    verdict: Verdict, workload: Workload, curve: Sequence[CurvePoint], warnings: Sequence[str]
) -> Verdict:
    """Return the verdict with more warnings. Blame neither the load nor the ceiling for an SLO that
    an idle engine breaks."""
    verdict = replace(verdict, warnings=(*verdict.warnings, *warnings))
    why = out_of_reach(workload.slo, workload.unloaded)
    if why is None or any(point.numbers.attainment >= HALF for point in curve):
        return verdict
    others = tuple(each for each in verdict.warnings if each != ADD_REPLICAS)
    return replace(verdict, kind="overloaded", reason=why, warnings=others)


# After the confirming replay


def confirmed(
    conclusion: Conclusion, basis: Basis
) -> tuple[Conclusion, tuple[Number, ...] | None, FrontEnd | None]:
    """Return the conclusion after the confirming replay, the twin against that replay, and what its
    requests came through.

    Where the scheduler model failed at the engine's own speed, the windows decide; without windows
    nothing does. What is required is compared behind the front end that the replay showed. A choice
    that this would move stays as it was confirmed.
    """
    evidence, view, cap = basis.evidence, conclusion.view, conclusion.verdict.max_num_seqs
    replays, slo = evidence.confirming("confirm", cap), basis.workload.slo
    if view is None or not replays:
        return conclusion, None, None if view is None else view.machine.front_end
    law, machine = view.fitted.law, view.machine
    front_end = machine.front_end
    if evidence.facts().is_served:
        front_end = fit_front_end(law, evidence.probed(), replays)
    check = check_at_own_speed(replays[-1], slo, law, view.shape, front_end)
    if not conclusion.by_twin:
        return conclusion, check, front_end
    if (wrong := alarm(check)) is None:
        machine = replace(machine, front_end=front_end)
        if front_end is None:  # else its contention has how fast this engine was
            every = [each for name in CONFIRMING for each in evidence.confirming(name, cap)]
            machine = machine.after([slowdowns(each.iterations, law) for each in every])
        return _restated(conclusion, basis, view.again(machine)), check, front_end
    if conclusion.is_proven:
        return replace(conclusion, view=None, promised=None), check, front_end
    doubt = f"the twin was wrong at the engine's own speed ({wrong})"
    if evidence.made(*RUNGS):
        return by_windows(basis, view, doubt=doubt), check, front_end
    reason = f"{cap} is the twin's choice: {doubt} in the replay that verifies it"
    verdict = replace(conclusion.verdict, kind="inconclusive", reason=reason)
    return replace(conclusion, verdict=verdict), check, front_end


def _restated(conclusion: Conclusion, basis: Basis, view: Forecast) -> Conclusion:
    if not conclusion.is_proven:
        again = by_twin(basis, view)
        is_same = again.verdict.max_num_seqs == conclusion.verdict.max_num_seqs
        return again if is_same else replace(again, verdict=conclusion.verdict)
    seen = {each.measured.max_num_seqs: each.measured for each in conclusion.curve if each.measured}
    samples = view.promised([each.numbers.max_num_seqs for each in conclusion.curve])
    curve = curve_by_twin(view, samples, seen)
    return replace(conclusion, curve=curve, view=view, promised=samples)
