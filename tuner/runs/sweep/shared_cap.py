"""One cap for several kinds of traffic: which loses least, and what it costs each. Pure.

A loss is counted in tolerances of the decision: 1 is where a cap stops being as good as the best
for every practical purpose (GOOD_ATTAINMENT, GOOD_TAIL), and 0 is no worse than the trace's own.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tuner.runs.outcome import Conclusion, SweepOutcome, predictions_of
from tuner.twin.forecast import StepChange
from tuner.twin.objective import (
    GOOD_ATTAINMENT,
    GOOD_TAIL,
    HALF,
    NOT_ASKED,
    Shares,
    Values,
    choose,
)
from tuner.twin.uncertainty import drawn_values, points, relative_changes

DEFENDED = 0.5
"""Share of draws that agree below which sharing and not sharing are a toss-up: more of them say the
other."""

PRICED = {
    "goodput_rps": ("goodput", "less", "more"),
    "e2el_p99_ms": ("p99 E2EL", "shorter", "longer"),
    "tpot_p95_ms": ("p95 TPOT", "shorter", "longer"),
}
"""Numbers that a price is told in → their names, and those of a fall and a rise."""

SharedCapKind = Literal["shared", "separate", "inconclusive"]


@dataclass(frozen=True, slots=True)
class TraceDemand:
    """The numbers of one trace at every cap."""

    trace: str
    own: int
    """The cap of its own profile."""

    values: Values
    """By the twin where it decided, else as measured; the tail of a cap that was cut is endless."""

    draws: tuple[tuple[Values, Shares], ...]
    """The same under laws, or noise, as likely; of each what it serves with headroom."""

    is_decided: bool
    """Whether its own verdict is one."""

    raised: Shares = field(default_factory=dict)
    """What every cap serves with headroom; nothing where the windows decided."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price that a trace pays for a cap that is not its own."""

    trace: str
    own: int
    loss: float
    """In tolerances; infinite where the cap was cut."""

    attainment: float
    """At the cap that is shared; at most that where it was cut."""

    changes: Mapping[str, StepChange]
    """Shares of goodput, p95 TPOT and p99 E2EL against its own cap; empty where that is shared or
    the cap was cut."""


@dataclass(frozen=True, slots=True)
class SharedCap:
    """The answer to whether one cap serves every trace, and which."""

    kind: SharedCapKind
    max_num_seqs: int
    """Where ``kind`` is ``separate``, the best compromise: not good enough for all."""

    interval: tuple[int, int]
    """The caps that 95 % of draws would share."""

    confidence: float
    """The share of draws that agree: that this cap serves all, or that none does."""

    losses: Mapping[str, Mapping[int, float]]
    """Trace → cap → loss."""


@dataclass(frozen=True, slots=True)
class MultiTraceOutcome:
    """The outcome of several traces."""

    outcomes: Mapping[str, SweepOutcome]
    """Trace → what it would have by itself."""

    shared_cap: SharedCap
    prices: tuple[Price, ...]
    """What each pays for the cap that is shared."""


def loss(values: Values, own: int, cap: int, raised: Shares = NOT_ASKED) -> float:
    """Return what ``cap`` loses against ``own``, in tolerances, today or with headroom; 0 where it
    loses nothing.

    >>> values = {8: (0.99, 0.0), 16: (0.98, 0.0)}
    >>> loss(values, 8, 16), loss(values, 8, 16, {8: 0.95, 16: 0.89})
    (0.5, 3.0)
    """
    if cap == own:
        return 0.0
    (best, shortest), (share, tail) = values[own], values[cap]
    longer = 0.0 if tail == shortest else tail - shortest  # both may be endless
    fewer = best - share
    if raised.get(own, 0.0) >= HALF:
        fewer = max(fewer, raised[own] - raised[cap])
    return max(0.0, round(fewer / GOOD_ATTAINMENT, 9), longer / math.log(GOOD_TAIL))


