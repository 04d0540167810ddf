"""The result of a sweep or a refinement: its outcome, its profile, and what is against it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

from tuner.engines.seam import EngineFacts
from tuner.errors import RunError
from tuner.profile.evidence import admission, pack
from tuner.profile.profile import (
    Baseline,
    Binds,
    CapNumbers,
    CurveStep,
    Decision,
    EngineSeconds,
    FrontEndSection,
    KvCacheUsageSection,
    Predicted,
    Promise,
    Provenance,
    ServingProfile,
    SloSection,
    SpreadSection,
    Validity,
    content_of,
    seal,
)
from tuner.replay.numbers import Measurement, measure
from tuner.runs.bench import fitting
from tuner.runs.evidence import CONFIRMING, Evidence
from tuner.runs.journal import Failed, Journal
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.conclusion import Basis, Conclusion, conclude, confirmed, numbers_by_twin
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import KV_FULL, SPEED_SD_LIMIT
from tuner.traffic.requirements import RequirementCheck
from tuner.traffic.slo import Slo, holds
from tuner.traffic.workload import keep_what_fits, slo_for, workload_of
from tuner.twin.check import Number
from tuner.twin.decide import OBJECTIVE
from tuner.twin.samples import NUMBERS
from tuner.twin.simulation import FrontEnd
from tuner.twin.verdict import BEFORE_THAT, Verdict
from tuner.twin.windows import never_binds

SURE_ON_A_BUSY_MACHINE = 0.9
"""Most confidence in what was measured beside others: it is below the 0.95 that counts as sure."""

LAW_REACH = 2.0
"""Times the largest batch that was timed, up to which the law predicts a larger cap: it rises there
as in its upper half."""

SHORTENED = 0.9
"""Share of the step of the options: less than a tenth shorter is not worth a word."""

RETUNE_WHEN = [
    "the GPU, the model, its revision or its quantisation changes",
    "the vLLM version changes",
    "peak concurrency exceeds what was validated",
    "prompt or output lengths shift",
]


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """The result of a run."""

    conclusion: Conclusion
    """After the confirming replay."""

    basis: Basis
    facts: EngineFacts
    """Of the confirming engine where there was one, else of the ladder's."""

    confirmed: Measurement | None
    """The chosen cap on its own fresh engine at the recorded load."""

    with_headroom: Measurement | None
    """The same at ``headroom`` times the load."""

    checked: tuple[Number, ...] | None
    """The twin against the confirming replay; None where nothing confirmed, or there is no twin."""

    front_end: FrontEnd | None
    """What stands before the confirming engine; None where that was no server."""

    unconfirmed: str | None
    """Why no fresh engine confirmed the choice; None where one did."""

    busy: str | None
    """By what it was seen that the machine was busy; None where it was not."""

    warnings: tuple[str, ...]
    in_use: Baseline | None = None
    """None where nothing is known of what is set now."""

    @property
    def verdict(self) -> Verdict:
        return self.conclusion.verdict

    @property
    def holds_with_headroom(self) -> bool:
        """Whether the chosen cap holds with the load raised, as it was replayed.

        It holds where it still served half of the requests in time, as many but for next to nothing
        as in the same windows as recorded, and kept what is required there.
        """
        raised, base = self.with_headroom, self.conclusion.chosen.measured or self.confirmed
        if raised is None or base is None:
            return False
        required = [each for each in self.verdict.requirements if each.requirement.at_headroom]
        return holds(base.attainment, raised.attainment) and all(each.kept for each in required)


