"""``tuner compare``: from its options to the printed result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.commands.options import CompareOptions
from tuner.commands.shared.engine import world_of
from tuner.commands.shared.machine import Here, ThisMachine, differs
from tuner.commands.shared.next_step import after, command
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.results import keep_result
from tuner.commands.shared.run_folder import kept, open_run
from tuner.commands.shared.traffic import served_in
from tuner.commands.shared.trust import check_arguments
from tuner.engines.devices import DeviceMeter
from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.provenance import environment_differs
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError, TraceError, UsageError
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.runs.compare.compare import Comparison, Question, compare
from tuner.runs.compare.ways import STORY, UNIFORM, UNTUNED, Approach, chosen, parse_levels
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.traffic.window import parse_duration_s
from tuner.views.compare import compare_json, compare_page, tuned_row
from tuner.views.live import Progress
from tuner.views.text import print_json, print_page


@dataclass(slots=True)
class Asked:
    """A comparison, checked; nothing has been started for it."""

    options: CompareOptions
    trace: Trace
    requests: Sequence[TraceRequest]
    profile: ServingProfile | None
    levels: Sequence[str]
    approaches: Sequence[Approach]
    base: Starter
    of_profile: Starter | None
    here: Here


def run(options: CompareOptions) -> None:
    """Measure all approaches, print the tables and write them. Raises TunerError."""
    asked = asked_of(options)
    plan = {
        "compare": True,
        "trace_digest": asked.trace.digest,
        "profile_digest": None if asked.profile is None else asked.profile.digest,
        "engine_arguments": dict(asked.base.resolve(max_num_seqs=UNTUNED)),
        "world": asked.here.device.get("digest"),
        **in_plan(options, "max_num_seqs", "budget"),
        "loads": ",".join(asked.levels),
        "approaches": ",".join(one.name for one in asked.approaches),
    }
    book = open_run("compare", options, plan)
    progress = Progress(parse_duration_s(options.budget, option="--budget"))
    for warning in asked.trace.warnings:
        progress.warn(warning)
    with kept(book):
        with progress:
            comparison = _compared(asked, book, progress)
        _report(asked, comparison)


def asked_of(options: CompareOptions) -> Asked:
    """Read and check all that a comparison needs. Raises TunerError."""
    trace = load(options.trace)
    requests = served_in(trace, options.trace)
    if requests[0].arrival_s == requests[-1].arrival_s:
        raise TraceError(
            f"{options.trace}: all {len(requests)} requests at one time: no traffic that could be "
            "thinned out or filled up to a load",
            hint="Capture some seconds of traffic.",
        )
    profile = None if options.profile is None else load_profile(options.profile)
    base, of_profile, here = _starters(options, trace, profile)
    is_simulated = options.world is not None
    approaches = chosen(options.approaches, has_profile=profile is not None, simulated=is_simulated)
    has_twin = profile is not None and profile.twin is not None
    loads = options.loads or (f"recorded,{STORY},{UNIFORM}" if has_twin else "recorded")
    return Asked(
        options, trace, requests, profile, parse_levels(loads), approaches, base, of_profile, here
    )


def _starters(
    options: CompareOptions, trace: Trace, profile: ServingProfile | None
) -> tuple[Starter, Starter | None, Here]:
    """Return what starts engines with the base's arguments, and with the profile's, and where."""
    model = profile.model if profile and options.base is None else None
    engine: dict[str, Any] = {} if profile is None else {**profile.engine}
    if (path := world_of(options)) is not None:
        from tuner.engines.sim.start import VARIABLE, SimStarter  # noqa: PLC0415 - numba
        from tuner.engines.sim.world import read_world  # noqa: PLC0415

        machine = SimStarter(read_world(path), model=model or trace.header.model)
        own = {name: engine[name] for name in VARIABLE if name in engine}
        return machine, machine.varied(own) if profile else None, machine
    arguments = engine_arguments(
        model=model,
        base=options.base,
        header_model=trace.header.model,
        overrides=options.overrides,
    )
    if profile is None:
        return VllmStarter(arguments), None, ThisMachine()
    if arguments["model"] != profile.model:
        raise UsageError(
            f"{options.base} is for {arguments['model']}, {options.profile} for {profile.model}",
            hint="Give --base and --profile of one model.",
        )
    assert options.profile is not None
    check_arguments(profile, arguments, source=options.profile)
    base, of_profile = (VllmStarter(one, sampling=profile.sampling) for one in (arguments, engine))
    return base, of_profile, ThisMachine()


def _compared(asked: Asked, book: Journal, progress: Progress) -> Comparison:
    """Measure all that the run does not hold yet."""
    options = asked.options
    for starter in (asked.base, asked.of_profile):
        if isinstance(starter, VllmStarter):
            starter.log = book.run_dir / "vllm.log"
    question = Question(
        requests=asked.requests,
        block_size=asked.trace.header.block_size,
        approaches=asked.approaches,
        levels=asked.levels,
        budget_s=parse_duration_s(options.budget, option="--budget"),
        max_num_seqs=options.max_num_seqs,
        profile=asked.profile,
        source=str(options.profile),
        base=asked.base,
        of_profile=asked.of_profile,
    )
    read = progress.reading(DeviceMeter().read if options.world is None else None)
    return compare(question, book, progress, read)


def _report(asked: Asked, comparison: Comparison) -> None:
    options, evidence = asked.options, comparison.evidence
    tables = comparison.tables()
    errors = [text for table in tables for row in table.rows for text in row.errors]
    if not evidence.starts():
        raise EngineError(
            f"no approach could be measured: {errors[0]}", hint="Look into vllm.log of the run."
        )
    facts = evidence.facts()
    doubts = [*_doubts(asked, evidence), *comparison.warnings()]
    result = compare_json(tables, comparison, facts, [*asked.trace.warnings, *doubts])
    row = tuned_row(tables[0])
    page = compare_page(
        tables,
        comparison.tuned,
        facts,
        spent_s=sum(evidence.starts_s()) + evidence.replay_s(),
        warnings=[*doubts, *asked.trace.warnings],
        run_dir=str(comparison.journal.run_dir),
        next_=_next(options, is_measured=row is None or row.numbers is not None),
    )
    keep_result(comparison.journal.run_dir, result, page)
    if options.json:
        print_json(result)
    else:
        print_page(page)
    if not any(row.numbers for table in tables for row in table.rows):
        raise EngineError(
            f"no approach could be measured: {errors[0]}", hint="See what each of them says above."
        )


def _doubts(asked: Asked, evidence: Evidence) -> list[str]:
    """Return what to beware of in what was asked, and where it ran."""
    profile, found = asked.profile, list[str]()
    if profile is None:
        return found
    if (other := differs(profile, asked.here)) is not None:
        name, was, is_ = other
        found.append(
            f"{asked.options.profile} was measured with {name} {was}, here it is {is_}: only its "
            "settings count here"
        )
    if asked.options.world is not None and profile.provenance.engine != "sim":
        found.append(
            "a simulated engine takes of a profile's arguments only max_num_seqs, "
            "max_num_batched_tokens, num_gpu_blocks_override and block_size"
        )
    environments = (start.facts.environment for start in evidence.starts())
    now = next((each for each in environments if each is not None), None)
    change = environment_differs(profile.provenance.environment, now)
    return found if change is None else [*found, f"the profile was {change}"]


def _next(options: CompareOptions, *, is_measured: bool) -> str:
    """Return what to do with what was compared: roll the profile out where it was measured, look at
    it where not, or make one."""
    if options.profile is None:
        return command("sweep", "--trace", options.trace)
    if not is_measured:
        return command("show", options.profile)
    return after(load_profile(options.profile), options.profile, base=options.base)