def compromise(losses: Mapping[str, Mapping[int, float]]) -> int:
    """Return the cap whose worst loss is least; the smallest of equals.

    >>> compromise({"day": {8: 3.0, 16: 0.0, 32: 0.2}, "night": {8: 0.0, 16: 0.6, 32: 0.6}})
    16
    """
    caps = set.intersection(*(set(of_cap) for of_cap in losses.values()))
    return min(caps, key=lambda cap: (max(of_cap[cap] for of_cap in losses.values()), cap))


def share(demands: Sequence[TraceDemand]) -> SharedCap:
    """Return the cap that all of these share. Draws of different traces are independent."""
    losses = {one.trace: _losses(one.values, one.raised, one.own) for one in demands}
    cap = compromise(losses)
    serves = _worst(losses, cap) <= 1
    count = max(len(one.draws) for one in demands)
    agree, picks = 0, []
    for number in range(count):
        drawn = {one.trace: one.draws[number % len(one.draws)] for one in demands}
        lost = {name: _losses(*said, choose(*said)) for name, said in drawn.items()}
        picks.append(compromise(lost))
        agree += (_worst(lost, cap) <= 1) if serves else (_worst(lost, picks[-1]) > 1)
    low, high = np.percentile(picks, (2.5, 97.5), method="nearest").tolist()
    confidence = agree / count
    decided = confidence >= DEFENDED and all(one.is_decided for one in demands)
    kind: SharedCapKind = ("shared" if serves else "separate") if decided else "inconclusive"
    return SharedCap(kind, cap, (min(low, cap), max(high, cap)), confidence, losses)


def _losses(values: Values, raised: Shares, own: int) -> dict[int, float]:
    return {cap: loss(values, own, cap, raised) for cap in values}


def _worst(losses: Mapping[str, Mapping[int, float]], cap: int) -> float:
    return max(of_cap[cap] for of_cap in losses.values())


def trace_demand(trace: str, conclusion: Conclusion) -> TraceDemand:
    """Return what a run's conclusion, or its measured blocks where the twin did not decide, says
    of every cap."""
    view, verdict, blocks = conclusion.view, conclusion.verdict, conclusion.blocks
    is_decided = verdict.kind != "inconclusive"
    if view is not None and conclusion.by_twin:
        weighed = view.weighed
        refused = weighed.values.keys() - weighed.eligible
        return TraceDemand(
            trace,
            verdict.max_num_seqs,
            _refusing(weighed.values, refused),
            tuple((_refusing(values, refused), raised) for values, raised in weighed.drawn()),
            is_decided,
            raised=weighed.raised,
        )

    curve = [
        replace(one, attainment=one.last.attainment_bound, blocks=1) if one.cut else one
        for one in points(blocks)
    ]
    values = {one.cap: (one.attainment, one.log_tail) for one in curve}
    draws = tuple((one, NOT_ASKED) for one in drawn_values(blocks, curve))
    return TraceDemand(trace, verdict.max_num_seqs, values, draws, is_decided)


def _refusing(values: Values, refused: Collection[int]) -> Values:
    """Return the values with those of refused caps the worst that there are."""
    return {cap: (0.0, math.inf) if cap in refused else one for cap, one in values.items()}


def price_of(demand: TraceDemand, conclusion: Conclusion, cap: int) -> Price:
    """Return what a trace pays for a cap, with 95 % intervals."""
    changes: Mapping[str, StepChange] = {}
    if cap != demand.own:
        if conclusion.view is not None and conclusion.by_twin:
            changes = conclusion.view.changes(demand.own, cap)
        else:
            found = relative_changes(conclusion.blocks, demand.own, cap)
            changes = {name: StepChange(*values) for name, values in found.items()}
    lost = loss(demand.values, demand.own, cap, demand.raised)
    return Price(demand.trace, demand.own, lost, demand.values[cap][0], changes)


def at_cap(outcome: SweepOutcome, cap: int) -> SweepOutcome:
    """Return what a run found, as of another cap than its own: what confirmed that is left out."""
    conclusion = outcome.conclusion
    if cap == outcome.verdict.max_num_seqs:
        return outcome
    view = conclusion.view
    predictions = predictions_of(view, cap) if view is not None and conclusion.by_twin else ()
    verdict = replace(outcome.verdict, max_num_seqs=cap, requirements=(), cure="")
    if view is not None and conclusion.by_twin:
        verdict = replace(verdict, requirements=view.weighed.bounds.checks(cap))
    return replace(
        outcome,
        conclusion=replace(conclusion, verdict=verdict),
        confirmed=None,
        with_headroom=None,
        predictions=predictions,
    )


