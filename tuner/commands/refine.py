"""``tuner refine``: search other engine arguments around a profile's choice."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from tuner.commands.options import RefineOptions
from tuner.commands.shared.machine import Machine, check_machine, machine_of
from tuner.commands.shared.next_step import after, check_required, command, is_short
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.results import finish
from tuner.commands.shared.run_folder import kept, open_run
from tuner.commands.shared.traffic import one_engines, served_in, warnings_about
from tuner.commands.shared.trust import check_confirmed
from tuner.commands.sweep import origin_of
from tuner.engines.arguments import ArgumentValue
from tuner.engines.engine_arguments import value_of
from tuner.engines.vllm import start as vllm
from tuner.engines.vllm import supported
from tuner.engines.vllm.flags import Setting
from tuner.errors import TraceError, TunerError, UsageError
from tuner.profile.evidence import twin_of
from tuner.profile.profile import (
    RequirementSection,
    ServingProfile,
    check_output,
    evidence_of,
    keep,
    save,
    seal,
)
from tuner.profile.profile import load as load_profile
from tuner.runs.bench import Bench
from tuner.runs.journal import Journal
from tuner.runs.refine.refine import Refinement, RefinePlan, Vary, refine
from tuner.runs.refine.search import Study
from tuner.runs.refine.space import (
    CAP,
    LIVE,
    TOKENS,
    Space,
    TrafficNeeds,
    build_space,
    number,
    parse_search,
)
from tuner.runs.result import profile_of, required_sections, second_thoughts
from tuner.runs.settings import settings_in
from tuner.system import interruption
from tuner.trace.columns import columns_of
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.traffic.description import describe
from tuner.traffic.requirements import RequirementCheck
from tuner.views.live import Progress
from tuner.views.refine import refine_page

FEWEST_REQUESTS = 10
"""Of fewer no percentile and no gain can be known."""
OTHER_TRACE = (
    "this is not the trace that the profile was tuned for: sweep it first where its traffic differs"
)


def run(options: RefineOptions) -> None:
    """Refine, write the profile and print what was gained. Raises TunerError."""
    began_s = time.monotonic()
    profile = load_profile(options.profile)
    check_output(options.output)
    trace, origin = load(options.trace), profile.provenance
    served = served_in(trace, options.trace)
    requests = one_engines(served, replicas=origin.replicas * origin.ranks, router=origin.router)
    machine = machine_of(options, profile.model, profile.sampling)
    if options.world is None:
        check_confirmed(profile, options.overrides, source=options.profile)
    if not options.force:
        check_machine(profile, machine)
    vary, block_size = partial(machine.starter, profile.engine), trace.header.block_size
    space = space_of(options, profile, vary, requests=requests, block_size=block_size)
    plan = plan_of(options, profile, trace, space)
    if options.storage is not None:
        Study(options.storage, space)  # refused before there is a run directory
    version = supported.version_in(machine.versions)
    rests_on = {
        "profile_digest": profile.digest,
        "trace_digest": trace.digest,
        "machine": [machine.device.get("name"), machine.device.get("digest"), str(version)],
        "space": {knob.name: list(knob.values) for knob in space.knobs},
        **in_plan(options, "budget", "require"),
    }
    book = open_run("refine", options, rests_on)
    with kept(book):
        refinement = _refined(options, plan, requests, machine, book)
        if refinement.outcome is not None:
            doubts = second_thoughts(refinement.outcome)
            refinement = replace(refinement, warnings=(*refinement.warnings, *doubts))
        wall_s = time.monotonic() - began_s
        refined = _profile(options, plan, refinement, wall_s=wall_s)
        _conclude(options, plan, refinement, refined, book)


def plan_of(
    options: RefineOptions, profile: ServingProfile, trace: Trace, space: Space
) -> RefinePlan:
    measured = profile.provenance
    caps = [profile.decision.max_num_seqs, *(step.max_num_seqs for step in profile.curve)]
    required = [each.text for each in profile.decision.requirements]
    settings = {
        "window": "all",
        "step": "60s",
        "budget": options.budget,
        "headroom": profile.promise.headroom,
        "require": options.require or required,
        "ceiling": max(caps),
        "trace_block_size": trace.header.block_size,
    }
    is_other = profile.validity.trace_digest != trace.digest
    return RefinePlan(
        profile=profile,
        space=space,
        settings=settings_in(settings, slo=profile.decision.slo.slo),
        start_s=measured.engine_seconds.starts / max(1, measured.engine_starts),
        max_model_len=profile.engine.get("max_model_len", 1),
        twin=None
        if profile.evidence is None
        else twin_of(profile, options.profile, cure="Sweep again."),
        warnings=[*warnings_about(trace), *[OTHER_TRACE] * is_other],
    )


def space_of(
    options: RefineOptions,
    profile: ServingProfile,
    vary: Vary,
    *,
    requests: list[TraceRequest],
    block_size: int,
) -> Space:
    """Return what is searched. Raises UsageError for what contradicts or is refused, TraceError for
    a trace of too few requests."""
    if len(requests) < FEWEST_REQUESTS:
        raise TraceError(
            f"{options.trace}: requests served: {len(requests)}, too few to know any limit",
            hint=f"Capture more traffic: at least {FEWEST_REQUESTS} requests, better hundreds.",
        )
    engine: dict[str, Any] = {"max_model_len": 1, **profile.engine}

    def refusal(name: str, value: ArgumentValue) -> str | None:
        cap, tokens = number(engine[CAP]), number(engine[TOKENS])
        if name == CAP:
            cap, tokens = number(value), max(tokens, number(value))
        elif name == TOKENS:
            cap, tokens = min(cap, number(value)), number(value)
        changes = {TOKENS: tokens} if name in LIVE else {name: value}
        try:
            resolved = vary(changes).resolve(max_num_seqs=cap)
        except TunerError as error:
            return str(error)
        if name not in resolved and value is not None:
            return "it is ignored here, whatever is asked"
        if name in resolved and resolved[name] != value:
            return f"it is {resolved[name]} here, whatever is asked"
        return None

    summary = describe(columns_of(requests, block_size=block_size))
    needs = TrafficNeeds(
        shares_prefixes=bool(summary.prefix_share),
        caps=tuple(step.max_num_seqs for step in profile.curve),
        requests=len(requests),
        on_gpu=profile.provenance.device.get("kind") == "gpu",
    )
    return build_space(engine, needs, _named(options, profile), refusal)


def _named(options: RefineOptions, profile: ServingProfile) -> dict[str, tuple[ArgumentValue, ...]]:
    """Return what ``--search`` names, each value as the engine reads it. Raises UsageError."""

    def typed(name: str, word: str) -> ArgumentValue:
        if options.world is not None:
            return int(word) if word.isdecimal() else word
        value = value_of(word, place=f"--search {name}")
        setting = Setting(name, value, "--search", of_server=False)
        return vllm.parse([setting], model=profile.model)[name]

    named: dict[str, tuple[ArgumentValue, ...]] = {}
    for name, words in parse_search(options.search).items():
        named[name] = tuple(typed(name, word) for word in words)
        if name in LIVE and any(type(value) is not int or value < 1 for value in named[name]):
            raise UsageError(
                f"--search {name}={','.join(words)}: whole numbers of at least 1 are searched",
                hint="As in --search max_num_batched_tokens=1024,2048.",
            )
    return named


def _refined(
    options: RefineOptions,
    plan: RefinePlan,
    requests: list[TraceRequest],
    machine: Machine,
    book: Journal,
) -> Refinement:
    settings, space = plan.settings, plan.space
    progress = Progress(settings.budget_s)
    for knob in space.knobs:
        values = ", ".join("default" if value is None else str(value) for value in knob.values)
        how = "live" if knob.name in LIVE else "an engine each"
        progress.stage(f"searching {knob.name} ({how}): {values}; {knob.why}")
    for line in space.left_out:
        progress.stage(f"not searching {line}")
    for warning in plan.warnings:
        progress.warn(warning)
    study = Study(options.storage, space)
    bench = Bench(book, progress, machine.read, block_size=settings.trace_block_size)
    vary = partial(machine.starter, plan.profile.engine, log=book.run_dir / "vllm.log")
    with progress:
        work = refine(requests, plan, bench, vary, study)
        if machine.world is None:
            return interruption.run(work)
        from tuner.engines.sim import virtual_time  # noqa: PLC0415 - numba

        return virtual_time.run(work, begin_s=book.clock_s)


def _profile(
    options: RefineOptions,
    plan: RefinePlan,
    refinement: Refinement,
    *,
    wall_s: float,
) -> ServingProfile:
    """Return the refined profile, or the knee's with the reason why it is kept."""
    outcome, profile, origin = refinement.outcome, plan.profile, plan.profile.provenance
    if outcome is None:
        evidence = evidence_of(profile, options.profile) if profile.evidence else b""
        requirements = profile.decision.requirements
        if options.require:
            requirements = _of_knee(plan, refinement)
        decision = msgspec.structs.replace(
            profile.decision, reason=refinement.reason, requirements=requirements
        )
        return seal(msgspec.structs.replace(profile, decision=decision), evidence)
    arguments, knobs = outcome.facts.arguments, {knob.name for knob in plan.space.knobs}
    changed = {name for name in knobs if arguments.get(name) != profile.engine.get(name)}
    own = origin_of(
        outcome,
        refinement.warnings,
        wall_s=wall_s,
        ranks=origin.ranks,
        given=sorted({*origin.given, *changed}),
    )
    return profile_of(outcome, {**own, "replicas": origin.replicas, "router": origin.router})


