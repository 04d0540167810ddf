"""The knee, and the reason for it. Pure: numbers in, a verdict out.

The objective is ``twin.objective``'s. ``verdict_by_twin`` decides by the twin's draws for the whole
trace. Where the twin is not believed, ``decide`` decides by draws of the windows that were
replayed: the same rule on the same kind of array (``twin.choice.decided``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tuner.replay.measure import Measurement
from tuner.traffic.requirements import Requirement, RequirementCheck
from tuner.twin.choice import Bounds, decided
from tuner.twin.forecast import Forecast
from tuner.twin.objective import (
    EQUAL_ATTAINMENT,
    EQUAL_TAIL,
    HALF,
    NOT_ASKED,
    candidates,
    choose,
)
from tuner.twin.uncertainty import Block, Point, drift, never_binds, noise, points, samples_of
from tuner.twin.verdict_text import (
    Verdict,
    headline,
    kind_of,
    kv_warnings,
    overloaded,
    still_rises,
    unfinished,
)

CONFIDENT, DEFENSIBLE = 0.95, 0.80
"""Shares of agreeing draws: below the first measure more, below the second it is inconclusive."""

DRIFT_LIMIT = 0.10
"""A change of the machine's speed that is reported; a promise's tolerance is as large."""

DRIFT_REFUSED = 0.30
"""A machine that became so much slower or faster, and stayed so, makes no curve."""

SPEED_SD_LIMIT, STALLED_LIMIT = 0.08, 0.02
"""Variation of the machine's speed, and share of its time in stalls, that are reported."""


