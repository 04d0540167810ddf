"""The verdict: the cap to use, how sure that is, and the sentence that says why. Pure.

The model decides by its draws for the whole trace (``verdict_by_twin``). Where it is not believed,
draws of the windows that were replayed decide (``verdict_by_windows``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.replay.numbers import Measurement
from tuner.traffic.constants import (
    CONFIDENT,
    DEFENSIBLE,
    DRIFT_LIMIT,
    DRIFT_REFUSED,
    EQUAL_ATTAINMENT,
    EQUAL_TAIL,
    HALF,
    KV_FULL,
    NEARLY_ALL,
    NO_CONFIDENCE,
    RISES,
    SPEED_SD_LIMIT,
    STALLED_LIMIT,
    VerdictKind,
)
from tuner.traffic.requirements import Requirement, RequirementCheck
from tuner.twin.decide import Bounds, Choice, decide, rule
from tuner.twin.forecast import Forecast
from tuner.twin.windows import Block, drift, never_binds, noise, own_of, pooled, samples_of

Curve = Mapping[int, Measurement]
"""Cap → its numbers, ascending."""

MORE_MEMORY = "raise gpu_memory_utilization, lower max_model_len or kv_cache_dtype"
BEFORE_THAT = "add a replica before that load comes (tuner plan)"
"""Cure of a choice that was replayed with headroom and falls short of its prediction."""

ADD_REPLICAS = "the SLO cannot be met at this load: add replicas or relax the SLO"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, its uncertainty, and its reason in words."""

    kind: VerdictKind
    max_num_seqs: int
    interval: tuple[int, int]
    confidence: float
    reason: str
    warnings: tuple[str, ...] = ()
    requirements: tuple[RequirementCheck, ...] = ()
    """What is required of it, and whether it is kept."""

    cure: str = ""
    """Where nothing keeps it: what comes nearest, and what would."""

    @property
    def is_defended(self) -> bool:
        """Whether it may be acted on: whatever its kind, one without confidence may not."""
        return self.kind != "inconclusive" and self.confidence >= NO_CONFIDENCE


# By the model


def verdict_by_twin(
    view: Forecast, curve: Curve, *, ceiling: int, complete: bool = True
) -> Verdict:
    """Return the model's verdict. ``curve`` holds what it predicts of every cap.

    ``complete`` is False when the budget ended the run before everything was measured.
    """
    choice, warnings = view.choice, _machine_warnings(view)
    if not complete:
        warnings.append(
            "the run ended early: fewer caps were replayed than planned; give a larger --budget"
        )
    if max(each.attainment for each in curve.values()) < HALF:
        return _as_required(_overloaded_twin(view, curve, ceiling, warnings), view)
    seen = [cap for cap in choice.eligible if cap not in choice.unseen]
    cap = choice.best
    if cap not in seen and seen:  # what is safe to serve is not a guess
        cap = choice.chosen_of(seen)
    eligible = {each: item for each, item in curve.items() if each in choice.eligible}
    kind, why = kind_of(curve[cap], eligible, ceiling)
    refused = [each for each in curve if each > cap and each not in eligible]
    if refused:
        kind, why = "knee", f"{refused[0]} breaks {choice.bounds.shown(refused[0])}"
    why = f"{_choice_in_words(view, cap)}; {why}"
    warnings += kv_warnings(curve[cap])
    if guessed := [each for each in choice.unseen if each in eligible]:
        warnings.append(
            f"batches larger than {view.fitted.extrapolated_from} were never seen: predictions of "
            f"{', '.join(map(str, guessed))} are a guess; a larger --budget would show them"
        )
    doubt = _doubt(view)
    verdict = _verdict(choice, cap, kind, why, choice.confidence, warnings, doubt=doubt)
    return _as_required(verdict, view)


