"""The conclusion from everything that a run has measured: by the twin, or by the windows alone.

Needs no engine: a stored run is concluded anew under another SLO in seconds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from tuner.engines.seam import EngineFacts
from tuner.errors import RunError
from tuner.replay.numbers import Measurement, Spread
from tuner.replay.records import Replay, e2el_s, queue_s
from tuner.runs.journal import CONFIRMING, RUNGS, Journal, Replayed
from tuner.traffic.constants import GOOD_ATTAINMENT
from tuner.traffic.requirements import TIMES, Requirement, parse_requirements
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import parse_duration_s
from tuner.traffic.workload import Workload, parse_step_s
from tuner.twin.check import Number, alarm, check_at_own_speed, fit_front_end
from tuner.twin.forecast import Forecast, forecast
from tuner.twin.samples import SHARES, Range, Samples, slowdowns
from tuner.twin.simulation import FrontEnd
from tuner.twin.verdict import (
    Verdict,
    moved,
    samples_of,
    verdict_by_twin,
    verdict_by_windows,
)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The settings of a sweep."""

    ceiling: int
    slo: Slo | None
    """None: derived on the engine itself."""

    window: str
    """The part of the trace that is tuned for: ``all``, ``busiest`` or ``START+LEN``."""

    step_s: float
    """How long a step replays at most, in seconds."""

    budget_s: float
    """Engine time to spend, starts and replays together."""

    headroom: float
    closed_sessions: bool
    """A turn waits for the one before it. Then the windows decide: the twin knows open loops
    only."""

    trace_block_size: int
    """Tokens that one hash id of the trace stands for."""

    confirm: Literal["inproc", "server"] = "inproc"
    """Whether the engine that confirms the choice is one like the ladder's, or stands behind a
    server."""

    requirements: tuple[Requirement, ...] = ()
    """What breaks one is not chosen."""

    replicas: int = 1
    """Servers that share the trace's traffic, by this router; one of them is tuned."""

    router: str | None = None


def settings_in(plan: Mapping[str, Any], *, slo: Slo | None) -> SweepSettings:
    """Return the settings of a run from its plan: the options as the user wrote them, under this
    SLO.

    Raises UsageError for a value that cannot be, and KeyError, TypeError or ValueError for what is
    no plan.
    """
    headroom = float(plan["headroom"])
    return SweepSettings(
        ceiling=int(plan["ceiling"]),
        slo=slo,
        window=str(plan["window"]),
        step_s=parse_step_s(plan["step"]),
        budget_s=parse_duration_s(plan["budget"], option="--budget"),
        headroom=headroom,
        closed_sessions=bool(plan.get("closed_sessions")),
        trace_block_size=int(plan["trace_block_size"]),
        confirm="server" if plan.get("confirm") == "server" else "inproc",
        requirements=parse_requirements(list(plan.get("require", ())), headroom=headroom),
        replicas=int(plan.get("replicas", 1)) // int(plan.get("ranks", 1)),
        router=plan.get("router"),
    )


def doubling(ceiling: int) -> tuple[int, ...]:
    """Return the caps to try.

    >>> doubling(48)
    (1, 2, 4, 8, 16, 32, 48)
    """
    return (*(2**power for power in range((ceiling - 1).bit_length())), ceiling)


class CurvePoint(NamedTuple):
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

    doubt: str | None = None
    """Why the windows decided and not the twin; None where it was not asked."""

    is_proven: bool = False
    """Whether pairs of replays proved the choice: what is wrong with the twin costs its predictions
    alone."""

    @property
    def chosen(self) -> CurvePoint:
        cap = self.verdict.max_num_seqs
        return next(each for each in self.curve if each.numbers.max_num_seqs == cap)


class Basis(NamedTuple):
    """The basis of a conclusion: what was measured, of which traffic, under which settings."""

    journal: Journal
    workload: Workload
    settings: SweepSettings


def conclude(basis: Basis) -> Conclusion:
    """Return the verdict and the curve: by the twin, where it is believed."""
    view = None if basis.settings.closed_sessions else view_of(basis, printed=True)
    doubt = None if view is None else view.doubt
    if view is None or doubt is not None:
        return by_windows(basis, view, doubt)
    return by_twin(basis, view, basis.journal.measured(basis.workload.slo))


def view_of(
    basis: Basis,
    trials: Sequence[Replayed] | None = None,
    *,
    caps: Sequence[int] = (),
    facts: EngineFacts | None = None,
    printed: bool = False,
) -> Forecast | None:
    """Return the twin that is fitted to what was measured so far, or to these trials; None before
    anything of the engine has been seen."""
    journal, settings = basis.journal, basis.settings
    made = [(each, journal.replay(each)) for each in trials or journal.made()]
    is_served = any(start.facts.is_served for start in journal.starts())
    if not (logs := [replay.iterations for _, replay in made if len(replay.iterations)]):
        return None
    return forecast(
        logs,
        [replay for trial, replay in made if trial.window and trial.purpose != "short"],
        basis.workload,
        facts or journal.facts(),
        hash_block_size=settings.trace_block_size,
        caps=caps or doubling(settings.ceiling),
        requirements=settings.requirements,
        headroom=settings.headroom,
        # not in between, or else a resumed run, which has them, would measure other steps
        probes=journal.probed("confirm") if printed and is_served else (),
        printed=printed,
    )


# By the twin


