"""A verdict, and the sentence that says why: what sort of answer the curve gives. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.replay.measure import Measurement
from tuner.traffic.requirements import RequirementCheck
from tuner.twin.check import Number
from tuner.twin.objective import EQUAL_ATTAINMENT, EQUAL_TAIL
from tuner.twin.uncertainty import Point, never_binds

VerdictKind = Literal["knee", "plateau", "kv_bound", "not_reached", "overloaded", "inconclusive"]

KV_FULL = 0.95
"""Share of the KV cache from which on it is full: a few blocks are always in between."""

NEARLY_ALL = 0.95
"""Share of the offered tokens from which on nearly all of them are served."""

NO_CONFIDENCE = 0.005
"""Less is shown as 0.00."""

RISES = 1.05
"""More tokens by so much: the ceiling is not yet the end."""

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
    def broken(self) -> tuple[RequirementCheck, ...]:
        return tuple(one for one in self.requirements if not one.is_kept)

    @property
    def is_defended(self) -> bool:
        """Whether it may be acted on: whatever its kind, one without confidence may not."""
        return self.kind != "inconclusive" and self.confidence >= NO_CONFIDENCE


def headline(kind: VerdictKind, cap: int, interval: tuple[int, int]) -> str:
    names = {
        "kv_bound": "KV-bound at",
        "not_reached": "no knee up to",
        "inconclusive": "inconclusive,",
    }
    return f"{names.get(kind, f'{kind} at')} {cap} (95 %: {interval[0]}-{interval[1]})"


def kind_of(chosen: Point, curve: Sequence[Point], ceiling: int) -> tuple[VerdictKind, str]:
    """Return what sort of answer ``chosen`` is on this curve, and the sentence that says why."""
    above = [point for point in curve if point.cap > chosen.cap and not point.cut]
    below = [point for point in curve if point.cap < chosen.cap]
    lost = [point for point in curve if point.cap > chosen.cap and point.cut]
    worse = [point for point in above if _is_worse(point, chosen)]
    memory = [point.last for point in (chosen, *above[:1]) if memory_binds(point.last)]
    gain = ""
    if below:
        gain = f"; {_hopeless(below[-1]) if below[-1].cut else _against(below[-1], chosen)}"
    if memory and not worse:
        one = memory[0]
        return "kv_bound", (
            f"KV cache binds at {one.max_num_seqs}, not the cap (at most {one.running_peak} ran, "
            f"{one.preemptions} preempted); {MORE_MEMORY}{gain}"
        )
    if worse or lost:
        return "knee", f"{_against(worse[0], chosen) if worse else _hopeless(lost[0])}{gain}"
    if above or never_binds(chosen.last):
        peak = max(point.last.running_peak for point in (chosen, *above))
        why = f"the traffic never needs more than {peak} concurrent sequences"
        if below and below[-1].cap >= peak:
            why = f"the recorded load needs at most {peak} slots, the rest is for the headroom"
        elif peak > chosen.cap:
            why = f"{chosen.cap} slots serve as well as the {peak} that the traffic would fill"
        return "plateau", f"{why}{gain}"
    return "not_reached", (
        f"the curve still rises at the ceiling{gain}; sweep with --ceiling {2 * ceiling}"
    )


def memory_binds(one: Measurement) -> bool:
    """Whether requests waited for KV blocks while the cap had room."""
    full = one.kv_cache_usage is not None and one.kv_cache_usage.peak >= KV_FULL
    short = full or one.preemptions > 0
    return one.running_peak < one.max_num_seqs and one.kv_bound_share > 0 and short


def _is_worse(point: Point, chosen: Point) -> bool:
    return (
        point.attainment < chosen.attainment - EQUAL_ATTAINMENT
        or point.log_tail > chosen.log_tail + math.log(EQUAL_TAIL)
    )


def _against(point: Point, chosen: Point) -> str:
    """Return what ``point`` gives compared with ``chosen``: one step of the marginal table."""
    parts = []
    if chosen.goodput_rps > 0:
        parts.append(_change("goodput", point.goodput_rps / chosen.goodput_rps, "more", "less"))
    if chosen.log_tpot is not None and point.log_tpot is not None:
        ratio = math.exp(point.log_tpot - chosen.log_tpot)
        parts.append(_change("p95 TPOT", ratio, "longer", "shorter"))
    ratio = math.exp(point.log_tail - chosen.log_tail)
    parts.append(_change("p99 E2EL", ratio, "longer", "shorter"))
    return f"with {point.cap}: " + ", ".join(parts)


def _change(name: str, ratio: float, more: str, less: str) -> str:
    """Return how much a number changes.

    >>> _change("goodput", 0.795, "more", "less"), _change("p99 E2EL", 12.0, "longer", "shorter")
    ('goodput 20% less', 'p99 E2EL 12 times')
    """
    if abs(ratio - 1) < 0.005:
        return f"{name} the same"
    if ratio >= 10:
        return f"{name} {ratio:,.0f} times"
    return f"{name} {abs(ratio - 1):.0%} {more if ratio > 1 else less}"


def _hopeless(point: Point) -> str:
    if point.last.attainment_bound >= 1.0:  # it was cut because of another SLO
        return f"what {point.cap} serves in time was not measured"
    return f"{point.cap} is certain to serve at most {point.last.attainment_bound:.0%} in time"


def unfinished(curve: Sequence[Point], best: int, ceiling: int) -> Verdict:
    """Return the verdict of a ladder that the budget ended before the curve turned."""
    top = curve[-1].cap
    return Verdict(
        kind="inconclusive",
        max_num_seqs=best,
        interval=(curve[0].cap, ceiling),
        confidence=0.0,
        reason=(
            f"inconclusive, {best} is the best so far: the budget ended the run at {top}, before "
            f"the curve turned; caps from {2 * top} to {ceiling} were not tried"
        ),
    )


def overloaded(curve: Sequence[Point], choice: int | None = None) -> Verdict:
    """Return the verdict where no cap meets half of the SLO, on the ``choice`` or the cap that
    serves the most, with the load that would fit."""
    best = max(curve, key=lambda point: (point.last.output_tokens_per_s, -point.cap))
    if choice is not None:
        best = next(point for point in curve if point.cap == choice)
    one = best.last
    share = one.output_tokens_per_s / one.offered_tokens_per_s if one.offered_tokens_per_s else 0.0
    fits = "no token was generated"
    if share >= NEARLY_ALL:
        fits = "nearly all of it is served, but too late"
    elif share > 0:
        fits = f"1 replica takes about {share:.0%} of this load, {math.ceil(1 / share)} take all"
    bound = [point.last for point in curve if memory_binds(point.last)]
    memory = ""
    if bound:
        memory = (
            f"; KV cache binds from {bound[0].max_num_seqs} on (at most {bound[0].running_peak} "
            f"ran, {bound[0].preemptions} preempted): {MORE_MEMORY}"
        )
    return Verdict(
        kind="overloaded",
        max_num_seqs=best.cap,
        interval=(curve[0].cap, curve[-1].cap),
        confidence=0.0,
        reason=(
            f"overloaded: no cap up to {curve[-1].cap} meets the SLO for half of the requests; "
            f"{best.cap} serves {one.output_tokens_per_s:,.0f} of "
            f"{one.offered_tokens_per_s:,.0f} output tokens/s; {fits}{memory}"
        ),
        warnings=(ADD_REPLICAS,),
    )


def still_rises(curve: Sequence[Point]) -> bool:
    """Whether more slots than the ceiling would serve more: it binds, and beat the cap below."""
    top = curve[-1].last
    below = curve[-2].last.output_tokens_per_s if len(curve) > 1 else 0.0
    return (
        top.running_peak >= top.max_num_seqs
        and top.output_tokens_per_s > RISES * below
        and not memory_binds(top)
        and (top.kv_cache_usage is None or top.kv_cache_usage.peak < KV_FULL)
    )


def kv_warnings(chosen: Point) -> list[str]:
    one = chosen.last
    if one.preemptions:
        text = (
            f"{one.preemptions} preemptions at {chosen.cap} made {one.recomputed_tokens} tokens be "
            "computed again: raise gpu_memory_utilization or lower max_model_len"
        )
        return [text]
    if one.kv_cache_usage is not None and one.kv_cache_usage.peak > KV_FULL:
        full = f"the KV cache was {one.kv_cache_usage.peak:.0%} full at {chosen.cap}"
        return [f"{full}: raise gpu_memory_utilization before more traffic comes"]
    return []


def miss_in_words(one: Number) -> str:
    """Return a number that missed, for people.

    >>> miss_in_words(Number("ttft_p95_ms", 420.0, 400.0, 450.0, 20100.0))
    'p95 TTFT 20,100 ms instead of 420 ms'
    >>> miss_in_words(Number("attainment", 0.99, 0.98, 1.0, 0.9))
    '90.0 % in SLO instead of 99.0 %'
    """
    if one.name == "attainment":
        return f"{100 * one.measured:.1f} % in SLO instead of {100 * one.predicted:.1f} %"
    if not one.name.endswith("_ms"):
        name = one.name.removesuffix("_mean")
        return f"mean {name} {one.measured:,.1f} instead of {one.predicted:,.1f}"
    time, share, _ = one.name.split("_")
    digits = 0 if max(one.measured, one.predicted) >= 100 else 1
    measured, predicted = (f"{value:,.{digits}f} ms" for value in (one.measured, one.predicted))
    return f"{share} {time.upper()} {measured} instead of {predicted}"
