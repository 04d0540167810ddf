"""The result of a sweep: the sections of a profile, and the object of ``sweep --json``. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Literal, cast

from tuner.engines.seam import EngineFacts
from tuner.profile import admission
from tuner.profile.evidence import pack
from tuner.profile.profile import (
    Baseline,
    Binds,
    CapNumbers,
    ChangeSection,
    CheckSection,
    Count,
    CurveStep,
    Decision,
    EngineSeconds,
    Fraction,
    FrontEndSection,
    KvCacheUsageSection,
    MeasuredNumbers,
    Predicted,
    Promise,
    Provenance,
    RequirementSection,
    Section,
    Seqs,
    ServingProfile,
    SloSection,
    SpreadSection,
    Validity,
    content_of,
    seal,
)
from tuner.replay.iterations import KvCacheUsage
from tuner.replay.measure import Measurement, Spread
from tuner.runs.outcome import InUse, SweepOutcome
from tuner.runs.settings import SweepSettings
from tuner.traffic.constants import KV_FULL, VerdictKind
from tuner.traffic.requirements import RequirementCheck
from tuner.traffic.slo import Slo, holds
from tuner.twin.decide import OBJECTIVE
from tuner.twin.verdict import BEFORE_THAT

RETUNE_WHEN = [
    "the GPU, the model, its revision or its quantisation changes",
    "the vLLM version changes",
    "peak concurrency exceeds what was validated",
    "prompt or output lengths shift",
]


def curve_steps(outcome: SweepOutcome) -> list[CurveStep]:
    """Return the curve, one step a cap, ascending."""
    return [
        CurveStep(
            max_num_seqs=step.numbers.max_num_seqs,
            **_numbers(step.numbers),
            cut=step.measured is not None and step.measured.cut is not None,
            source=step.source,
            intervals=dict(step.intervals),
            changes={
                name: ChangeSection(value=one.value, low=one.low, high=one.high)
                for name, one in step.changes.items()
            },
            measured=None if step.measured is None else _measured(step.measured),
        )
        for step in outcome.curve
    ]


def _numbers(one: Measurement) -> dict[str, Any]:
    """Return what every section that tells of one cap holds."""
    return {
        "attainment": one.attainment,
        "goodput_rps": one.goodput_rps,
        "requests_per_s": one.requests_per_s,
        "output_tokens_per_s": one.output_tokens_per_s,
        "ttft_ms": _ms(one.ttft_s),
        "tpot_ms": _ms(one.tpot_s),
        "itl_ms": _ms(one.itl_s),
        "e2el_ms": _ms(one.e2el_s),
        "queue_ms": _ms(one.queue_s),
        "kv_cache_usage": _kv(one.kv_cache_usage),
        "preemptions": one.preemptions,
        "recomputed_tokens": one.recomputed_tokens,
        "running_peak": one.running_peak,
        "binds": binds_of(one),
    }


def binds_of(one: Measurement) -> Binds:
    """Return what kept requests waiting."""
    return Binds(
        slots=one.cap_bound_share,
        kv_blocks=max(0.0, one.kv_bound_share - one.token_bound_share),
        token_budget=one.token_bound_share,
    )


def _baseline(one: InUse | None) -> Baseline | None:
    if one is None:
        return None
    return Baseline(
        max_num_seqs=one.max_num_seqs,
        source=one.source,
        never_filled=one.never_filled,
        numbers_at=one.numbers_at,
        numbers=None if one.numbers is None else CapNumbers(**_numbers(one.numbers)),
    )


def _measured(one: Measurement) -> MeasuredNumbers:
    return MeasuredNumbers(
        **_numbers(one),
        cut=one.cut is not None,
        blocks=one.blocks,
    )


def slo_section(slo: Slo) -> SloSection:
    """Return the SLO in milliseconds."""
    per_token = slo.ttft_s_per_input_token
    return SloSection(
        ttft_ms=None if slo.ttft_s is None else slo.ttft_s * 1e3,
        ttft_ms_per_input_token=per_token * 1e3 if per_token > 0 else None,
        tpot_ms=None if slo.tpot_s is None else slo.tpot_s * 1e3,
        e2el_ms=None if slo.e2el_s is None else slo.e2el_s * 1e3,
        derived=slo.derived,
    )


def required_sections(checks: Sequence[RequirementCheck]) -> list[RequirementSection]:
    """Return what was required, and whether it is kept."""

    def known(value: float | None) -> float | None:
        return None if value is None or math.isnan(value) else value

    return [
        RequirementSection(
            text=str(one.requirement),
            at_worst=known(one.bound),
            measured=known(one.measured),
            kept=one.is_kept,
        )
        for one in checks
    ]


def profile_of(
    outcome: SweepOutcome, *, headroom: float, trace_digest: str, origin: Mapping[str, Any]
) -> ServingProfile:
    """Seal everything into a serving profile.

    ``origin`` holds what only the command knows: tuner's version, seed, time and wall seconds.
    """
    verdict = outcome.verdict
    chosen = outcome.chosen.numbers
    facts, raised = outcome.facts, outcome.with_headroom
    view = outcome.conclusion.view
    decision = Decision(
        verdict=verdict.kind,
        max_num_seqs=verdict.max_num_seqs,
        interval=verdict.interval,
        confidence=verdict.confidence,
        reason=verdict.reason,
        busy=outcome.busy,
        objective=OBJECTIVE,
        slo=slo_section(outcome.slo),
        requirements=required_sections(verdict.requirements),
    )
    promise = _promise(outcome)
    by_twin = view is not None and outcome.conclusion.by_twin
    law = None if view is None or not by_twin else view.fitted.law
    return seal(
        engine={**facts.arguments, "max_num_seqs": verdict.max_num_seqs},
        decision=decision,
        baseline=_baseline(outcome.in_use),
        curve=curve_steps(outcome),
        promise=promise,
        admission=admission.limits(
            decision, promise, law, token_budget=facts.max_num_batched_tokens
        ),
        validity=Validity(
            peak_concurrency=max(one.in_flight_peak for one in (chosen, raised) if one is not None),
            validated_load=headroom if holds_with_headroom(outcome) else 1.0,
            headroom_attainment=None if raised is None else raised.attainment_bound,
            trace_digest=trace_digest,
            window=str(outcome.part),
            windows=[str(window) for window in outcome.windows],
            arrival_rate_rps=outcome.arrival_rate_rps,
            retune_when=RETUNE_WHEN,
        ),
        provenance=_provenance(outcome, facts, origin),
        front_end=_front_end(outcome),
        evidence=b"" if view is None or not by_twin else pack(view),
    )


class SweepResult(Section, frozen=True, kw_only=True):
    """The object that ``tuner sweep --json`` prints of one trace."""

    verdict: VerdictKind
    max_num_seqs: Seqs
    interval: tuple[Seqs, Seqs]
    confidence: Fraction
    reason: str
    slo: SloSection
    requirements: list[RequirementSection]
    curve: list[CurveStep]
    baseline: Baseline | None
    front_end: FrontEndSection | None
    """None where no server confirmed."""

    checked: CheckSection | str | None
    engine_starts: Count
    engine_seconds: EngineSeconds
    run_dir: str
    profile: str
    """Where it was written."""

    warnings: list[str]


def result_of(
    outcome: SweepOutcome, *, run_dir: str, profile: str, warnings: Sequence[str]
) -> SweepResult:
    """Return what a sweep says for programs."""
    verdict = outcome.verdict
    return SweepResult(
        verdict=verdict.kind,
        max_num_seqs=verdict.max_num_seqs,
        interval=verdict.interval,
        confidence=verdict.confidence,
        reason=verdict.reason,
        slo=slo_section(outcome.slo),
        requirements=required_sections(verdict.requirements),
        curve=curve_steps(outcome),
        baseline=_baseline(outcome.in_use),
        front_end=_front_end(outcome),
        checked=_checked(outcome),
        engine_starts=len(outcome.starts_s),
        engine_seconds=EngineSeconds(starts=sum(outcome.starts_s), replay=outcome.replay_s),
        run_dir=run_dir,
        profile=profile,
        warnings=list(warnings),
    )


def json_object(
    outcome: SweepOutcome, *, run_dir: str, profile: str, warnings: Sequence[str]
) -> dict[str, Any]:
    """Return the object that ``tuner sweep --json`` prints."""
    found = result_of(outcome, run_dir=run_dir, profile=profile, warnings=warnings)
    return content_of(found)


def holds_with_headroom(outcome: SweepOutcome) -> bool:
    """Whether the chosen cap holds with the load raised, as it was replayed.

    It holds where it still served half of the requests in time, as many but for next to nothing as
    in the same windows as captured, and kept what is required there.
    """
    raised, base = outcome.with_headroom, outcome.chosen.measured or outcome.confirmed
    if raised is None or base is None:
        return False
    required = [one for one in outcome.verdict.requirements if one.requirement.at_headroom]
    return holds(base.attainment, raised.attainment) and all(one.is_kept for one in required)


def _checked(outcome: SweepOutcome) -> CheckSection | str | None:
    if outcome.unconfirmed is not None:
        return (
            f"not confirmed: {outcome.unconfirmed}; confirm it with tuner verify PROFILE --trace "
            "TRACE"
        )
    record = outcome.checked
    if record is None:
        return None
    both = {"predicted": record.predicted, "paced": record.at_own_speed}
    return CheckSection(
        unseen=record.unseen,
        failed=[cast("Any", name) for name, one in both.items() if one.failed],
        **{
            name: {
                each.name: (each.predicted, each.low, each.high, each.measured)
                for each in one.numbers
            }
            for name, one in both.items()
        },
    )


def memory_marks(one: Measurement) -> list[str]:
    """Say where the engine itself ran short of KV cache at the choice, asked for or not."""
    usage, marks = one.kv_cache_usage, []
    cure = "raise gpu_memory_utilization, or require preemptions == 0"
    if one.preemptions:
        marks.append(
            f"the confirming engine preempted {one.preemptions} times at {one.max_num_seqs} and "
            f"computed {one.recomputed_tokens} tokens again: {cure}"
        )
    elif usage is not None and usage.peak > KV_FULL:
        marks.append(
            f"the KV cache of the confirming engine was {usage.peak:.0%} full at "
            f"{one.max_num_seqs}: a little more load preempts; {cure}"
        )
    return marks


def second_thoughts(outcome: SweepOutcome, settings: SweepSettings) -> list[str]:
    """Say where the fresh engine and the ladder disagree, and whether the headroom holds."""
    marks = []
    if outcome.busy is not None:
        marks.append(
            f"the machine was busy ({outcome.busy}): the numbers are of what else ran too; sweep "
            "again when nothing else does"
        )
    one = outcome.confirmed
    if one is None:
        if outcome.unconfirmed is not None:
            marks.append(
                f"no fresh engine confirmed the choice: {outcome.unconfirmed}; give a larger "
                "--budget, or try it with tuner verify"
            )
        if outcome.ladder_engine != "sim":
            marks.append(
                "no server confirmed: all times are the engine's own, and its users see longer "
                "ones; measure those with tuner verify --url"
            )
        return marks
    marks += memory_marks(one)
    return [*marks, *_headroom_doubts(outcome, settings.headroom)]


def _headroom_doubts(outcome: SweepOutcome, headroom: float) -> list[str]:
    """Say what speaks against the headroom, where no warning of the verdict does."""
    if headroom > 1 and outcome.with_headroom is None:
        return [
            (
                f"{headroom:g} times the load was not replayed, only the twin speaks of it: give a "
                "larger --budget"
            )
        ]
    is_said = any(one.endswith(BEFORE_THAT) for one in outcome.verdict.warnings)
    if headroom <= 1 or is_said or holds_with_headroom(outcome):
        return []
    return [
        (
            f"in the windows that were replayed the choice does not hold at {headroom:g} times "
            f"the load: {BEFORE_THAT}"
        )
    ]


def _promise(outcome: SweepOutcome) -> Promise:
    source: Literal["confirming run", "ladder", "twin"] = "confirming run"
    if outcome.confirmed is None:
        source = "twin" if outcome.conclusion.by_twin else "ladder"
    return Promise(
        load=1.0,
        **_numbers(outcome.confirmed or outcome.chosen.numbers),
        source=source,
        predicted=[
            Predicted(
                load=one.load,
                intervals=dict(one.intervals),
                **_numbers(one.numbers),
            )
            for one in outcome.predictions
        ],
        checked=_checked(outcome),
    )


def _provenance(outcome: SweepOutcome, facts: EngineFacts, origin: Mapping[str, Any]) -> Provenance:
    return Provenance(
        engine=cast("Any", outcome.ladder_engine),
        confirm=_confirmed_by(outcome),
        device=dict(facts.device),
        versions=dict(facts.versions),
        environment=None if facts.environment is None else dict(facts.environment),
        model=str(facts.arguments["model"]),
        sampling=None if facts.sampling is None else dict(facts.sampling),
        engine_starts=len(outcome.starts_s),
        engine_seconds=EngineSeconds(starts=sum(outcome.starts_s), replay=outcome.replay_s),
        **origin,
    )


def _front_end(outcome: SweepOutcome) -> FrontEndSection | None:
    one = outcome.front_end
    if one is None:
        return None
    return FrontEndSection(
        contention=one.contention,
        request_ms=one.request_s * 1e3,
        delivery_ms=one.delivery_s * 1e3,
    )


def _confirmed_by(outcome: SweepOutcome) -> Literal["inproc", "server"] | None:
    if outcome.confirmed is None:
        return None
    return "server" if outcome.facts.engine == "serve" else "inproc"


def _ms(spread: Spread | None) -> SpreadSection | None:
    if spread is None:
        return None
    mean, p50, p90, p95, p99 = (1e3 * seconds for seconds in astuple(spread))
    return SpreadSection(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99)


def _kv(usage: KvCacheUsage | None) -> KvCacheUsageSection | None:
    if usage is None:
        return None
    return KvCacheUsageSection(mean=usage.mean, p99=usage.p99, peak=usage.peak)
