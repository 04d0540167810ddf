"""``tuner refine``: search other engine arguments around a profile's choice."""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from tuner.commands.options import RefineOptions
from tuner.commands.shared.machine import Machine, ThisMachine, check_machine, machine_of
from tuner.commands.shared.next_step import after, check_required, command, is_short
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.results import finish
from tuner.commands.shared.run_folder import kept, open_run
from tuner.commands.shared.traffic import one_engines, served_in, warnings_about
from tuner.commands.shared.trust import check_asked
from tuner.commands.sweep import origin_of
from tuner.engines.arguments import ArgumentValue
from tuner.engines.engine_arguments import value_of
from tuner.engines.vllm import start as vllm
from tuner.engines.vllm import supported
from tuner.engines.vllm.flags import Setting
from tuner.errors import TraceError, TunerError, UsageError
from tuner.profile.profile import (
    RequirementSection,
    ServingProfile,
    check_output,
    evidence_of,
    keep,
    resealed,
    save,
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
from tuner.traffic.requirements import RequirementCheck
from tuner.traffic.summary import describe
from tuner.views.live import Progress
from tuner.views.refine import refine_json, refine_page, space_lines

FEWEST_REQUESTS = 10
"""Of fewer no percentile and no gain can be known."""
OTHER_TRACE = (
    "this is not the trace that the profile was tuned for: sweep it first where its traffic differs"
)


@dataclass(frozen=True, slots=True)
class _Search:
    """A refinement, checked; nothing has been started for it."""

    options: RefineOptions
    trace: Trace
    requests: list[TraceRequest]
    plan: RefinePlan
    machine: Machine
    began_s: float


def run(options: RefineOptions) -> None:
    """Refine, write the profile and print what was gained. Raises TunerError."""
    began_s = time.monotonic()
    profile = load_profile(options.profile)
    check_output(options.output, force=None)
    trace, origin = load(options.trace), profile.provenance
    served = served_in(trace, options.trace)
    requests = one_engines(served, replicas=origin.replicas * origin.ranks, router=origin.router)
    machine = machine_of(options, profile.model, profile.sampling)
    if options.world is None:
        check_asked(profile, options.overrides, source=options.profile)
    if not options.force:
        check_machine(profile, machine)
    vary, block_size = partial(machine.starter, profile.engine), trace.header.block_size
    space = space_of(options, profile, vary, requests=requests, block_size=block_size)
    search = _Search(
        options, trace, requests, plan_of(options, profile, trace, space), machine, began_s
    )
    if options.storage is not None:
        Study(options.storage, space)  # refused before there is a run directory
    book = open_run("refine", options, _rests_on(search))
    with kept(book):
        refinement = _refined(search, book)
        if refinement.outcome is not None:
            doubts = second_thoughts(refinement.outcome, search.plan.settings.headroom)
            refinement = replace(refinement, warnings=(*refinement.warnings, *doubts))
        _conclude(search, book, refinement)


def plan_of(
    options: RefineOptions, profile: ServingProfile, trace: Trace, space: Space
) -> RefinePlan:
    measured = profile.provenance
    caps = [profile.decision.max_num_seqs, *(step.max_num_seqs for step in profile.curve)]
    is_same = profile.validity.trace_digest == trace.digest
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
    warnings = [*trace.warnings, *warnings_about(trace)]
    return RefinePlan(
        profile=profile,
        space=space,
        settings=settings_in(settings, slo=profile.decision.slo.slo),
        start_s=measured.engine_seconds.starts / max(1, measured.engine_starts),
        max_model_len=profile.max_model_len,
        warnings=warnings if is_same else [*warnings, OTHER_TRACE],
    )


def _rests_on(search: _Search) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same."""
    here = search.machine
    version = supported.version_in(here.versions)
    return {
        "profile_digest": search.plan.profile.digest,
        "trace_digest": search.trace.digest,
        "machine": [str(here.device.get("name")), here.device.get("digest"), str(version)],
        "space": {knob.name: list(knob.values) for knob in search.plan.space.knobs},
        **in_plan(search.options, "budget", "require"),
    }


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
    engine: dict[str, Any] = {**profile.engine, "max_model_len": profile.max_model_len}

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
        setting = Setting(
            name, value_of(word, place=f"--search {name}"), "--search", of_server=False
        )
        return vllm.parse([setting], model=profile.model)[name]

    named: dict[str, tuple[ArgumentValue, ...]] = {}
    for name, words in parse_search(options.search).items():
        named[name] = values = tuple(typed(name, word) for word in words)
        if name in LIVE and any(
            not isinstance(value, int) or isinstance(value, bool) or value < 1 for value in values
        ):
            raise UsageError(
                f"--search {name}={','.join(words)}: whole numbers of at least 1 are searched",
                hint="As in --search max_num_batched_tokens=1024,2048.",
            )
    return named


def _refined(search: _Search, book: Journal) -> Refinement:
    plan, machine, settings = search.plan, search.machine, search.plan.settings
    progress = Progress(settings.budget_s)
    for line in space_lines(plan.space):
        progress.stage(line)
    for warning in plan.warnings:
        progress.warn(warning)
    study = Study(search.options.storage, plan.space)
    bench = Bench(
        book, progress, machine.read, block_size=settings.trace_block_size, seed=settings.seed
    )
    vary = partial(machine.starter, plan.profile.engine, log=book.run_dir / "vllm.log")
    with progress:
        work = refine(search.requests, plan, bench, vary, study)
        if isinstance(machine, ThisMachine):
            return interruption.run(work)
        from tuner.engines.sim import virtual_time  # noqa: PLC0415 - numba

        return virtual_time.run(work, begin_s=book.clock_s)


def _conclude(search: _Search, book: Journal, refinement: Refinement) -> None:
    """Write the refined profile, or the knee's with the trials, and print."""
    options, plan, run_dir = search.options, search.plan, str(book.run_dir)
    result = _profile(search, refinement)
    keep(result, book.run_dir)
    check_output(options.output, force=None)
    save(result, options.output)
    next_ = after(result, options.output)
    if refinement.outcome is not None and options.world is None and not is_short(result):
        next_ = command("verify", options.output, "--trace", options.trace)
    printed = refine_json(refinement, plan, run_dir=run_dir, profile=str(options.output))
    page = refine_page(refinement, plan, result, run_dir=run_dir, next_=next_)
    finish(options, printed, page, book.run_dir)
    check_required(result, options.output, cure="")


def _profile(search: _Search, refinement: Refinement) -> ServingProfile:
    plan, outcome = search.plan, refinement.outcome
    profile, settings, origin = plan.profile, plan.settings, plan.profile.provenance
    if outcome is None:
        evidence = evidence_of(profile, search.options.profile) if profile.evidence else b""
        decision = msgspec.structs.replace(
            profile.decision,
            reason=refinement.reason,
            requirements=_of_knee(search, refinement),
        )
        return resealed(profile, evidence=evidence, decision=decision)
    arguments, knobs = outcome.facts.arguments, {knob.name for knob in plan.space.knobs}
    changed = {name for name in knobs if arguments.get(name) != profile.engine.get(name)}
    own = origin_of(
        outcome,
        refinement.warnings,
        seed=0,
        wall_s=time.monotonic() - search.began_s,
        ranks=origin.ranks,
        given=sorted({*origin.given, *changed}),
    )
    return profile_of(
        outcome,
        headroom=settings.headroom,
        trace_digest=search.trace.digest,
        origin={**own, "replicas": origin.replicas, "router": origin.router},
    )


def _of_knee(search: _Search, refinement: Refinement) -> list[RequirementSection]:
    """Return what the knee, which is kept, measured of what is required of it here; what the
    profile says of it where nothing else is required."""
    plan = search.plan
    if not search.options.require:
        return plan.profile.decision.requirements
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
