"""The verdict: the cap to use, how sure that is, and the sentence that says why. Pure.

The model decides by its draws for the whole trace (``verdict_by_twin``). Where it is not believed,
draws of the windows that were replayed decide (``verdict_by_windows``), by the same rule and in the
same words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    VerdictKind,
)
from tuner.traffic.requirements import Requirement, RequirementCheck
from tuner.twin.decide import Bounds, Choice, decide, rule
from tuner.twin.forecast import Forecast
from tuner.twin.windows import Block, drift, never_binds, pooled, samples_of, tail_sd

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


def verdict_by_twin(
    view: Forecast, curve: Curve, *, ceiling: int, complete: bool = True
) -> Verdict:
    """Return the model's verdict. ``curve`` holds what it predicts of every cap.

    ``complete`` is False when the budget ended the run before everything was measured.
    """
    choice, change, warnings = view.choice, moved(view), _machine_warnings(view)
    if not complete:
        warnings.append(
            "the run ended early: fewer caps were replayed than planned; give a larger --budget"
        )
    doubt = None
    if abs(change) > DRIFT_REFUSED:
        doubt = (
            f"the machine became {_changed(change)} during the run; measure on a machine that "
            "nobody else uses"
        )
    elif choice.is_guess:
        doubt = (
            f"{choice.best} may be best, but makes larger batches than the "
            f"{view.fitted.extrapolated_from} that were seen; a larger --budget would show them"
        )
    verdict = _verdict(choice, curve, ceiling, warnings, doubt)
    checks = choice.bounds.checks(verdict.max_num_seqs)
    if all(check.kept for check in checks):
        return replace(verdict, requirements=checks)
    return replace(verdict, requirements=checks, cure=_nearest(choice.bounds))


def verdict_by_windows(
    blocks: Sequence[Block],
    *,
    ceiling: int,
    complete: bool = True,
    requirements: Sequence[Requirement] = (),
) -> Verdict:
    """Return the verdict that these blocks support, of the caps that keep what is required of the
    recorded load where any does.

    ``complete`` is False when the budget ended the run before everything was measured.
    """
    curve = pooled(blocks)
    alive = [cap for cap, each in curve.items() if each.cut is None]
    if not alive:
        most = max(curve, key=lambda cap: (curve[cap].output_tokens_per_s, -cap))
        result = _overloaded(curve, most)
        checks = tuple(RequirementCheck.of(each) for each in requirements)
        result = replace(result, requirements=checks)
    else:
        asked = [each for each in requirements if not each.at_headroom]
        choice = decide(samples_of(blocks, alive), requirements=asked)
        warnings = list[str]()
        if abs(change := drift(blocks)) > DRIFT_LIMIT:
            warnings.append(
                f"the machine drifted: decode time of the first step was {change:+.0%} when "
                "measured again; the noise estimate includes it, a quieter machine would be surer"
            )
        result = _verdict(choice, curve, ceiling, warnings, None)
        cap, bounds = result.max_num_seqs, choice.bounds
        known = {each: each.value_in(curve[cap]) for each in asked}
        checks = tuple(RequirementCheck.of(each, None, known.get(each)) for each in requirements)
        cure = _nearest(bounds) if bounds.broken(cap) else ""
        result = replace(result, requirements=checks, cure=cure)
    if complete or ladder_is_done(blocks) or max(curve) >= ceiling:
        return result
    best = result.max_num_seqs if alive else max(curve)
    reason = (
        f"{best} is the best so far: the budget ended the run at {max(curve)}, "
        f"before the curve turned; caps from {2 * max(curve)} to {ceiling} were not tried"
    )
    return Verdict("inconclusive", best, (min(curve), ceiling), 0.0, reason)


def _verdict(
    choice: Choice, curve: Curve, ceiling: int, warnings: list[str], doubt: str | None
) -> Verdict:
    """Return the verdict of a choice, in words."""
    cap, confidence = choice.best, choice.confidence
    low, high = choice.interval
    if max(each.attainment for each in curve.values()) < HALF:
        result = _overloaded(curve, cap)
        if _still_rises(curve):
            reason = (
                "each doubling of max_num_seqs still serves more within the SLO; sweep with "
                f"--ceiling {2 * ceiling}"
            )
            top = max(curve)
            return Verdict("not_reached", top, (top, top), confidence, reason, tuple(warnings))
        warnings = [*result.warnings, *warnings]
        return replace(
            result, interval=(low, high), confidence=confidence, warnings=tuple(warnings)
        )
    kept = {each: item for each, item in curve.items() if each in choice.eligible or item.cut}
    kind, why = kind_of(curve[cap], kept, ceiling)
    refused = [each for each in choice.samples.caps if each > cap and each not in choice.eligible]
    if refused:
        kind, why = "knee", f"{refused[0]} breaks {choice.bounds.shown(refused[0])}"
    if doubt is None and confidence < DEFENSIBLE:
        doubt = (
            f"between {low} and {high} the differences are within the noise; a longer --step or a "
            "quieter machine would resolve it"
        )
    if doubt is not None:
        kind, why = "inconclusive", doubt
    elif confidence < CONFIDENT:
        warnings.append(
            f"confidence {confidence:.2f} is below {CONFIDENT}: rivals are close; a larger "
            "--budget tells them apart"
        )
    return Verdict(kind, cap, (low, high), confidence, why, tuple(warnings))


def _nearest(bounds: Bounds) -> str:
    nearest = bounds.nearest()
    return (
        f"{nearest} comes nearest and breaks {bounds.shown(nearest)}; tuner plan says how many "
        "replicas keep all"
    )


# The machine while it was measured


def moved(view: Forecast) -> float:
    """Return how much slower the machine was at the end than at the beginning, by the law's blocks
    of time; 0.1 is 10 % slower."""
    slowdown = view.fitted.slowdown
    few = min(2, len(slowdown) // 2)
    return float(np.median(slowdown[-few:]) / np.median(slowdown[:few])) - 1 if few else 0.0


def _changed(change: float) -> str:
    return f"{abs(change):.0%} {'slower' if change > 0 else 'faster'}"


def _machine_warnings(view: Forecast) -> list[str]:
    result = []
    change = moved(view)
    if abs(change) > DRIFT_LIMIT:
        result.append(
            f"the machine drifted: it was {_changed(change)} at the end than at the beginning; the "
            "choice allows for it, the latencies are of its usual speed; use a quieter one"
        )
    return result


# The ladder of the windows


def best_of(alive: Curve) -> int:
    """Return the choice by the numbers themselves, of caps that were replayed whole."""
    shares, tails_s = zip(*((e.attainment, _tail_s(e)) for e in alive.values()), strict=True)
    return list(alive)[int(rule(shares, tails_s).choice)]


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
    sure = EQUAL_TAIL * math.exp(1.645 * math.sqrt(2) * tail_sd(blocks))
    is_worse = _tail_s(top) > sure * _tail_s(best) and top.attainment <= best.attainment
    return never_binds(top) or is_worse


# What sort of answer a cap is


def kind_of(chosen: Measurement, curve: Curve, ceiling: int) -> tuple[VerdictKind, str]:
    """Return what sort of answer ``chosen`` is on this curve, and the sentence that says why."""
    cap = chosen.max_num_seqs
    larger = [item for each, item in curve.items() if each > cap]
    above = [item for item in larger if item.cut is None]
    worse = [each for each in above if _is_worse(each, chosen)]
    worse += [each for each in larger if each.cut is not None]
    memory = [each for each in (chosen, *above[:1]) if memory_binds(each)]
    smaller = [item for each, item in curve.items() if each < cap]
    gain = f"; {_against(smaller[-1])}" if smaller else ""
    if memory and not worse:
        item = memory[0]
        return "kv_bound", (
            f"KV cache binds at {item.max_num_seqs}, not the cap (at most {item.running_peak} ran, "
            f"{item.preemptions} preempted); {MORE_MEMORY}{gain}"
        )
    if worse:
        return "knee", f"{_against(worse[0])}{gain}"
    if above or never_binds(chosen):
        peak = max(each.running_peak for each in (chosen, *above))
        why = f"the traffic never needs more than {peak} concurrent sequences"
        if peak > cap:
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
    if run.cut is not None and run.attainment_bound >= 1.0:  # because of another SLO
        return f"what {run.max_num_seqs} serves in time was not measured"
    if run.cut is not None:
        return f"{run.max_num_seqs} is certain to serve at most {run.attainment_bound:.0%} in time"
    parts = [f"{run.attainment:.1%} meet the SLO"]
    if run.tpot_s is not None:
        parts.append(f"p95 TPOT {_three(1e3 * run.tpot_s.p95)} ms")
    if run.e2el_s is not None:
        parts.append(f"p99 E2EL {_three(run.e2el_s.p99)} s")
    return f"with {run.max_num_seqs}: " + ", ".join(parts)


def _overloaded(curve: Curve, choice: int) -> Verdict:
    """Return the verdict where no cap meets half of the SLO, with the load that would fit."""
    item, bound = curve[choice], [each for each in curve.values() if memory_binds(each)]
    share = item.output_tokens_per_s / max(1e-9, item.offered_tokens_per_s)
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
        f"no cap up to {max(curve)} meets the SLO for half of the requests; "
        f"{choice} serves {item.output_tokens_per_s:,.0f} of "
        f"{item.offered_tokens_per_s:,.0f} output tokens/s; {fits}{memory}"
    )
    interval = (min(curve), max(curve))
    return Verdict("overloaded", choice, interval, 0.0, reason, warnings=(ADD_REPLICAS,))


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


def _three(value: float) -> str:
    """Return three digits.

    >>> _three(13.0), _three(642.1)
    ('13.0', '642')
    """
    return f"{value:#.3g}".rstrip(".")