def outcome_of(
    conclusion: Conclusion,
    basis: Basis,
    requests: Sequence[TraceRequest],
    facts: EngineFacts | None = None,
) -> SweepOutcome:
    """Return the outcome, the confirming replays included. ``facts`` are of the engine that the
    choice is for, where it is not the newest."""
    evidence, slo, facts = basis.evidence, basis.workload.slo, facts or basis.evidence.facts()
    conclusion, checked, front_end = confirmed(conclusion, basis)
    cap, failed = conclusion.verdict.max_num_seqs, [*evidence.journal.of(Failed)]
    every = [evidence.confirming(purpose, cap) for purpose in CONFIRMING]
    seen, raised = (measure(each, slo) if each else None for each in every)
    unconfirmed = None
    if seen is None:
        why = [each.why for each in failed if each.purpose in CONFIRMING]
        unconfirmed = why[-1] if why else "the budget left no room for it"
    speed_sd = 0.0 if conclusion.view is None else conclusion.view.machine.speed_sd
    busy = next(evidence.disturbances(), None)
    if busy is None and speed_sd > SPEED_SD_LIMIT:
        busy = f"its speed varied by {speed_sd:.0%}"
    warnings = [*facts.cautions, *_limits_of(basis, requests)]
    if not evidence.is_complete():
        ended = [each.why for each in failed if each.purpose not in CONFIRMING]
        warnings += [f"the ladder ended early: {why}" for why in ended[-1:]]
    return SweepOutcome(
        conclusion=replace(conclusion, verdict=_measured(conclusion.verdict, seen, raised, busy)),
        basis=basis,
        facts=facts,
        confirmed=seen,
        with_headroom=raised,
        checked=checked,
        front_end=front_end,
        unconfirmed=unconfirmed,
        busy=busy,
        warnings=tuple(warnings),
    )


def _limits_of(basis: Basis, requests: Sequence[TraceRequest]) -> Iterator[str]:
    """Yield what limited what was measured."""
    step_s, wanted_s = basis.workload.step_s, basis.settings.step_s
    if (late := basis.evidence.lateness()) is not None:
        yield f"{late}: the times and their intervals include that"
    if step_s < SHORTENED * wanted_s:
        yield (
            f"the budget shortened the steps from {wanted_s:.0f}s to {step_s:.0f}s: less was seen "
            "than a larger --budget would show"
        )
    yield from fitting(requests, basis.evidence.facts().max_model_len)[1]


def _measured(
    verdict: Verdict, seen: Measurement | None, raised: Measurement | None, busy: str | None
) -> Verdict:
    """Return the verdict with what the confirming replays measured of all that is required; not
    sure, where that was on a ``busy`` machine."""
    checks = []
    for check in verdict.requirements:
        required = check.requirement
        numbers = raised if required.at_headroom else seen
        if numbers is not None and (numbers.cut is None or required.name == "attainment"):
            measured = required.value_in(numbers)
            check = RequirementCheck.of(required, check.at_worst, measured)  # noqa: PLW2901
        checks.append(check)
    verdict = replace(verdict, requirements=tuple(checks))
    if busy is None:
        return verdict
    return replace(
        verdict,
        confidence=min(verdict.confidence, SURE_ON_A_BUSY_MACHINE),
        reason=f"{verdict.reason}; measured on a busy machine: {busy}",
    )


def in_use(conclusion: Conclusion, cap: int, source: Literal["base", "default"]) -> Baseline:
    """Return the cap that is set now with what it gives the same traffic: predicted by the twin, or
    as replayed. Where neither covers so large a cap, the largest tried stands for it."""
    known = {point.numbers.max_num_seqs: point.numbers for point in conclusion.curve}
    most, view = max(known), conclusion.view
    top = known[most]
    is_unfilled = never_binds(top) and cap >= top.running_peak
    at, shown_at = (most if is_unfilled and cap not in known else cap), cap
    if at not in known and view is not None and conclusion.by_twin:
        known[cap] = predicted = numbers_by_twin(view, view.promised((cap,)), cap)
        is_unfilled = never_binds(predicted) if cap > most else is_unfilled
        if cap > most and predicted.running_peak > LAW_REACH * view.fitted.extrapolated_from:
            at = shown_at = most
    elif at not in known and cap > most and top.cut is None:
        at = shown_at = most
    numbers = known.get(at)
    return Baseline(
        max_num_seqs=cap,
        source=source,
        never_filled=is_unfilled,
        numbers_at=shown_at,
        numbers=None if numbers is None else CapNumbers(**_numbers(numbers)),
    )


