"""``tuner refine``: search other engine arguments around a profile's choice."""

import time
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from tuner.commands.options import RefineOptions
from tuner.commands.shared.machine import Machine, machine_for
from tuner.commands.shared.next_step import after, check_required, command, is_short
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.run_folder import finish, kept, open_run
from tuner.commands.shared.traffic import one_engines, required_of, served_in, warnings_about
from tuner.commands.sweep import origin_of
from tuner.engines import provenance
from tuner.engines.arguments import ArgumentValue, Setting
from tuner.engines.vllm import start as vllm
from tuner.errors import TraceError, TunerError, UsageError
from tuner.profile.evidence import twin_of
from tuner.profile.profile import ServingProfile, check_output, evidence_of, keep, save, seal
from tuner.profile.profile import load as load_profile
from tuner.runs.bench import Bench, execute
from tuner.runs.refine.refine import Refining
from tuner.runs.refine.search import Study
from tuner.runs.refine.space import CAP, LIVE, TOKENS, Space, build_space, number, parse_search
from tuner.runs.sweep.conclusion import SweepSettings
from tuner.trace.columns import columns_of
from tuner.trace.trace import TraceRequest, load
from tuner.traffic.description import describe
from tuner.traffic.requirements import RequirementCheck
from tuner.traffic.window import parse_duration_s
from tuner.views.live import Progress
from tuner.views.refine import refine_page

FEWEST_REQUESTS = 10
"""Of fewer no percentile and no gain can be known."""

STEP_S = 60.0
"""The longest window of a trial."""

OTHER_TRACE = (
    "this is not the trace that the profile was tuned for: sweep it first where its traffic differs"
)


def run(options: RefineOptions) -> None:
    """Refine, write the profile and print what was gained. Raises TunerError."""
    began_s, profile = time.monotonic(), load_profile(options.profile)
    check_output(options.output)
    trace, origin = load(options.trace), profile.provenance
    served = served_in(trace, options.trace)
    requests = one_engines(served, replicas=origin.replicas * origin.ranks, router=origin.router)
    if len(requests) < FEWEST_REQUESTS:
        raise TraceError(
            f"{options.trace}: requests served: {len(requests)}, too few to know any limit",
            hint=f"Capture more traffic: at least {FEWEST_REQUESTS} requests, better hundreds.",
        )
    machine = machine_for(options, profile)
    block_size = trace.header.block_size
    space = space_of(options, profile, machine, requests=requests, block_size=block_size)
    settings = _settings(options, profile, block_size)
    study = Study(options.storage, space)  # refused before there is a run directory
    version = provenance.vllm_in(machine.versions)
    rests_on = {
        "profile_digest": profile.digest,
        "trace_digest": trace.digest,
        "machine": [machine.device.get("name"), machine.device.get("digest"), str(version)],
        "space": {knob.name: list(knob.values) for knob in space.knobs},
        **in_plan(options, "budget", "require"),
    }
    warnings = warnings_about(trace)
    if profile.validity.trace_digest != trace.digest:
        warnings.append(OTHER_TRACE)
    book = open_run("refine", options, rests_on)
    with kept(book):
        progress = Progress(settings.budget_s)
        progress.warn(*warnings)
        bench = Bench(book, progress, machine.read, block_size=block_size)
        refining = Refining(
            profile,
            twin_of(profile, options.profile, cure="Sweep again.") if profile.evidence else None,
            space,
            settings,
            bench=bench,
            vary=partial(machine.starter, profile.engine, log=book.run_dir / "vllm.log"),
            study=study,
        )
        for knob in refining.space.knobs:
            values = ", ".join("default" if each is None else str(each) for each in knob.values)
            how = "live" if knob.name in LIVE else "an engine each"
            progress.stage(f"searching {knob.name} ({how}): {values}; {knob.why}")
        with progress:
            execute(refining.refine(requests), refining.vary({}), book)
        warnings += refining.warnings
        wall_s = time.monotonic() - began_s
        refined = _profile(options, refining, warnings, wall_s=wall_s)
        _conclude(options, refining, refined, warnings)


