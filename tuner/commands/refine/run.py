"""``tuner refine``: from its options to the printed result."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.commands.options import RefineOptions
from tuner.commands.refine.plan import Engines, engines_of, plan_of, rests_on
from tuner.commands.refine.space import space_of
from tuner.commands.shared.machine import check_machine
from tuner.commands.shared.next_step import after, check_required, command, is_short
from tuner.commands.shared.options import check_given
from tuner.commands.shared.results import keep_result
from tuner.commands.shared.run_folder import kept, open_run
from tuner.commands.shared.traffic import one_engines, served_in
from tuner.commands.sweep.one_trace import origin_of
from tuner.engines.arguments import ArgumentValue
from tuner.engines.devices import DeviceMeter
from tuner.profile.profile import check_output, keep, save, seal
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import RequirementSection, ServingProfile
from tuner.runs.bench import Bench
from tuner.runs.journal import Journal
from tuner.runs.ladder import doubling
from tuner.runs.refine.refine import Refinement, RefinePlan, refine
from tuner.runs.refine.search import Study
from tuner.runs.result import profile_of, required_sections, second_thoughts
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.traffic.requirements import RequirementCheck
from tuner.views.live import Progress
from tuner.views.refine import refine_json, refine_page, space_lines
from tuner.views.text import print_json, print_page


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run that is about to begin."""

    options: RefineOptions
    trace: Trace
    requests: list[TraceRequest]
    plan: RefinePlan
    engines: Engines
    book: Journal
    began_s: float


def run(options: RefineOptions) -> None:
    """Refine, write the profile and print what was gained. Raises TunerError."""
    began_s = time.monotonic()
    check_given("--storage", options.storage)
    profile = load_profile(options.profile)
    check_output(options.output, force=None)
    trace = load(options.trace)
    origin = profile.provenance
    served = served_in(trace, options.trace)
    replicas = origin.replicas * origin.ranks
    requests = one_engines(served, replicas=replicas, router=origin.router)
    engines = engines_of(options, profile)
    if not options.force:
        check_machine(profile, engines.here)
    space = space_of(
        options, profile, engines.vary, requests=requests, block_size=trace.header.block_size
    )
    plan = plan_of(options, profile, trace, space)
    if options.storage is not None:
        Study(options.storage, space)  # refused before there is a run directory
    rest = rests_on(options, plan, trace, engines.here)
    book = open_run("refine", options, rest)
    engines.log.append(book.run_dir / "vllm.log")
    begun = _Begun(options, trace, requests, plan, engines, book, began_s)
    with kept(book):
        found = _refined(begun)
        if found.outcome is not None:
            doubts = second_thoughts(found.outcome, plan.settings)
            found = replace(found, warnings=(*found.warnings, *doubts))
        _conclude(begun, found)


def _refined(begun: _Begun) -> Refinement:
    plan, book, engines = begun.plan, begun.book, begun.engines
    progress = Progress(plan.settings.budget_s, doubling(plan.settings.ceiling))
    for line in space_lines(plan.space):
        progress.stage(line)
    for warning in plan.warnings:
        progress.warn(warning)
    study = Study(begun.options.storage, plan.space)
    read = progress.reading(None if engines.is_simulated else DeviceMeter().read)
    settings = plan.settings
    bench = Bench(book, progress, read, block_size=settings.trace_block_size, seed=settings.seed)
    with progress:
        return engines.execute(book.clock_s)(
            refine(begun.requests, plan, bench, engines.vary, study)
        )


def _conclude(begun: _Begun, found: Refinement) -> None:
    """Write the refined profile, or the knee's with the trials, and print."""
    options, plan = begun.options, begun.plan
    wall_s = time.monotonic() - begun.began_s
    result = _profile(begun, found, wall_s)
    keep(result, begun.book.run_dir)
    check_output(options.output, force=None)
    save(result, options.output)
    run_dir = str(begun.book.run_dir)
    next_ = after(result, options.output)
    if found.outcome is not None and result.provenance.engine != "sim" and not is_short(result):
        next_ = command("verify", options.output, "--trace", options.trace)
    printed = refine_json(found, plan, run_dir=run_dir, profile=str(options.output))
    page = refine_page(found, plan, result, run_dir=run_dir, next_=next_)
    keep_result(begun.book.run_dir, printed, page)
    if options.json:
        print_json(printed)
    else:
        print_page(page)
    check_required(result, options.output, cure="")


def _of_knee(begun: _Begun, found: Refinement) -> list[RequirementSection]:
    """Return what the knee, which is kept, measured of what is required of it here; what the
    profile says of it where nothing else is required."""
    if not begun.options.require:
        return begun.plan.profile.decision.requirements
    knee = dict(begun.plan.space.knee)
    seen = next((row.measured for row in found.trials if row.configuration == knee), None)
    return required_sections(
        [
            RequirementCheck(
                one, None, None if seen is None or one.at_headroom else one.value_in(seen)
            )
            for one in begun.plan.settings.requirements
        ]
    )


def _given(begun: _Begun, arguments: Mapping[str, ArgumentValue]) -> list[str]:
    """Return the arguments that were chosen: those of the profile, and what was changed here."""
    profile = begun.plan.profile
    knobs = {knob.name for knob in begun.plan.space.knobs}
    changed = {name for name in knobs if arguments.get(name) != profile.engine.get(name)}
    return sorted({*profile.provenance.given, *changed})


def _profile(begun: _Begun, found: Refinement, wall_s: float) -> ServingProfile:
    profile = begun.plan.profile
    if found.outcome is None:
        sections = {
            name: getattr(profile, name)
            for name in type(profile).model_fields
            if name not in {"schema_version", "digest"}
        }
        decision = profile.decision.model_copy(
            update={"reason": found.reason, "requirements": _of_knee(begun, found)}
        )
        return seal(**{**sections, "decision": decision})
    return profile_of(
        found.outcome,
        headroom=begun.plan.settings.headroom,
        trace_digest=begun.trace.digest,
        origin=origin_of(
            found.outcome,
            found.warnings,
            seed=0,
            wall_s=wall_s,
            ranks=profile.provenance.ranks,
            given=_given(begun, found.outcome.facts.arguments),
        )
        | {"replicas": profile.provenance.replicas, "router": profile.provenance.router},
    )