def rescore(
    requests: Sequence[TraceRequest], settings: SweepSettings, journal: Journal
) -> SweepOutcome:
    """Return what the measurements of a run say under ``settings.slo``, or the derived one.

    Raises RunError when the run had not come far enough.
    """
    evidence = Evidence(journal)
    unloaded, choice = evidence.unloaded(), evidence.selection()
    if unloaded is None or choice is None or not evidence.made():
        raise RunError(
            f"{journal.run_dir}: nothing was measured that could be rescored",
            hint="Continue it first: tuner resume RUN_DIR.",
        )
    kept, _ = keep_what_fits(requests, max_model_len=evidence.facts().max_model_len)
    slo = settings.slo or slo_for(kept, evidence.unloaded("confirm") or unloaded)
    workload = workload_of(kept, slo, unloaded, choice.part, choice.windows[0], choice.step_s)
    basis = Basis(evidence, workload, settings)
    return outcome_of(conclude(basis), basis, requests)


# The profile

ALIKE = (
    "attainment", "goodput_rps", "requests_per_s", "output_tokens_per_s", "preemptions",
    "recomputed_tokens", "running_peak",
)  # fmt: skip
"""Numbers that a measurement and a profile hold alike; times are milliseconds in a profile."""


def _numbers(numbers: Measurement) -> dict[str, Any]:
    """Return what every section about one cap holds."""
    usage, spreads = numbers.kv_cache_usage, {}
    for name in ("ttft", "tpot", "itl", "e2el", "queue"):
        spread = getattr(numbers, f"{name}_s")
        spreads[f"{name}_ms"] = spread and SpreadSection(
            **{share: 1e3 * seconds for share, seconds in asdict(spread).items()}
        )
    return {
        **{name: getattr(numbers, name) for name in ALIKE},
        **spreads,
        "kv_cache_usage": usage and KvCacheUsageSection(**asdict(usage)),
        "binds": Binds(
            slots=numbers.cap_bound_share,
            kv_blocks=max(0.0, numbers.kv_bound_share - numbers.token_bound_share),
            token_budget=numbers.token_bound_share,
        ),
    }


def _curve(conclusion: Conclusion) -> list[CurveStep]:
    steps = []
    for point in conclusion.curve:
        seen = point.measured
        steps.append(
            CurveStep(
                max_num_seqs=point.numbers.max_num_seqs,
                **_numbers(point.numbers),
                cut=seen is not None and seen.cut is not None,
                source=point.source,
                intervals=dict(point.intervals),
                measured=None if seen is None else CapNumbers(**_numbers(seen)),
            )
        )
    return steps


def _slo(slo: Slo) -> SloSection:
    """Return the SLO in milliseconds."""
    return SloSection(
        **{
            f"{name}_ms": s and s * 1e3
            for name, s in (("ttft", slo.ttft_s), ("tpot", slo.tpot_s), ("e2el", slo.e2el_s))
        },
        ttft_ms_per_input_token=slo.ttft_s_per_input_token * 1e3 or None,
        derived=slo.derived,
    )


def profile_of(outcome: SweepOutcome, origin: Mapping[str, Any]) -> ServingProfile:
    """Seal everything into a serving profile. ``origin`` holds what of its provenance only the
    command knows: tuner's version, seed, time and wall seconds."""
    verdict, facts, basis = outcome.verdict, outcome.facts, outcome.basis
    evidence, workload = basis.evidence, basis.workload
    view = outcome.conclusion.view if outcome.conclusion.by_twin else None
    starts, raised = evidence.starts(), outcome.with_headroom
    decision = Decision(
        verdict=verdict.kind,
        max_num_seqs=verdict.max_num_seqs,
        interval=verdict.interval,
        confidence=verdict.confidence,
        reason=verdict.reason,
        busy=outcome.busy,
        objective=OBJECTIVE,
        slo=_slo(workload.slo),
        requirements=list(verdict.requirements),
    )
    promise, front_end = _promise(outcome), outcome.front_end
    law, tokens = None if view is None else view.fitted.law, facts.max_num_batched_tokens
    served = [each.in_flight_peak for each in (outcome.conclusion.chosen.numbers, raised) if each]
    confirmed_by = "server" if facts.is_served else "inproc"
    profile = ServingProfile(
        schema_version=1,
        engine={**facts.arguments, "max_num_seqs": verdict.max_num_seqs},
        decision=decision,
        baseline=outcome.in_use,
        curve=_curve(outcome.conclusion),
        promise=promise,
        admission=admission(decision, promise, law, token_budget=tokens),
        validity=Validity(
            peak_concurrency=max(served),
            validated_load=basis.settings.headroom if outcome.holds_with_headroom else 1.0,
            trace_digest=str(evidence.journal.plan["trace_digest"]),
            window=str(workload.part),
            windows=[str(workload.window)],
            arrival_rate_rps=workload.arrival_rate_rps,
            retune_when=RETUNE_WHEN,
        ),
        provenance=Provenance(
            engine=cast("Any", starts[0].facts.engine),
            confirm=cast("Any", None if outcome.confirmed is None else confirmed_by),
            device=dict(facts.device),
            versions=dict(facts.versions),
            environment=None if facts.environment is None else dict(facts.environment),
            model=str(facts.arguments["model"]),
            sampling=None if facts.sampling is None else dict(facts.sampling),
            engine_starts=len(starts),
            engine_seconds=EngineSeconds(
                starts=sum(start.facts.start_s for start in starts), replay=evidence.replay_s()
            ),
            **origin,
        ),
        front_end=None
        if front_end is None
        else FrontEndSection(contention=front_end.contention, delay_ms=front_end.delay_s * 1e3),
    )
    return seal(profile, b"" if view is None else pack(view))