def _settings(options: RefineOptions, profile: ServingProfile, block_size: int) -> SweepSettings:
    headroom = profile.promise.headroom
    return SweepSettings(
        ceiling=max([profile.decision.max_num_seqs, *(s.max_num_seqs for s in profile.curve)]),
        slo=profile.decision.slo.slo,
        window="all",
        step_s=STEP_S,
        budget_s=parse_duration_s(options.budget, option="--budget"),
        headroom=headroom,
        closed_sessions=False,
        trace_block_size=block_size,
        requirements=required_of(profile, options.require, headroom=headroom),
    )


def space_of(
    options: RefineOptions,
    profile: ServingProfile,
    machine: Machine,
    *,
    requests: Sequence[TraceRequest],
    block_size: int,
) -> Space:
    """Return what is searched, each value as the engine reads it. Raises UsageError for what
    contradicts or is refused."""
    engine = profile.engine

    def refusal(name: str, value: ArgumentValue) -> str | None:
        cap, tokens = number(engine[CAP]), number(engine[TOKENS])
        if name == CAP:
            cap, tokens = number(value), max(tokens, number(value))
        elif name == TOKENS:
            cap, tokens = min(cap, number(value)), number(value)
        changes = {TOKENS: tokens} if name in LIVE else {name: value}
        try:
            resolved = machine.starter(engine, changes).resolve(max_num_seqs=cap)
        except TunerError as error:
            return str(error)
        if name in resolved and resolved[name] == value:
            return None
        is_set = f"it is {resolved[name]} here" if name in resolved else "it is ignored here"
        return None if value is None else f"{is_set}, whatever is asked"

    named = parse_search(options.search)
    if options.world is None:
        for name, values in named.items():
            settings = [Setting(name, value, "--search", UsageError) for value in values]
            named[name] = tuple(vllm.parse([s], model=profile.model)[name] for s in settings)
    prefix_share = describe(columns_of(requests, block_size=block_size)).prefix_share
    return build_space(
        profile, named, refusal, requests=len(requests), shares_prefixes=bool(prefix_share)
    )


def _profile(
    options: RefineOptions, refining: Refining, warnings: Sequence[str], *, wall_s: float
) -> ServingProfile:
    """Return the refined profile, or the knee's with the reason why it is kept."""
    outcome, profile, knee = refining.outcome, refining.profile, dict(refining.knee)
    origin = profile.provenance
    if outcome is not None:
        arguments = outcome.facts.arguments
        changed = {name for name in knee if arguments.get(name) != profile.engine.get(name)}
        given = sorted({*origin.given, *changed})
        own = origin_of(outcome, warnings, wall_s=wall_s, ranks=origin.ranks, given=given)
        return outcome.profile({**own, "replicas": origin.replicas, "router": origin.router})
    decision = replace(profile.decision, reason=refining.reason)
    if options.require:
        seen = next((row.measured for row in refining.rows() if row.configuration == knee), None)
        checks = [
            RequirementCheck.of(
                each, None, None if seen is None or each.at_headroom else each.value_in(seen)
            )
            for each in refining.settings.requirements
        ]
        decision = replace(decision, requirements=checks)
    evidence = evidence_of(profile, options.profile) if profile.evidence else b""
    return seal(replace(profile, decision=decision), evidence)


def _conclude(
    options: RefineOptions, refining: Refining, refined: ServingProfile, warnings: Sequence[str]
) -> None:
    """Write the profile, and print."""
    run_dir, is_refined = refining.journal.run_dir, refining.outcome is not None
    keep(refined, run_dir)
    check_output(options.output)
    save(refined, options.output)
    next_ = after(refined, options.output)
    if is_refined and options.world is None and not is_short(refined):
        next_ = command("verify", options.output, "--trace", options.trace)
    result = {
        "refined": is_refined,
        "knee": refining.knee,
        "chosen": refining.chosen,
        "proof": refining.proof,
        "reason": refining.reason,
        "trials": refining.rows(),
        "space": refining.space.knobs,
        "complete": refining.journal.is_complete(),
        "warnings": warnings,
        "run_dir": str(run_dir),
        "profile": str(options.output),
    }
    page = refine_page(refining, refined, warnings=warnings, next_=next_)
    finish(options, result, page, run_dir)
    check_required(refined, options.output, cure="")
