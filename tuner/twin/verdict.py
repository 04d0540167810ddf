"""The verdict: the cap to use, how sure that is, and the sentence that says why. Pure.

The model decides by its draws for the whole trace (``verdict_by_twin``). Where it is not believed,
draws of the windows that were replayed decide (``verdict_by_windows``), by the same rule and in the
same words. These never resample requests: what differs between two replays of the same requests is
the machine, and resampled ones would call two equal runs different in 80 to 95 % of cases
(docs/decisions).
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
    WINDOW_DRAWS,
    WINDOW_SDS,
    VerdictKind,
)
from tuner.traffic.requirements import Requirement, RequirementCheck
from tuner.twin.decide import Choice, broken, decide, nearest
from tuner.twin.forecast import Forecast
from tuner.twin.samples import NUMBERS, Samples

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
    warnings, doubt = list[str](), None
    if not complete:
        warnings.append(
            "the run ended early: fewer caps were replayed than planned; give a larger --budget"
        )
    if view.choice.is_guess:
        doubt = (
            f"{view.choice.best} may be best, but makes larger batches than the "
            f"{view.fitted.extrapolated_from} that were seen; a larger --budget would show them"
        )
    return _verdict(view.choice, curve, ceiling, moved(view), warnings, doubt)


def verdict_by_windows(
    curve: Curve,
    change: float = 0.0,
    *,
    ceiling: int,
    complete: bool = True,
    requirements: Sequence[Requirement] = (),
) -> Verdict:
    """Return the verdict that these windows support, of the caps that keep what is required of the
    recorded load where any does; what is required with headroom nobody knows. ``change`` is how
    much slower the machine became.

    ``complete`` is False when the budget ended the run before everything was measured.
    """
    today = [each for each in requirements if not each.at_headroom]
    choice, doubt = choice_by_windows(curve, change, today), None
    if not (complete or ladder_is_done(curve) or max(curve) >= ceiling):
        doubt = (
            f"{choice.best} is the best so far: the budget ended the run at {max(curve)}, "
            f"before the curve turned; caps from {2 * max(curve)} to {ceiling} were not tried"
        )
        choice = replace(choice, rightness={choice.best: 0.0}, interval=(min(curve), ceiling))
    result = _verdict(choice, curve, ceiling, change, [], doubt)
    unknown = [RequirementCheck.of(each) for each in requirements if each.at_headroom]
    return replace(result, requirements=(*result.requirements, *unknown))


def _verdict(  # noqa: PLR0913, PLR0917 - what was chosen, of what, on which machine
    choice: Choice,
    curve: Curve,
    ceiling: int,
    change: float,
    warnings: list[str],
    doubt: str | None,
) -> Verdict:
    """Return the verdict of a choice, in words. ``change``: how much slower the machine became."""
    changed = f"{abs(change):.0%} {'slower' if change > 0 else 'faster'}"
    if abs(change) > DRIFT_REFUSED:
        doubt = f"the machine became {changed} during the run; measure on one that nobody else uses"
    elif abs(change) > DRIFT_LIMIT:
        warnings.append(
            f"the machine drifted: it was {changed} at the end than at the beginning; use a "
            "quieter one to promise more"
        )
    cap, confidence, interval = choice.best, choice.confidence, choice.interval
    kept = {each: item for each, item in curve.items() if each in choice.eligible or item.cut}
    refused = [each for each in choice.samples.caps if each > cap and each not in choice.eligible]
    kind, why = kind_of(curve[cap], kept, ceiling)
    if refused:
        kind, why = "knee", f"{refused[0]} breaks {broken(choice.checks[refused[0]])}"
    if doubt is None and max(each.attainment for each in curve.values()) < HALF:
        kind, why = _overloaded(curve, cap, ceiling)
        warnings = [ADD_REPLICAS, *warnings] if kind == "overloaded" else warnings
        cap = cap if kind == "overloaded" else max(curve)
    elif doubt is None and confidence < DEFENSIBLE:
        doubt = (
            f"between {interval[0]} and {interval[1]} the differences are within the noise; a "
            "longer --step or a quieter machine would resolve it"
        )
    elif doubt is None and confidence < CONFIDENT:
        warnings.append(
            f"confidence {confidence:.2f} is below {CONFIDENT}: rivals are close; a larger "
            "--budget tells them apart"
        )
    if doubt is not None:
        kind, why = "inconclusive", doubt
    checks, cure = choice.checks.get(cap, ()), ""
    if broken(checks):
        near = nearest(choice.checks)
        cure = (
            f"{near} comes nearest and breaks {broken(choice.checks[near])}; tuner plan says how "
            "many replicas keep all"
        )
    return Verdict(kind, cap, interval, confidence, why, tuple(warnings), checks, cure)


def moved(view: Forecast) -> float:
    """Return how much slower the machine was at the end than at the beginning, by the law's blocks
    of time; 0.1 is 10 % slower."""
    slowdown = view.fitted.slowdown
    few = min(2, len(slowdown) // 2)
    return float(np.median(slowdown[-few:]) / np.median(slowdown[:few])) - 1 if few else 0.0


# The ladder of the windows


def never_binds(run: Measurement) -> bool:
    """Whether neither the cap nor the memory ever kept a request waiting."""
    return run.running_peak < run.max_num_seqs and run.kv_bound_share == 0


def samples_of(curve: Curve, change: float = 0.0) -> Samples:
    """Return draws of the attainment, the goodput and p99 E2EL of every cap at the recorded load:
    each moved by its noise. A change of the machine's speed is noise too, because caps were
    measured at different times. Caps that never bound are one configuration for this traffic, so
    they move together."""
    every = [*curve.values()]
    shifts = np.random.default_rng(0).standard_normal((2, WINDOW_DRAWS, len(every)))
    free = [i for i, each in enumerate(every) if each.cut is None and never_binds(each)]
    shifts[..., free] = shifts[..., free[:1]]
    shares_off, tails_off = shifts / np.sqrt([each.blocks for each in every])
    shares = np.array([each.attainment for each in every])
    tails_s = [math.nan if each.e2el_s is None else each.e2el_s.p99 for each in every]
    rates_rps = [each.arrival_rate_rps for each in every]
    drawn = dict.fromkeys(NUMBERS, np.full(shares_off.shape, math.nan))
    drawn["attainment"] = np.clip(shares + WINDOW_SDS[0] * shares_off, 0.0, 1.0)
    drawn["goodput_rps"] = drawn["attainment"] * rates_rps
    drawn["e2el_p99_s"] = tails_s * np.exp(math.hypot(WINDOW_SDS[1], change / 2) * tails_off)
    return Samples(tuple(curve), np.stack([*drawn.values()], axis=-1)[:, None])


def choice_by_windows(
    curve: Curve, change: float = 0.0, requirements: Sequence[Requirement] = ()
) -> Choice:
    """Return the choice between the caps that were replayed whole, or between all without any, by
    what they showed of these requirements."""
    alive = {cap: each for cap, each in curve.items() if each.cut is None} or curve
    checks = {
        cap: tuple(RequirementCheck.of(each, None, each.value_in(item)) for each in requirements)
        for cap, item in alive.items()
    }
    return decide(samples_of(alive, change), checks)


def ladder_is_done(curve: Curve) -> bool:
    """Whether a larger cap cannot help: the top never bound, or is worse than the best for sure."""
    if not curve:
        return False
    choice, top = choice_by_windows(curve), curve[max(curve)]
    if top.cut is not None:
        return top.attainment_bound < curve[choice.best].attainment - EQUAL_ATTAINMENT
    return never_binds(top) or choice.rightness[top.max_num_seqs] <= 1 - CONFIDENT


# What sort of answer a cap is


def kind_of(chosen: Measurement, curve: Curve, ceiling: int) -> tuple[VerdictKind, str]:
    """Return what sort of answer ``chosen`` is on this curve, and the sentence that says why."""
    cap = chosen.max_num_seqs
    above = [item for each, item in curve.items() if each > cap]
    below = [item for each, item in curve.items() if each < cap]
    worse = [
        item
        for item in above
        if item.cut is not None
        or item.attainment < chosen.attainment - EQUAL_ATTAINMENT
        or _tail_s(item) > EQUAL_TAIL * _tail_s(chosen)
    ]
    gain = f"; {_against(below[-1])}" if below else ""
    if worse:
        return "knee", f"{_against(worse[0])}{gain}"
    if memory := [item for item in (chosen, *above[:1]) if memory_binds(item)]:
        return "kv_bound", f"{_memory(memory[0])}{gain}"
    if above or never_binds(chosen):
        peak = max(each.running_peak for each in (chosen, *above))
        why = f"the traffic never needs more than {peak} concurrent sequences"
        if peak > cap:
            why = f"{cap} slots serve as well as the {peak} that the traffic would fill"
        return "plateau", f"{why}{gain}"
    return "not_reached", (
        f"the curve still rises at the ceiling{gain}; sweep with --ceiling {2 * ceiling}"
    )


def _tail_s(run: Measurement) -> float:
    return math.inf if run.e2el_s is None else run.e2el_s.p99


def memory_binds(run: Measurement) -> bool:
    """Whether requests waited for KV blocks while the cap had room."""
    full = run.kv_cache_usage is not None and run.kv_cache_usage.peak >= KV_FULL
    short = full or run.preemptions > 0
    return run.running_peak < run.max_num_seqs and run.kv_bound_share > 0 and short


def _memory(run: Measurement) -> str:
    return (
        f"KV cache binds at {run.max_num_seqs}, not the cap (at most {run.running_peak} ran, "
        f"{run.preemptions} preempted); {MORE_MEMORY}"
    )


def _against(run: Measurement) -> str:
    """Return what a cap beside the choice gives, in the numbers of its row."""
    if run.cut is not None:
        return f"{run.max_num_seqs} is certain to serve at most {run.attainment_bound:.0%} in time"
    parts = [f"{run.attainment:.1%} meet the SLO"]
    if run.tpot_s is not None:
        parts.append(f"p95 TPOT {_three(1e3 * run.tpot_s.p95)} ms")
    if run.e2el_s is not None:
        parts.append(f"p99 E2EL {_three(run.e2el_s.p99)} s")
    return f"with {run.max_num_seqs}: " + ", ".join(parts)


def _overloaded(curve: Curve, cap: int, ceiling: int) -> tuple[VerdictKind, str]:
    """Return what sort of answer it is where no cap meets half of the SLO: a larger one would serve
    more, or the load would fit so many replicas."""
    *rest, top = curve.values()
    rises = top.output_tokens_per_s > RISES * (rest[-1].output_tokens_per_s if rest else 0.0)
    if rises and top.running_peak >= top.max_num_seqs and top.cut is None:
        return "not_reached", (
            "each doubling of max_num_seqs still serves more within the SLO; sweep with "
            f"--ceiling {2 * ceiling}"
        )
    item = curve[cap]
    share = item.output_tokens_per_s / max(1e-9, item.offered_tokens_per_s)
    fits = "nearly all of it is served, but too late"
    if share < NEARLY_ALL:
        fits = f"1 replica takes about {share:.0%} of this load"
        fits += f", {math.ceil(1 / share)} take all" if share > 0 else ""
    bound = [_memory(each) for each in curve.values() if memory_binds(each)]
    served = (
        f"no cap up to {max(curve)} meets the SLO for half of the requests; {cap} serves "
        f"{item.output_tokens_per_s:,.0f} of {item.offered_tokens_per_s:,.0f} output tokens/s"
    )
    return "overloaded", "; ".join((served, fits, *bound[:1]))


def _three(value: float) -> str:
    """Return three digits.

    >>> _three(13.0), _three(642.1)
    ('13.0', '642')
    """
    return f"{value:#.3g}".rstrip(".")
