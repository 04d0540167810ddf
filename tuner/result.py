"""What a sweep found, as the sections of a profile and as the object of ``sweep --json``. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, cast

from tuner.engines.seam import EngineFacts
from tuner.iterations import KvCacheUsage
from tuner.knee import OBJECTIVE
from tuner.measure import Measurement, Spread
from tuner.outcome import SweepOutcome
from tuner.profile import seal
from tuner.profile_schema import (
    CurveStep,
    Decision,
    EngineSeconds,
    Promise,
    Provenance,
    ServingProfile,
    SloSection,
    Validity,
)
from tuner.profile_schema import KvCacheUsage as KvSection
from tuner.profile_schema import Spread as SpreadSection
from tuner.slo import Slo
from tuner.uncertainty import intervals

if TYPE_CHECKING:
    from pydantic import JsonValue

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
            max_num_seqs=one.max_num_seqs,
            attainment=one.attainment,
            goodput_rps=one.goodput_rps,
            requests_per_s=one.requests_per_s,
            output_tokens_per_s=one.output_tokens_per_s,
            ttft_ms=_ms(one.ttft_s),
            tpot_ms=_ms(one.tpot_s),
            itl_ms=_ms(one.itl_s),
            e2el_ms=_ms(one.e2el_s),
            queue_ms=_ms(one.queue_s),
            kv_cache_usage=_kv(one.kv_cache_usage),
            preemptions=one.preemptions,
            recomputed_tokens=one.recomputed_tokens,
            cut=one.cut is not None,
            source="measured",
            blocks=one.blocks,
            running_peak=one.running_peak,
            intervals=_intervals(outcome, one),
        )
        for one in outcome.curve
    ]


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


def profile_of(
    outcome: SweepOutcome, *, headroom: float, trace_digest: str, origin: Mapping[str, Any]
) -> ServingProfile:
    """Seal everything into a serving profile.

    ``origin`` holds what only the command knows: tuner's version, seed, time and wall seconds.
    """
    verdict = outcome.verdict
    chosen = _chosen(outcome)
    facts = outcome.facts
    return seal(
        engine={**facts.arguments, "max_num_seqs": verdict.max_num_seqs},
        decision=Decision(
            verdict=verdict.kind,
            max_num_seqs=verdict.max_num_seqs,
            interval=verdict.interval,
            confidence=verdict.confidence,
            reason=verdict.reason,
            objective=OBJECTIVE,
            slo=slo_section(outcome.slo),
        ),
        curve=curve_steps(outcome),
        promise=_promise(outcome.confirmed or chosen, confirmed=outcome.confirmed is not None),
        validity=Validity(
            peak_concurrency=max(
                one.in_flight_peak for one in (chosen, outcome.with_headroom) if one is not None
            ),
            validated_load=headroom if holds_with_headroom(outcome) else 1.0,
            trace_digest=trace_digest,
            window=str(outcome.window),
            arrival_rate_rps=chosen.arrival_rate_rps,
            retune_when=RETUNE_WHEN,
        ),
        provenance=_provenance(outcome, facts, origin),
    )


def json_object(
    outcome: SweepOutcome, *, run_dir: str, profile: str, warnings: Sequence[str]
) -> dict[str, Any]:
    """Return the object that ``tuner sweep --json`` prints."""
    verdict = outcome.verdict
    return {
        "verdict": verdict.kind,
        "max_num_seqs": verdict.max_num_seqs,
        "interval": list(verdict.interval),
        "confidence": verdict.confidence,
        "reason": verdict.reason,
        "slo": slo_section(outcome.slo).model_dump(mode="json"),
        "curve": [step.model_dump(mode="json") for step in curve_steps(outcome)],
        "twin_error": None,
        "engine_starts": len(outcome.starts_s),
        "engine_seconds": {"starts": sum(outcome.starts_s), "replay": outcome.replay_s},
        "run_dir": run_dir,
        "profile": profile,
        "warnings": list(warnings),
    }


def holds_with_headroom(outcome: SweepOutcome) -> bool:
    """Whether the chosen cap still served half of the requests in time, and nearly as many as at
    the captured load, when the load was raised."""
    raised = outcome.with_headroom
    if raised is None:
        return False
    base = outcome.confirmed or _chosen(outcome)
    return raised.attainment >= max(0.5, base.attainment - HEADROOM_LOSS)


HEADROOM_LOSS = 0.05
"""Attainment that a raised load may cost and still count as validated."""


def _chosen(outcome: SweepOutcome) -> Measurement:
    cap = outcome.verdict.max_num_seqs
    return next(one for one in outcome.curve if one.max_num_seqs == cap)


OTHERS_LIMIT = 0.10
ATTAINMENT_AGREEMENT = 0.05
AGREEMENT = 0.10
"""How far the confirming engine's p50 TPOT may be from the ladder's before it is said aloud."""


def second_thoughts(outcome: SweepOutcome, *, fresh: bool, headroom: float) -> list[str]:
    """Say where the fresh engine and the ladder disagree, and whether the headroom holds."""
    said = []
    one = outcome.confirmed
    if one is None:
        if not fresh and outcome.verdict.kind != "overloaded":
            said.append("no fresh engine confirmed the choice: the budget was spent")
        return said
    ladder = _chosen(outcome)
    if one.tpot_s and ladder.tpot_s:
        ratio = one.tpot_s.p50 / ladder.tpot_s.p50 - 1
        if abs(ratio) > AGREEMENT:
            said.append(
                f"the confirming engine's p50 TPOT was {ratio:+.0%} against the ladder's: "
                "the machine or the engine's size changed it"
            )
    if abs(one.attainment - ladder.attainment) > ATTAINMENT_AGREEMENT:
        said.append(
            f"the confirming engine served {one.attainment:.0%} within the SLO, the ladder "
            f"{ladder.attainment:.0%}: the machine changed in between, measure again"
        )
    others = max((m.device.others_mean or 0.0 for m in outcome.curve if m.device), default=0.0)
    if others > OTHERS_LIMIT:
        said.append(
            f"other processes took up to {others:.0%} of the CPU cores during a step: "
            "the curve is theirs too"
        )
    if headroom > 1 and not holds_with_headroom(outcome):
        said.append(f"the choice does not hold at {headroom:g} times the load")
    return said


def _promise(one: Measurement, *, confirmed: bool) -> Promise:
    return Promise(
        load=1.0,
        attainment=one.attainment,
        requests_per_s=one.requests_per_s,
        output_tokens_per_s=one.output_tokens_per_s,
        ttft_ms=_ms(one.ttft_s),
        tpot_ms=_ms(one.tpot_s),
        itl_ms=_ms(one.itl_s),
        e2el_ms=_ms(one.e2el_s),
        kv_cache_usage=_kv(one.kv_cache_usage),
        preemptions=one.preemptions,
        source="confirming run" if confirmed else "ladder",
    )


def _provenance(outcome: SweepOutcome, facts: EngineFacts, origin: Mapping[str, Any]) -> Provenance:
    return Provenance(
        engine="sim" if facts.engine == "sim" else "vllm",
        device=cast("dict[str, JsonValue]", dict(facts.device)),
        versions=dict(facts.versions),
        model=str(facts.arguments["model"]),
        engine_starts=len(outcome.starts_s),
        engine_seconds=EngineSeconds(starts=sum(outcome.starts_s), replay=outcome.replay_s),
        twin_error=None,
        **origin,
    )


def _intervals(outcome: SweepOutcome, one: Measurement) -> dict[str, tuple[float, float]]:
    """Return the 95 % intervals; of a cut step only what is certain of its attainment."""
    if one.cut is not None:
        return {"attainment": (one.attainment, one.attainment_bound)}
    return intervals(outcome.blocks, one.max_num_seqs)


def _ms(spread: Spread | None) -> SpreadSection | None:
    if spread is None:
        return None
    mean, p50, p90, p95, p99 = (1e3 * seconds for seconds in astuple(spread))
    return SpreadSection(mean=mean, p50=p50, p90=p90, p95=p95, p99=p99)


def _kv(usage: KvCacheUsage | None) -> KvSection | None:
    if usage is None:
        return None
    return KvSection(mean=usage.mean, p99=usage.p99, peak=usage.peak)