def shared_outcome(found: MultiTraceOutcome) -> SweepOutcome:
    """Return what the profile for all is made of: the busiest trace's numbers at the shared cap."""
    shared_cap = found.shared_cap
    cap = shared_cap.max_num_seqs
    one = at_cap(found.outcomes[busiest(found.outcomes, cap)], cap)
    kind = "inconclusive" if shared_cap.kind == "inconclusive" else one.verdict.kind
    verdict = replace(
        one.verdict,
        kind=kind,
        interval=shared_cap.interval,
        confidence=shared_cap.confidence,
        reason=reason_of(found),
    )
    return replace(one, conclusion=replace(one.conclusion, verdict=verdict))


def busiest(outcomes: Mapping[str, SweepOutcome], cap: int) -> str:
    """Return the trace with the most requests running at a cap."""
    return max(outcomes, key=lambda name: outcomes[name].conclusion.step(cap).numbers.running_mean)


def reason_of(found: MultiTraceOutcome) -> str:
    """Say which cap serves all of them, or that none does, and what it costs each."""
    shared_cap, cap = found.shared_cap, found.shared_cap.max_num_seqs
    names = ", ".join(found.outcomes)
    costs = "; ".join(cost_of(price, cap) for price in found.prices)
    undecided = [name for name, one in found.outcomes.items() if one.verdict.kind == "inconclusive"]
    if shared_cap.kind == "shared":
        lost = ", ".join(overloaded(found))
        but = f", but no cap serves half of {lost} in time" if lost else ""
        return f"{cap} serves {names}, each within tolerance of its own best{but}: {costs}"
    if shared_cap.kind == "separate":
        return (
            f"no one cap serves {names} within tolerance of each one's own best; the best "
            f"compromise is {cap}: {costs}"
        )
    if undecided:
        why = f"{', '.join(undecided)} by itself is inconclusive"
    else:
        why = f"only {shared_cap.confidence:.0%} of what is as likely agrees"
    return f"inconclusive, {cap} is the best compromise so far, but {why}: {costs}"


def overloaded(found: MultiTraceOutcome) -> list[str]:
    """Return the traces that no cap serves within the SLO: there is nothing to put into rollout."""
    return [name for name, one in found.outcomes.items() if one.verdict.kind == "overloaded"]


def cost_of(price: Price, cap: int) -> str:
    """Say what one trace pays.

    >>> change = StepChange(-0.012, -0.02, -0.004)
    >>> cost_of(Price("night", 8, 0.6, 0.97, {"goodput_rps": change}), 16)
    'night would take 8 and has 1.2 % less goodput (0.4 to 2.0 %)'
    """
    if cap == price.own:
        return f"{cap} is best for {price.trace}"
    own = f"{price.trace} would take {price.own}"
    if math.isinf(price.loss) and not price.attainment:
        return f"{own} and is served nothing that keeps what is required"
    if math.isinf(price.loss):
        return (
            f"{own} and is served at most {price.attainment:.1%} within its SLO, so its replay was "
            "cut short"
        )
    told = [
        _in_words(change, *words)
        for name, words in PRICED.items()
        if (change := price.changes.get(name)) is not None
    ]
    return f"{own} and has {', '.join(told)}" if told else own


def _in_words(change: StepChange, name: str, fall: str, rise: str) -> str:
    """Return a change with its interval.

    >>> _in_words(StepChange(0.08, -0.01, 0.11), "p99 E2EL", "shorter", "longer")
    '8.0 % longer p99 E2EL (-1.0 to 11.0 %)'
    """
    sign, how = (1, rise) if change.value > 0 else (-1, fall)
    low, high = sorted(
        round(100 * sign * end, 1) + 0.0 for end in (change.low, change.high)
    )  # no -0.0
    return f"{100 * abs(change.value):.1f} % {how} {name} ({low} to {high} %)"
