"""``tuner refine``: from its options to the printed result."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.commands.refine.options import RefineOptions
from tuner.commands.refine.plan import (
    Engines,
    engines_of,
    machine_of,
    plan_of,
    rests_on,
    study_of,
)
from tuner.commands.refine.ray import check_ray, site_of
from tuner.commands.refine.space import space_of
from tuner.commands.refine.view import (
    RefinePrint,
    block_of_refinement,
    json_of,
    render,
    said_of_space,
)
from tuner.commands.shared import dry_run
from tuner.commands.shared.dry_run import DryRun, asked_of, windows_of
from tuner.commands.shared.kept_result import keep_result
from tuner.commands.shared.machine import check_machine
from tuner.commands.shared.next_step import asked_for, check_required
from tuner.commands.shared.options import check_given
from tuner.commands.shared.output import print_json
from tuner.commands.shared.run_folder import Where, kept, open_run
from tuner.commands.shared.traffic import one_engines, served_in
from tuner.commands.sweep.one_trace import origin_of
from tuner.commands.sweep.view import RunProgress
from tuner.engines.devices import DeviceMeter
from tuner.errors import UsageError
from tuner.profile.profile import check_output, keep, save, seal
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import RequirementSection, ServingProfile
from tuner.profile.summary import minutes
from tuner.runs.engine_runner import EngineRunner
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.runs.ladder import doubling
from tuner.runs.refine.knobs import CAP, LIVE, number
from tuner.runs.refine.refinement import Refinement, RefinePlan
from tuner.runs.refine.run import refine
from tuner.runs.refine.trial_runner import LocalTrialRunner
from tuner.runs.result import profile_of, required_sections, second_thoughts
from tuner.system import interruption
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.traffic.requirements import RequirementCheck

if TYPE_CHECKING:
    from tuner.commands.shared.engine import Execute
    from tuner.runs.cluster.site import ClusterSite
    from tuner.runs.refine.trial_runner import TrialRunner


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
    check_given("--ray", options.ray)
    check_given("--storage", options.storage)
    profile = load_profile(options.profile)
    check_output(options.output, force=None)
    check_ray(options)
    trace = load(options.trace)
    requests = one_engines(served_in(trace, options.trace), options, ranks=profile.provenance.ranks)
    engines = engines_of(options, profile)
    if not options.force and not options.ray:  # of a cluster each node is checked: refine_ray
        check_machine(profile, engines.here)
    space = space_of(
        options, profile, engines.vary, requests=requests, block_size=trace.header.block_size
    )
    plan = plan_of(options, profile, trace, space)
    if options.dry_run:
        if options.ray:
            raise UsageError(
                "--dry-run is of a refinement on this machine", hint="Leave out --ray."
            )
        dry_run.show(_dry_run(options, plan, engines, requests), as_json=options.json)
        return
    with ExitStack() as joined:
        site = joined.enter_context(site_of(options, plan, engines)) if options.ray else None
        where = Where(
            options.trace, options.run_dir, resume=options.resume, command="refine", asked=options
        )
        machine = machine_of(site.kind if site else engines.here)
        rests = rests_on(options, plan, trace, machine)
        if options.storage is not None:  # said before there is a run directory
            study_of(options, plan, rests, run_dir=Path(), warn=str).close()
        book = open_run(where, rests)
        engines.log.append(book.run_dir / "vllm.log")
        begun = _Begun(options, trace, requests, plan, engines, book, began_s)
        with kept(book, where):
            found = _refined(begun, site)
            joined.close()
            if found.outcome is not None:
                doubts = second_thoughts(found.outcome, plan.settings)
                found = replace(found, warnings=(*found.warnings, *doubts))
            _conclude(begun, found)


def _dry_run(
    options: RefineOptions, plan: RefinePlan, engines: Engines, requests: Sequence[TraceRequest]
) -> DryRun:
    """Return what a refinement would do."""
    settings = plan.settings
    windows = windows_of(requests, settings.window, step_s=settings.step_s)
    caps = [value for knob in plan.space.knobs if knob.name == CAP for value in knob.values]
    most = max([number(plan.space.knee[CAP]), *(int(one) for one in caps if isinstance(one, int))])
    live = all(knob.name in LIVE for knob in plan.space.knobs)
    return DryRun(
        command=asked_for("refine", options, dry_run=False),
        rows=[
            ("searches", "; ".join(said_of_space(plan.space))),
            ("windows", f"a trial replays {windows}; fewer seconds where the budget asks for it"),
            (
                "time",
                f"at most {minutes(settings.budget_s)} of engine; "
                + ("all trials on one engine" if live else "an engine for each place of the search")
                + ", then knee and choice in turns",
            ),
        ],
        arguments=asked_of(engines.vary({}), max_num_seqs=most),
        requests=requests,
        most_seqs=most,
        is_simulated=options.engine == "sim",
        warnings=plan.warnings,
    )


def _refined(begun: _Begun, site: "ClusterSite | None") -> Refinement:
    options, plan, book = begun.options, begun.plan, begun.book
    progress = RunProgress(plan.settings.budget_s, doubling(plan.settings.ceiling))
    rests = book.events[0]["plan"]
    study = study_of(options, plan, rests, run_dir=book.run_dir, warn=progress.warn)
    for line in said_of_space(plan.space):
        progress.stage(line)
    for warning in plan.warnings:
        progress.warn(warning)

    evidence = Evidence(book)
    execute: Execute = begun.engines.execute(book.clock_s)
    runner: TrialRunner = _local_runner(begun, evidence, progress)
    if site is not None:
        execute, runner = interruption.run, site.runner(evidence, progress)
    evidence.check(partial(runner.check, plan.space))
    try:
        with progress:
            return execute(refine(begun.requests, plan, runner, study))
    finally:
        study.close()


def _local_runner(begun: _Begun, evidence: Evidence, progress: RunProgress) -> LocalTrialRunner:
    read = None if begun.engines.is_simulated else DeviceMeter().read
    read = progress.reading(read)
    runner = EngineRunner(begun.engines.vary({}), begun.plan.settings, evidence, progress, read)
    return LocalTrialRunner(runner, begun.engines.vary)


def _conclude(begun: _Begun, found: Refinement) -> None:
    """Write the refined profile, or the knee's with the trials, and print."""
    options, plan = begun.options, begun.plan
    wall_s = time.monotonic() - begun.began_s
    result = _profile(begun, found, wall_s)
    keep(result, begun.book.run_dir)
    check_output(options.output, force=None)
    save(result, options.output)
    printed = json_of(found, plan, run_dir=begun.book.run_dir, profile_path=options.output)
    how = RefinePrint(result, options.output, options.trace, begun.book.run_dir, options.details)
    keep_result(how.run_dir, printed, block_of_refinement(found, how))
    if options.json:
        print_json(printed)
    else:
        render(found, plan, how)
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
    seed, ranks = begun.options.seed, profile.provenance.ranks
    return profile_of(
        found.outcome,
        headroom=begun.options.headroom,
        trace_digest=begun.trace.digest,
        origin=origin_of(found.outcome, found.warnings, seed=seed, wall_s=wall_s, ranks=ranks),
    )