def _verdict(  # noqa: PLR0913, PLR0917 - what a verdict says
    choice: Choice,
    cap: int,
    kind: VerdictKind,
    why: str,
    confidence: float,
    warnings: list[str],
    *,
    doubt: str | None,
) -> Verdict:
    low, high = min(cap, choice.interval[0]), max(cap, choice.interval[1])
    if doubt is not None:
        kind, why = "inconclusive", doubt
    elif confidence < DEFENSIBLE:
        kind = "inconclusive"
        why = (
            f"between {low} and {high} the differences are within the noise; a longer --step or a "
            "quieter machine would resolve it"
        )
    elif confidence < CONFIDENT:
        warnings.append(
            f"confidence {confidence:.2f} is below {CONFIDENT}: rivals are close; a larger "
            "--budget tells them apart"
        )
    reason = f"{headline(kind, cap, (low, high))}: {why}"
    return Verdict(kind, cap, (low, high), confidence, reason, tuple(warnings))


def _as_required(verdict: Verdict, view: Forecast) -> Verdict:
    """Return the verdict with what is known of every requirement at its cap. Where no cap keeps
    all, also with what comes nearest."""
    bounds = view.choice.bounds
    checks = bounds.checks(verdict.max_num_seqs)
    if all(check.is_kept for check in checks):
        return replace(verdict, requirements=checks)
    nearest = bounds.nearest()
    cure = (
        f"{nearest} comes nearest and breaks {bounds.shown(nearest)}; tuner plan says how many "
        "replicas keep all"
    )
    return replace(verdict, requirements=checks, cure=cure)


def _choice_in_words(view: Forecast, cap: int) -> str:
    """Return what makes this the cap to take, and what a smaller one would do."""
    choice, load = view.choice, f"at {view.headroom:g} times the load"
    if cap != choice.chosen_of(choice.eligible):
        draws = len(choice.samples.values)
        agreeing = round(choice.confidence * draws)
        return f"it serves your traffic as well as any in {agreeing} of {draws} draws"
    text = "the fewest slots that serve your traffic as well as any"
    if len(choice.eligible) < len(choice.own.caps):
        text += " that keep what is required"
    if not choice.own.has_headroom:
        return text
    equal = choice.candidates()
    if max(choice.share(each, raised=True) for each in equal) < HALF:
        return f"{text} today; none of these serves half of it {load}"
    text += f", today and {load}"
    smaller = [each for each in equal if each < cap]
    if smaller:
        text += f"; {smaller[-1]} would fall to {choice.share(smaller[-1], raised=True):.0%}"
    return text


def _doubt(view: Forecast) -> str | None:
    """Return why no choice can be defended, and what would help; None when one can."""
    change = moved(view)
    if abs(change) > DRIFT_REFUSED:
        return (
            f"the machine became {_changed(change)} during the run; measure on a machine that "
            "nobody else uses"
        )
    if view.choice.best in view.choice.unseen:
        return (
            f"{view.choice.best} may be better, with batches larger than the "
            f"{view.fitted.extrapolated_from} that were seen; a larger --budget or a longer --step "
            "would show them"
        )
    return None