def moved(view: Forecast) -> float:
    """Return how much slower the machine was at the end than at the beginning, by the law's blocks
    of time; 0.1 is 10 % slower."""
    slowdown = view.fitted.slowdown
    few = max(1, min(4, len(slowdown) // 2))
    if len(slowdown) < 2:
        return 0.0
    return float(np.median(slowdown[-few:]) / np.median(slowdown[:few])) - 1


def verdict_by_twin(
    view: Forecast, curve: Mapping[int, Measurement], *, ceiling: int, complete: bool = True
) -> Verdict:
    """Return the twin's verdict. ``curve`` holds what it predicts of every cap, ascending.

    ``complete`` is False when the budget ended the run before ``next_for_twin`` did.
    """
    weighed, points_ = view.weighed, _points_of(view, curve)
    warnings = _machine_warnings(view)
    if not complete:
        warnings.append(
            "the run ended early: fewer caps were replayed than planned; give a larger --budget"
        )
    if max(point.attainment for point in points_) < HALF:
        return _as_required(_overloaded(view, points_, ceiling, warnings), view)
    eligible = weighed.eligible
    seen = {cap: value for cap, value in eligible.items() if cap not in weighed.unseen}
    cap = weighed.best
    if cap not in seen and seen:  # what is safe to serve is not a guess
        cap = choose(seen, weighed.raised, requests=len(view.traffic))
    interval = (min(cap, weighed.interval[0]), max(cap, weighed.interval[1]))
    best = next(point for point in points_ if point.cap == cap)
    refused = [point.cap for point in points_ if point.cap > cap and point.cap not in eligible]
    kind, why = kind_of(best, [point for point in points_ if point.cap in eligible], ceiling)
    if refused:
        kind, why = "knee", f"{refused[0]} breaks {weighed.bounds.shown(refused[0])}"
    why = f"{_choice_in_words(view, cap)}; {why}"
    warnings += kv_warnings(best)
    if guessed := [each for each in weighed.unseen if each in weighed.rightness]:
        warnings.append(
            f"batches larger than {view.fitted.extrapolated_from} were never seen: predictions of "
            f"{', '.join(map(str, guessed))} are a guess; a larger --budget would show them"
        )
    if (doubt := _doubt(view)) is not None:
        kind, why = "inconclusive", doubt
    elif weighed.confidence < CONFIDENT:
        warnings.append(_rivals(weighed.confidence))
    reason = f"{headline(kind, cap, interval)}: {why}"
    verdict = Verdict(kind, cap, interval, weighed.confidence, reason, tuple(warnings))
    return _as_required(verdict, view)


def _rivals(confidence: float) -> str:
    return (
        f"confidence {confidence:.2f} is below {CONFIDENT}: rivals are close; a larger --budget "
        "tells them apart"
    )


def _as_required(verdict: Verdict, view: Forecast) -> Verdict:
    """Return the verdict with what is known of every requirement at its cap. Where no cap keeps
    all, also with what comes nearest and the load that would do."""
    bounds = view.weighed.bounds
    checks = bounds.checks(verdict.max_num_seqs)
    if all(check.is_kept for check in checks):
        return replace(verdict, requirements=checks)
    nearest = bounds.nearest()
    load = view.load_that_meets(nearest)
    would = "no load is small enough for it: ask for less"
    if load > 0:
        would = (
            f"it keeps all at {load:.2f} times the load: share this one among "
            f"{math.ceil(1 / load)} replicas"
        )
    cure = f"{nearest} comes nearest and breaks {bounds.shown(nearest)}; {would}"
    return replace(verdict, requirements=checks, cure=cure)


def _choice_in_words(view: Forecast, cap: int) -> str:
    """Return what makes this the cap to take, and what a smaller one would do."""
    weighed, requests = view.weighed, len(view.traffic)
    values, load = weighed.eligible, f"at {view.headroom:g} times the load"
    if cap != choose(values, weighed.raised, requests=requests):
        return (
            f"it serves your traffic as well as any in {weighed.agreeing} of {weighed.draws} draws"
        )
    text = "the fewest slots that serve your traffic as well as any"
    if len(values) < len(weighed.values):
        text += " that keep what is required"
    if not weighed.raised:
        return text
    equal = candidates(values, requests=requests)
    if max(weighed.raised[each] for each in equal) < HALF:
        return (
            f"{text} today; none of these serves half of it {load}, and {cap} holds up to "
            f"{view.most_load(cap):.2f} times"
        )
    text += f", today and {load}"
    smaller = [each for each in equal if each < cap]
    if smaller:
        text += f"; {smaller[-1]} would fall to {weighed.raised[smaller[-1]]:.0%}"
    return text


def _points_of(view: Forecast, curve: Mapping[int, Measurement]) -> list[Point]:
    return [
        Point(
            cap=cap,
            blocks=0,
            cut=False,
            attainment=view.weighed.values[cap][0],
            log_tail=view.weighed.values[cap][1],
            goodput_rps=one.goodput_rps,
            log_tpot=math.log(one.tpot_s.p95) if one.tpot_s else None,
            last=one,
        )
        for cap, one in curve.items()
    ]


def _doubt(view: Forecast) -> str | None:
    """Return why no choice can be defended, and what would help; None when one can."""
    weighed, change = view.weighed, moved(view)
    if abs(change) > DRIFT_REFUSED:
        return (
            f"the machine became {_changed(change)} during the run; measure on a machine that "
            "nobody else uses"
        )
    if weighed.best in weighed.unseen:
        return (
            f"{weighed.best} may be better, with batches larger than the "
            f"{view.fitted.extrapolated_from} that were seen; a larger --budget or a longer --step "
            "would show them"
        )
    return None if weighed.confidence >= DEFENSIBLE else _within_noise(weighed.interval)


def _within_noise(interval: tuple[int, int]) -> str:
    return (
        f"between {interval[0]} and {interval[1]} the differences are within the noise; "
        "a longer --step or a quieter machine would resolve it"
    )


def _changed(change: float) -> str:
    return f"{abs(change):.0%} {'slower' if change > 0 else 'faster'}"


def _overloaded(
    view: Forecast, curve: Sequence[Point], ceiling: int, warnings: Sequence[str]
) -> Verdict:
    """Return the verdict where no cap meets half of the SLO, or none yet because more slots would
    still serve more."""
    weighed, top = view.weighed, curve[-1]
    found = replace(
        overloaded(curve, weighed.best), interval=weighed.interval, confidence=weighed.confidence
    )
    if not still_rises(curve):
        return replace(found, warnings=(*found.warnings, *warnings))
    return replace(
        found,
        kind="not_reached",
        max_num_seqs=top.cap,
        interval=(top.cap, top.cap),
        reason=(
            f"{headline('not_reached', top.cap, (top.cap, top.cap))}: {top.attainment:.0%} are "
            f"served within the SLO there and each doubling serves more; sweep with --ceiling "
            f"{2 * ceiling}"
        ),
        warnings=tuple(warnings),
    )


def _machine_warnings(view: Forecast) -> list[str]:
    """Return what the machine did while it was measured."""
    found = []
    change, speed_sd = moved(view), view.speed_sd
    if abs(change) > DRIFT_LIMIT:
        found.append(
            f"the machine drifted: it was {_changed(change)} at the end than at the beginning; the "
            "choice allows for it, the latencies are of its usual speed; use a quieter one"
        )
    if speed_sd > SPEED_SD_LIMIT:
        found.append(
            f"the machine's speed varies by {speed_sd:.0%}, and the promise with it: keep others "
            "off its cores to promise more"
        )
    if view.stalled_share > STALLED_LIMIT:
        found.append(
            f"{view.stalled_share:.0%} of the engine's time went into stalls, which the promise "
            "knows nothing of: find what holds it up"
        )
    return found


def decide(
    blocks: Sequence[Block],
    *,
    ceiling: int,
    complete: bool = True,
    requirements: Sequence[Requirement] = (),
) -> Verdict:
    """Return the verdict that these blocks support, of the caps that keep what is required of
    the recorded load where any does.

    ``complete`` is False when the budget ended the run before ``next_trial`` did.
    """
    bounds = _measured_bounds(points(blocks), requirements)
    refused = [cap for cap in bounds.of_cap if bounds.broken(cap)]
    if len(refused) == len(bounds.of_cap):  # none keeps all: as if nothing was required
        refused = []
    kept = [block for block in blocks if block.trial.max_num_seqs not in refused]
    verdict = _by_windows(kept, ceiling, complete)
    above = [cap for cap in refused if cap > verdict.max_num_seqs]
    if above and verdict.kind in {"plateau", "not_reached"}:
        head = headline("knee", verdict.max_num_seqs, verdict.interval)
        reason = f"{head}: {above[0]} breaks {bounds.shown(above[0])}"
        verdict = replace(verdict, kind="knee", reason=reason)
    cure = ""
    if bounds.broken(verdict.max_num_seqs):
        nearest = bounds.nearest()
        cure = f"{nearest} comes nearest and breaks {bounds.shown(nearest)}; share the load"
    numbers = bounds.of_cap.get(verdict.max_num_seqs, {})
    checks = tuple(RequirementCheck(each, None, numbers.get(each)) for each in requirements)
    return replace(verdict, requirements=checks, cure=cure)


def _measured_bounds(curve: Sequence[Point], requirements: Sequence[Requirement]) -> Bounds:
    """Return how far caps that were replayed whole keep what is required of the recorded load."""
    today = tuple(each for each in requirements if not each.at_headroom)
    found = {}
    for point in curve:
        numbers = {each: each.value_in(point.last) for each in today}
        if not point.cut:
            found[point.cap] = {
                each: math.nan if value is None else value for each, value in numbers.items()
            }
    return Bounds(today, found)


def _by_windows(blocks: Sequence[Block], ceiling: int, complete: bool) -> Verdict:
    curve = points(blocks)
    alive = [point for point in curve if not point.cut]
    if not complete and not ladder_is_done(blocks) and curve[-1].cap < ceiling:
        return unfinished(curve, best_of(alive).cap if alive else curve[-1].cap, ceiling)
    if not alive or max(point.attainment for point in alive) < HALF:
        return overloaded(curve)
    best = best_of(alive)
    values, samples = samples_of(blocks)
    weighed = decided(values, NOT_ASKED, samples, bounds=Bounds())
    agreeing = weighed.rightness[best.cap]  # the windows chose; the draws say how sure it is
    interval = (min(best.cap, weighed.interval[0]), max(best.cap, weighed.interval[1]))
    kind, why = kind_of(best, curve, ceiling)
    warnings = kv_warnings(best)
    if abs(change := drift(blocks)) > DRIFT_LIMIT:
        drifted = (
            f"the machine drifted: decode time of the first step was {change:+.0%} when measured "
            "again; the noise estimate includes it, a quieter machine would be surer"
        )
        warnings = [drifted, *warnings]
    if agreeing < DEFENSIBLE:
        kind, why = "inconclusive", _within_noise(interval)
    elif agreeing < CONFIDENT:
        warnings.append(_rivals(agreeing))
    reason = f"{headline(kind, best.cap, interval)}: {why}"
    return Verdict(kind, best.cap, interval, agreeing, reason, tuple(warnings))


def best_of(alive: Sequence[Point]) -> Point:
    cap = choose({point.cap: (point.attainment, point.log_tail) for point in alive})
    return next(point for point in alive if point.cap == cap)


def ladder_is_done(blocks: Sequence[Block]) -> bool:
    """Whether a larger cap cannot help: the top never bound, or is worse than the best for sure."""
    curve = points(blocks)
    alive = [point for point in curve if not point.cut]
    if not alive:
        return False
    top, best = curve[-1], best_of(alive)
    if top.cut:
        return top.last.attainment_bound < best.attainment - EQUAL_ATTAINMENT
    if never_binds(top.last):
        return True
    tail_sd, _ = noise(blocks, "e2el_p99_ms")
    sure = math.log(EQUAL_TAIL) + 1.645 * math.sqrt(2) * tail_sd
    return top.log_tail > best.log_tail + sure and top.attainment <= best.attainment