def _of_knee(plan: RefinePlan, refinement: Refinement) -> list[RequirementSection]:
    """Return what the knee, which is kept, measured of what is required of it here."""
    knee = dict(plan.space.knee)
    seen = next((row.measured for row in refinement.trials if row.configuration == knee), None)
    return required_sections(
        [
            RequirementCheck(
                each, None, None if seen is None or each.at_headroom else each.value_in(seen)
            )
            for each in plan.settings.requirements
        ]
    )


def _conclude(
    options: RefineOptions,
    plan: RefinePlan,
    refinement: Refinement,
    refined: ServingProfile,
    book: Journal,
) -> None:
    """Write the profile, and print."""
    run_dir, is_refined = str(book.run_dir), refinement.outcome is not None
    keep(refined, book.run_dir)
    check_output(options.output)
    save(refined, options.output)
    next_ = after(refined, options.output)
    if is_refined and options.world is None and not is_short(refined):
        next_ = command("verify", options.output, "--trace", options.trace)
    names = ("reason", "chosen", "proof", "complete", "failed", "warnings")
    result = {
        "refined": is_refined,
        **{name: getattr(refinement, name) for name in names},
        "trials": [
            {
                "configuration": trial.configuration,
                "attainment": trial.measured.attainment,
                "gain": trial.gain,
            }
            for trial in refinement.trials
        ],
        "knee": plan.space.knee,
        "space": plan.space.knobs,
        "left_out": plan.space.left_out,
        "engine_starts": len(refinement.starts_s),
        "engine_seconds": {"starts": sum(refinement.starts_s), "replay": refinement.replay_s},
        "run_dir": run_dir,
        "profile": str(options.output),
    }
    page = refine_page(refinement, plan.space.knee, refined, run_dir=run_dir, next_=next_)
    finish(options, result, page, book.run_dir)
    check_required(refined, options.output, cure="")
