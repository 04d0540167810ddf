"""The result of a run: the sections of a profile, and the object of ``sweep --json``. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from tuner.profile import admission
from tuner.profile.evidence import pack
from tuner.profile.profile import (
    Baseline,
    Binds,
    CapNumbers,
    ChangeSection,
    CheckSection,
    CurveStep,
    Decision,
    EngineSeconds,
    FrontEndSection,
    KvCacheUsageSection,
    MeasuredNumbers,
    Predicted,
    Promise,
    Provenance,
    RequirementSection,
    ServingProfile,
    SloSection,
    SpreadSection,
    Validity,
    content_of,
    seal,
)
from tuner.replay.numbers import Measurement
from tuner.runs.outcome import SweepOutcome
from tuner.traffic.constants import KV_FULL
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

ALIKE = (
    "attainment", "goodput_rps", "requests_per_s", "output_tokens_per_s", "preemptions",
    "recomputed_tokens", "running_peak",
)  # fmt: skip
"""Numbers that a measurement and a profile hold alike; times are milliseconds in a profile."""


def _numbers(numbers: Measurement) -> dict[str, Any]:
    """Return what every section about one cap holds."""
    usage = numbers.kv_cache_usage
    spreads = {name: getattr(numbers, f"{name}_s") for name in ("ttft", "tpot", "itl", "e2el",
                                                                "queue")}  # fmt: skip
    return {
        **{name: getattr(numbers, name) for name in ALIKE},
        **{
            f"{name}_ms": spread
            and SpreadSection(**{share: 1e3 * s for share, s in asdict(spread).items()})
            for name, spread in spreads.items()
        },
        "kv_cache_usage": usage and KvCacheUsageSection(**asdict(usage)),
        "binds": Binds(
            slots=numbers.cap_bound_share,
            kv_blocks=max(0.0, numbers.kv_bound_share - numbers.token_bound_share),
            token_budget=numbers.token_bound_share,
        ),
    }


def curve_steps(outcome: SweepOutcome) -> list[CurveStep]:
    """Return the curve, one step a cap, ascending."""
    steps = []
    for point in outcome.curve:
        seen = point.measured
        is_cut = seen is not None and seen.cut is not None
        changes = point.changes.items()
        steps.append(
            CurveStep(
                max_num_seqs=point.numbers.max_num_seqs,
                **_numbers(point.numbers),
                cut=is_cut,
                source=point.source,
                intervals=dict(point.intervals),
                changes={name: ChangeSection(**each._asdict()) for name, each in changes},
                measured=None
                if seen is None
                else MeasuredNumbers(**_numbers(seen), cut=is_cut, blocks=seen.blocks),
            )
        )
    return steps


def slo_section(slo: Slo) -> SloSection:
    """Return the SLO in milliseconds."""
    return SloSection(
        **{
            f"{name}_ms": s and s * 1e3
            for name, s in (("ttft", slo.ttft_s), ("tpot", slo.tpot_s), ("e2el", slo.e2el_s))
        },
        ttft_ms_per_input_token=slo.ttft_s_per_input_token * 1e3 or None,
        derived=slo.derived,
    )


def required_sections(checks: Sequence[RequirementCheck]) -> list[RequirementSection]:
    """Return what was required, and whether it is kept."""

    def known(value: float | None) -> float | None:
        return None if value is None or math.isnan(value) else value

    return [
        RequirementSection(
            text=str(check.requirement),
            at_worst=known(check.bound),
            measured=known(check.measured),
            kept=check.is_kept,
        )
        for check in checks
    ]


def profile_of(
    outcome: SweepOutcome, *, headroom: float, trace_digest: str, origin: Mapping[str, Any]
) -> ServingProfile:
    """Seal everything into a serving profile.

    ``origin`` holds what only the command knows: tuner's version, seed, time and wall seconds.
    """
    verdict, facts = outcome.verdict, outcome.facts
    view = outcome.conclusion.view if outcome.conclusion.by_twin else None
    decision = Decision(
        verdict=verdict.kind,
        max_num_seqs=verdict.max_num_seqs,
        interval=verdict.interval,
        confidence=verdict.confidence,
        reason=verdict.reason,
        busy=outcome.busy,
        objective=OBJECTIVE,
        slo=slo_section(outcome.workload.slo),
        requirements=required_sections(verdict.requirements),
    )
    promise, front_end, now = _promise(outcome), outcome.front_end, outcome.in_use
    law = None if view is None else view.fitted.law
    tokens = facts.max_num_batched_tokens
    return seal(
        engine={**facts.arguments, "max_num_seqs": verdict.max_num_seqs},
        decision=decision,
        baseline=now
        and Baseline(
            max_num_seqs=now.max_num_seqs,
            source=now.source,
            never_filled=now.never_filled,
            numbers_at=now.numbers_at,
            numbers=None if now.numbers is None else CapNumbers(**_numbers(now.numbers)),
        ),
        curve=curve_steps(outcome),
        promise=promise,
        admission=admission.limits(decision, promise, law, token_budget=tokens),
        validity=_validity(outcome, headroom=headroom, trace_digest=trace_digest),
        provenance=_provenance(outcome, origin),
        front_end=front_end
        and FrontEndSection(
            contention=front_end.contention,
            request_ms=front_end.request_s * 1e3,
            delivery_ms=front_end.delivery_s * 1e3,
        ),
        evidence=b"" if view is None else pack(view),
    )


def _validity(outcome: SweepOutcome, *, headroom: float, trace_digest: str) -> Validity:
    raised, workload = outcome.with_headroom, outcome.workload
    return Validity(
        peak_concurrency=max(
            each.in_flight_peak for each in (outcome.chosen.numbers, raised) if each
        ),
        validated_load=headroom if holds_with_headroom(outcome) else 1.0,
        headroom_attainment=None if raised is None else raised.attainment_bound,
        trace_digest=trace_digest,
        window=str(workload.part),
        windows=[str(window) for window in workload.windows],
        arrival_rate_rps=workload.arrival_rate_rps,
        retune_when=RETUNE_WHEN,
    )


def _provenance(outcome: SweepOutcome, origin: Mapping[str, Any]) -> Provenance:
    facts, confirmed_by = outcome.facts, None
    if outcome.confirmed is not None:
        confirmed_by = "server" if facts.engine == "serve" else "inproc"
    return Provenance(
        engine=cast("Any", outcome.starts[0].facts.engine),
        confirm=cast("Any", confirmed_by),
        device=dict(facts.device),
        versions=dict(facts.versions),
        environment=None if facts.environment is None else dict(facts.environment),
        model=str(facts.arguments["model"]),
        sampling=None if facts.sampling is None else dict(facts.sampling),
        engine_starts=len(outcome.starts),
        engine_seconds=EngineSeconds(starts=outcome.starts_s, replay=outcome.replay_s),
        **origin,
    )


def json_object(profile: ServingProfile, *, run_dir: str, path: str | None) -> dict[str, Any]:
    """Return the object that ``tuner sweep --json`` prints of a profile that is written there;
    None: nowhere."""
    content = content_of(profile)
    decision, provenance = content["decision"], content["provenance"]
    decided = (
        "verdict", "max_num_seqs", "interval", "confidence", "reason", "slo", "requirements",
    )  # fmt: skip
    return {
        **{name: decision[name] for name in decided},
        **{name: content[name] for name in ("curve", "baseline", "front_end")},
        "checked": content["promise"]["checked"],
        **{name: provenance[name] for name in ("engine_starts", "engine_seconds")},
        "run_dir": run_dir,
        "profile": path,
        "warnings": provenance["warnings"],
    }


def holds_with_headroom(outcome: SweepOutcome) -> bool:
    """Whether the chosen cap holds with the load raised, as it was replayed.

    It holds where it still served half of the requests in time, as many but for next to nothing as
    in the same windows as recorded, and kept what is required there.
    """
    raised, base = outcome.with_headroom, outcome.chosen.measured or outcome.confirmed
    if raised is None or base is None:
        return False
    required = [each for each in outcome.verdict.requirements if each.requirement.at_headroom]
    return holds(base.attainment, raised.attainment) and all(each.is_kept for each in required)


def _promise(outcome: SweepOutcome) -> Promise:
    by_twin, record = outcome.conclusion.by_twin, outcome.checked
    checked: CheckSection | str | None = None
    if outcome.unconfirmed is not None:
        why = outcome.unconfirmed
        checked = f"not confirmed: {why}; confirm it with tuner verify PROFILE --trace TRACE"
    elif record is not None:
        both = {"predicted": record.predicted, "paced": record.at_own_speed}
        checked = CheckSection(
            unseen=record.unseen,
            failed=[cast("Any", name) for name, check in both.items() if check.failed],
            **{
                name: {n.name: (n.predicted, n.low, n.high, n.measured) for n in check.numbers}
                for name, check in both.items()
            },
        )
    return Promise(
        load=1.0,
        **_numbers(outcome.confirmed or outcome.chosen.numbers),
        source="confirming run" if outcome.confirmed else "twin" if by_twin else "ladder",
        predicted=[
            Predicted(load=each.load, intervals=dict(each.intervals), **_numbers(each.numbers))
            for each in outcome.predictions
        ],
        checked=checked,
    )


# Warnings


def memory_marks(numbers: Measurement) -> list[str]:
    """Say where the engine itself ran short of KV cache at the choice, required or not."""
    usage, cap = numbers.kv_cache_usage, numbers.max_num_seqs
    cure = "raise gpu_memory_utilization, or require preemptions == 0"
    if numbers.preemptions:
        text = (
            f"the confirming engine preempted {numbers.preemptions} times at {cap} and "
            f"computed {numbers.recomputed_tokens} tokens again: {cure}"
        )
        return [text]
    if usage is not None and usage.peak > KV_FULL:
        text = (
            f"the KV cache of the confirming engine was {usage.peak:.0%} full at {cap}: a little "
            f"more load preempts; {cure}"
        )
        return [text]
    return []


def second_thoughts(outcome: SweepOutcome, headroom: float) -> list[str]:
    """Return what is against the choice: a busy machine, no confirmation, too little memory, and
    a headroom that does not hold."""
    warnings = []
    if outcome.busy is not None:
        warnings.append(
            f"the machine was busy ({outcome.busy}): the numbers are of what else ran too; sweep "
            "again when nothing else does"
        )
    if outcome.confirmed is not None:
        warnings += memory_marks(outcome.confirmed)
    elif outcome.unconfirmed is not None:
        warnings.append(
            f"no fresh engine confirmed the choice: {outcome.unconfirmed}; give a larger "
            "--budget, or try it with tuner verify"
        )
    if outcome.confirmed is None and outcome.starts[0].facts.engine != "sim":
        warnings.append(
            "no server confirmed: all times are the engine's own, and its users see longer "
            "ones; measure those with tuner verify --url"
        )
    is_warned = any(text.endswith(BEFORE_THAT) for text in outcome.verdict.warnings)
    if headroom <= 1 or outcome.confirmed is None or is_warned:
        return warnings
    if outcome.with_headroom is None:
        warnings.append(
            f"{headroom:g} times the load was not replayed, only the twin predicts it: give a "
            "larger --budget"
        )
    elif not holds_with_headroom(outcome):
        warnings.append(
            f"in the windows that were replayed the choice does not hold at {headroom:g} times "
            f"the load: {BEFORE_THAT}"
        )
    return warnings