def by_twin(basis: Basis, view: Forecast, seen: Mapping[int, Measurement]) -> Conclusion:
    """Return what the twin says of every cap, with what was measured (``seen``) beside it."""
    caps = view.choice.samples.caps
    samples, curve = view.promised(caps), list[CurvePoint]()
    for cap in caps:
        source: Literal["both", "twin"] = "both" if cap in seen else "twin"
        numbers, ranges = numbers_by_twin(view, samples, cap), samples.intervals(cap)
        curve.append(CurvePoint(numbers, seen.get(cap), source, ranges))
    verdict = verdict_by_twin(
        view,
        {point.numbers.max_num_seqs: point.numbers for point in curve},
        ceiling=max(caps),
        complete=basis.journal.is_complete(),
    )
    return Conclusion(verdict, tuple(curve), view, samples)


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
    rps = share * numbers.arrival_rate_rps
    spreads: dict[str, Any] = {f"{name}_s": spread_of(name) for name in TIMES}
    return replace(numbers, attainment=share, attainment_bound=share, goodput_rps=rps, **spreads)


# By the windows


def by_windows(basis: Basis, view: Forecast | None, doubt: str | None) -> Conclusion:
    """Return what the windows that were replayed say alone. ``doubt`` is why the twin does not.
    Raises RunError where none says anything."""
    journal, settings, windows = basis.journal, basis.settings, window_curve(basis)
    if not windows:
        raise RunError(
            f"{journal.run_dir}: no step of the ladder was measured under this SLO",
            hint="Continue the run first: tuner resume RUN_DIR; or sweep with this --slo.",
        )
    change = 0.0 if view is None else moved(view)
    samples, curve = samples_of(windows, change), list[CurvePoint]()
    for cap, numbers in journal.measured(basis.workload.slo).items():
        bound = {"attainment": (numbers.attainment, numbers.attainment_bound)}
        ranges = samples.intervals(cap) if numbers.cut is None else bound
        curve.append(CurvePoint(numbers, numbers, "measured", ranges))
    verdict = verdict_by_windows(
        windows,
        change,
        ceiling=settings.ceiling,
        complete=journal.is_complete(),
        requirements=settings.requirements,
    )
    return Conclusion(verdict, tuple(curve), view, doubt=doubt)


def window_curve(basis: Basis) -> dict[int, Measurement]:
    """Return what each cap served of its windows, as these decide.

    Each window begins without a queue. So a cap serves no more of its windows than the queue of all
    of the traffic leaves it time for, where each request holds its slot as long as it did there.
    Turns that wait for each other grow no queue.
    """
    journal, workload = basis.journal, basis.workload
    curve = journal.measured(workload.slo)
    for replay in () if basis.settings.closed_sessions else journal.replays(*RUNGS):
        cap = replay.max_num_seqs
        if replay.cut or (numbers := curve.get(cap)) is None:
            continue
        share = workload.queued(cap, held=slots_held(replay, workload.unloaded))
        if share < numbers.attainment - GOOD_ATTAINMENT:
            rps = numbers.goodput_rps * share / numbers.attainment
            curve[cap] = replace(numbers, attainment=share, attainment_bound=share, goodput_rps=rps)
    return curve


def slots_held(replay: Replay, unloaded: Unloaded) -> float:
    """Return for how long requests held their slots, as a multiple of what they do on an idle
    engine; 0 where the engine does not tell."""
    sent = replay.requests
    sent = sent[~np.isnan(e2el_s(sent) - queue_s(sent))]
    alone_s = float(np.sum(unloaded.residence_s(sent["input_length"], sent["output_tokens"])))
    return float((e2el_s(sent) - queue_s(sent)).sum()) / alone_s if alone_s > 0 else 0.0


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
    journal, view, verdict = basis.journal, conclusion.view, conclusion.verdict
    replays = journal.confirming("confirm", verdict.max_num_seqs)
    if view is None or not replays:
        return conclusion, None, None if view is None else view.machine.front_end
    law, machine, front_end = view.fitted.law, view.machine, view.machine.front_end
    if journal.facts().is_served:
        front_end = fit_front_end(law, journal.probed("confirm"), replays)
    check = check_at_own_speed(replays[-1], basis.workload.slo, law, view.shape, front_end)
    if conclusion.promised is None:
        pass
    elif (wrong := alarm(check)) is None:
        machine = replace(machine, front_end=front_end)
        if front_end is None:  # else its contention has how fast this engine was
            cap = verdict.max_num_seqs
            every = [each for name in CONFIRMING for each in journal.confirming(name, cap)]
            machine = machine.after([slowdowns(each.iterations, law) for each in every])
        conclusion = _restated(conclusion, basis, view.again(machine))
    elif conclusion.is_proven:
        conclusion = replace(conclusion, view=None, promised=None)
    else:
        doubt = f"the twin was wrong at the engine's own speed ({wrong})"
        reason = (
            f"{verdict.max_num_seqs} is the twin's choice: {doubt} in the replay that verifies it"
        )
        verdict = replace(verdict, kind="inconclusive", reason=reason)
        conclusion = replace(conclusion, verdict=verdict)
        if journal.made(*RUNGS):
            conclusion = by_windows(basis, view, doubt)
    return conclusion, check, front_end


def _restated(conclusion: Conclusion, basis: Basis, view: Forecast) -> Conclusion:
    known = [point.measured for point in conclusion.curve if point.measured]
    again, verdict = by_twin(basis, view, {x.max_num_seqs: x for x in known}), conclusion.verdict
    if not conclusion.is_proven and again.verdict.max_num_seqs == verdict.max_num_seqs:
        return again
    return replace(again, verdict=verdict, is_proven=conclusion.is_proven)