def _promise(outcome: SweepOutcome) -> Promise:
    conclusion = outcome.conclusion
    cap, view, samples = outcome.verdict.max_num_seqs, conclusion.view, conclusion.promised
    checked, predicted = cast("Any", None), list[Predicted]()
    if outcome.unconfirmed is not None:
        why = outcome.unconfirmed
        checked = f"not confirmed: {why}; confirm it with tuner verify PROFILE --trace TRACE"
    elif outcome.checked is not None:
        checked = {
            n.name: (n.predicted, max(0.0, n.low), n.high, n.measured) for n in outcome.checked
        }
    if view is not None and samples is not None:
        for raised in [False, True] if samples.has_headroom else [False]:
            predicted.append(
                Predicted(
                    load=view.loads.headroom if raised else 1.0,
                    intervals=samples.intervals(cap, raised=raised, names=NUMBERS),
                    **_numbers(numbers_by_twin(view, samples, cap, raised=raised)),
                )
            )
    source = "twin" if conclusion.by_twin else "ladder"
    return Promise(
        load=1.0,
        **_numbers(outcome.confirmed or conclusion.chosen.numbers),
        source="confirming run" if outcome.confirmed else cast("Any", source),
        predicted=predicted,
        checked=checked,
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


# Warnings


def second_thoughts(outcome: SweepOutcome) -> Iterator[str]:
    """Yield what is against the choice: a busy machine, no confirmation, too little memory, and
    a headroom that does not hold."""
    seen, raised = outcome.confirmed, outcome.with_headroom
    headroom = outcome.basis.settings.headroom
    if outcome.busy is not None:
        yield (
            f"the machine was busy ({outcome.busy}): the numbers are of what else ran too; sweep "
            "again when nothing else does"
        )
    if seen is None:
        yield (
            f"no fresh engine confirmed the choice: {outcome.unconfirmed}; give a larger "
            "--budget, or try it with tuner verify"
        )
        if outcome.facts.engine != "sim":
            yield (
                "no server confirmed: all times are the engine's own, and its users see longer "
                "ones; measure those with tuner verify --url"
            )
        return
    cure = "raise gpu_memory_utilization, or require preemptions == 0"
    if seen.preemptions:
        yield (
            f"the confirming engine preempted {seen.preemptions} times at {seen.max_num_seqs} and "
            f"computed {seen.recomputed_tokens} tokens again: {cure}"
        )
    elif seen.kv_cache_usage is not None and seen.kv_cache_usage.peak > KV_FULL:
        yield (
            f"the KV cache of the confirming engine was {seen.kv_cache_usage.peak:.0%} full at "
            f"{seen.max_num_seqs}: a little more load preempts; {cure}"
        )
    if headroom > 1 and raised is None:
        yield (
            f"{headroom:g} times the load was not replayed, only the twin predicts it: give a "
            "larger --budget"
        )
    elif headroom > 1 and not outcome.holds_with_headroom:
        yield (
            f"in the windows that were replayed the choice does not hold at {headroom:g} times "
            f"the load: {BEFORE_THAT}"
        )