def moved(view: Forecast) -> float:
    """Return how much slower the machine was at the end than at the beginning, by the law's blocks
    of time; 0.1 is 10 % slower."""
    slowdown = view.fitted.slowdown
    few = max(1, min(4, len(slowdown) // 2))
    if len(slowdown) < 2:
        return 0.0
    return float(np.median(slowdown[-few:]) / np.median(slowdown[:few])) - 1


def _changed(change: float) -> str:
    return f"{abs(change):.0%} {'slower' if change > 0 else 'faster'}"


def _machine_warnings(view: Forecast) -> list[str]:
    """Return what the machine did while it was measured."""
    result = []
    change, speed_sd = moved(view), view.speed_sd
    if abs(change) > DRIFT_LIMIT:
        result.append(
            f"the machine drifted: it was {_changed(change)} at the end than at the beginning; the "
            "choice allows for it, the latencies are of its usual speed; use a quieter one"
        )
    if speed_sd > SPEED_SD_LIMIT:
        result.append(
            f"the machine's speed varies by {speed_sd:.0%}, and the promise with it: keep others "
            "off its cores to promise more"
        )
    if view.stalled_share > STALLED_LIMIT:
        result.append(
            f"{view.stalled_share:.0%} of the engine's time went into stalls, which the promise "
            "knows nothing of: find what holds it up"
        )
    return result


# By the windows


def verdict_by_windows(
    blocks: Sequence[Block],
    *,
    ceiling: int,
    complete: bool = True,
    requirements: Sequence[Requirement] = (),
) -> Verdict:
    """Return the verdict that these blocks support, of the caps that keep what is required of
    the recorded load where any does.

    ``complete`` is False when the budget ended the run before everything was measured.
    """
    curve = pooled(blocks)
    alive = {cap: each for cap, each in curve.items() if each.cut is None}
    if not complete and not ladder_is_done(blocks) and max(curve) < ceiling:
        return _unfinished(curve, best_of(alive) if alive else max(curve), ceiling)
    bounds = Bounds.of([each for each in requirements if not each.at_headroom], own_of(alive))
    if not alive or max(each.attainment for each in alive.values()) < HALF:
        most = _most_served(curve)
        return replace(_overloaded(curve, most), **_as_measured(requirements, bounds, most))
    kept = {cap: alive[cap] for cap in bounds.eligible(list(alive))}
    cap, choice = best_of(kept), decide(*samples_of(blocks), bounds=bounds)
    left = {each: item for each, item in curve.items() if each in kept or item.cut is not None}
    kind, why = kind_of(curve[cap], left, ceiling)
    refused = [each for each in alive if each > cap and each not in kept]
    if refused and kind in {"plateau", "not_reached"}:
        kind, why = "knee", f"{refused[0]} breaks {bounds.shown(refused[0])}"
    warnings = kv_warnings(curve[cap])
    if abs(change := drift(blocks)) > DRIFT_LIMIT:
        drifted = (
            f"the machine drifted: decode time of the first step was {change:+.0%} when measured "
            "again; the noise estimate includes it, a quieter machine would be surer"
        )
        warnings = [drifted, *warnings]
    # the windows chose; the draws say how sure it is
    sure = choice.rightness.get(cap, 0.0)
    verdict = _verdict(choice, cap, kind, why, sure, warnings, doubt=None)
    return replace(verdict, **_as_measured(requirements, bounds, cap))


def _as_measured(requirements: Sequence[Requirement], bounds: Bounds, cap: int) -> dict[str, Any]:
    """Return what is known of every requirement at a cap, and what comes nearest where it breaks
    one."""
    numbers, cure = bounds.of_cap.get(cap, {}), ""
    if bounds.broken(cap):
        nearest = bounds.nearest()
        cure = f"{nearest} comes nearest and breaks {bounds.shown(nearest)}; share the load"
    checks = tuple(RequirementCheck(each, None, numbers.get(each)) for each in requirements)
    return {"requirements": checks, "cure": cure}


def best_of(alive: Curve) -> int:
    """Return the choice by the numbers themselves, of caps that were replayed whole."""
    caps, numbers = list(alive), list(alive.values())
    return caps[
        int(rule([number.attainment for number in numbers], list(map(_tail_s, numbers))).choice)
    ]


def _tail_s(run: Measurement) -> float:
    return math.inf if run.e2el_s is None else run.e2el_s.p99


def ladder_is_done(blocks: Sequence[Block]) -> bool:
    """Whether a larger cap cannot help: the top never bound, or is worse than the best for sure."""
    curve = pooled(blocks)
    alive = {cap: each for cap, each in curve.items() if each.cut is None}
    if not alive:
        return False
    top, best = curve[max(curve)], alive[best_of(alive)]
    if top.cut is not None:
        return top.attainment_bound < best.attainment - EQUAL_ATTAINMENT
    if never_binds(top):
        return True
    sure = EQUAL_TAIL * math.exp(1.645 * math.sqrt(2) * noise(blocks, "e2el_p99_s")[0])
    return _tail_s(top) > sure * _tail_s(best) and top.attainment <= best.attainment


def _unfinished(curve: Curve, best: int, ceiling: int) -> Verdict:
    """Return the verdict of a ladder that the budget ended before the curve turned."""
    reason = (
        f"inconclusive, {best} is the best so far: the budget ended the run at {max(curve)}, "
        f"before the curve turned; caps from {2 * max(curve)} to {ceiling} were not tried"
    )
    return Verdict("inconclusive", best, (min(curve), ceiling), 0.0, reason)


# What sort of answer a cap is


def headline(kind: VerdictKind, cap: int, interval: tuple[int, int]) -> str:
    names = {
        "kv_bound": "KV-bound at",
        "not_reached": "no knee up to",
        "inconclusive": "inconclusive,",
    }
    return f"{names.get(kind, f'{kind} at')} {cap} (95 %: {interval[0]}-{interval[1]})"


def kind_of(chosen: Measurement, curve: Curve, ceiling: int) -> tuple[VerdictKind, str]:
    """Return what sort of answer ``chosen`` is on this curve, and the sentence that says why."""
    cap = chosen.max_num_seqs
    above = [item for each, item in curve.items() if each > cap and item.cut is None]
    below = [(each, item) for each, item in curve.items() if each < cap]
    lost = [(each, item) for each, item in curve.items() if each > cap and item.cut is not None]
    worse = [each for each in above if _is_worse(each, chosen)]
    memory = [each for each in (chosen, *above[:1]) if memory_binds(each)]
    gain = ""
    if below:
        at, item = below[-1]
        gain = f"; {_against(item) if item.cut is None else _hopeless(at, item)}"
    if memory and not worse:
        item = memory[0]
        return "kv_bound", (
            f"KV cache binds at {item.max_num_seqs}, not the cap (at most {item.running_peak} ran, "
            f"{item.preemptions} preempted); {MORE_MEMORY}{gain}"
        )
    if worse or lost:
        return "knee", f"{_against(worse[0]) if worse else _hopeless(*lost[0])}{gain}"
    if above or never_binds(chosen):
        peak = max(each.running_peak for each in (chosen, *above))
        why = f"the traffic never needs more than {peak} concurrent sequences"
        if below and below[-1][0] >= peak:
            why = f"the recorded load needs at most {peak} slots, the rest is for the headroom"
        elif peak > cap:
            why = f"{cap} slots serve as well as the {peak} that the traffic would fill"
        return "plateau", f"{why}{gain}"
    return "not_reached", (
        f"the curve still rises at the ceiling{gain}; sweep with --ceiling {2 * ceiling}"
    )


def memory_binds(run: Measurement) -> bool:
    """Whether requests waited for KV blocks while the cap had room."""
    full = run.kv_cache_usage is not None and run.kv_cache_usage.peak >= KV_FULL
    short = full or run.preemptions > 0
    return run.running_peak < run.max_num_seqs and run.kv_bound_share > 0 and short


def _is_worse(run: Measurement, chosen: Measurement) -> bool:
    is_longer = _tail_s(run) > EQUAL_TAIL * _tail_s(chosen)
    return run.attainment < chosen.attainment - EQUAL_ATTAINMENT or is_longer


def _against(run: Measurement) -> str:
    """Return what a cap beside the choice gives, in the numbers of its row."""
    parts = [f"{run.attainment:.1%} meet the SLO"]
    if run.tpot_s is not None:
        parts.append(f"p95 TPOT {_three(1e3 * run.tpot_s.p95)} ms")
    if math.isfinite(_tail_s(run)):
        parts.append(f"p99 E2EL {_three(_tail_s(run))} s")
    return f"with {run.max_num_seqs}: " + ", ".join(parts)


def _hopeless(cap: int, run: Measurement) -> str:
    if run.attainment_bound >= 1.0:  # it was cut because of another SLO
        return f"what {cap} serves in time was not measured"
    return f"{cap} is certain to serve at most {run.attainment_bound:.0%} in time"


def _overloaded_twin(
    view: Forecast, curve: Curve, ceiling: int, warnings: Sequence[str]
) -> Verdict:
    """Return the verdict where no cap meets half of the SLO, or none yet because more slots would
    still serve more."""
    choice, top = view.choice, curve[max(curve)]
    if not _still_rises(curve):
        result = _overloaded(curve, choice.best)
        return replace(
            result, interval=choice.interval, confidence=choice.confidence,
            warnings=(*result.warnings, *warnings),
        )  # fmt: skip
    cap = top.max_num_seqs
    reason = (
        f"{headline('not_reached', cap, (cap, cap))}: each doubling of max_num_seqs still serves "
        f"more within the SLO; sweep with --ceiling {2 * ceiling}"
    )
    return Verdict(
        "not_reached", cap, (cap, cap), choice.confidence, reason, warnings=tuple(warnings)
    )


def _overloaded(curve: Curve, choice: int) -> Verdict:
    """Return the verdict where no cap meets half of the SLO, with the load that would fit."""
    item, bound = curve[choice], [each for each in curve.values() if memory_binds(each)]
    share = (
        item.output_tokens_per_s / item.offered_tokens_per_s if item.offered_tokens_per_s else 0.0
    )
    fits = "no token was generated"
    if share >= NEARLY_ALL:
        fits = "nearly all of it is served, but too late"
    elif share > 0:
        fits = f"1 replica takes about {share:.0%} of this load, {math.ceil(1 / share)} take all"
    memory = ""
    if bound:
        memory = (
            f"; KV cache binds from {bound[0].max_num_seqs} on (at most {bound[0].running_peak} "
            f"ran, {bound[0].preemptions} preempted): {MORE_MEMORY}"
        )
    reason = (
        f"overloaded: no cap up to {max(curve)} meets the SLO for half of the requests; "
        f"{choice} serves {item.output_tokens_per_s:,.0f} of "
        f"{item.offered_tokens_per_s:,.0f} output tokens/s; {fits}{memory}"
    )
    interval = (min(curve), max(curve))
    return Verdict("overloaded", choice, interval, 0.0, reason, warnings=(ADD_REPLICAS,))


def _most_served(curve: Curve) -> int:
    return max(curve, key=lambda cap: (curve[cap].output_tokens_per_s, -cap))


def _still_rises(curve: Curve) -> bool:
    """Whether more slots than the ceiling would serve more: it binds, and beat the cap below."""
    *rest, top = curve.values()
    below = rest[-1].output_tokens_per_s if rest else 0.0
    return (
        top.running_peak >= top.max_num_seqs
        and top.output_tokens_per_s > RISES * below
        and not memory_binds(top)
        and (top.kv_cache_usage is None or top.kv_cache_usage.peak < KV_FULL)
    )


def kv_warnings(run: Measurement) -> list[str]:
    if run.preemptions:
        text = (
            f"{run.preemptions} preemptions at {run.max_num_seqs} made {run.recomputed_tokens} "
            "tokens be computed again: raise gpu_memory_utilization or lower max_model_len"
        )
        return [text]
    if run.kv_cache_usage is not None and run.kv_cache_usage.peak > KV_FULL:
        full = f"the KV cache was {run.kv_cache_usage.peak:.0%} full at {run.max_num_seqs}"
        return [f"{full}: raise gpu_memory_utilization before more traffic comes"]
    return []


def _three(value: float) -> str:
    """Return three digits.

    >>> _three(13.0), _three(642.1)
    ('13.0', '642')
    """
    return f"{value:#.3g}".rstrip(".")
