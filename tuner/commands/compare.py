"""``tuner compare``: every way of serving, measured on the same traffic."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.commands.options import CompareOptions
from tuner.commands.shared.machine import Machine, check_arguments, differs, machine_of
from tuner.commands.shared.next_step import after, command
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.run_folder import finish, kept, open_run
from tuner.commands.shared.traffic import served_in
from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.provenance import environment_differs
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError, TraceError, UsageError
from tuner.profile.profile import ServingProfile
from tuner.profile.profile import load as load_profile
from tuner.runs.compare.compare import Comparison, Question, Tuned, compare
from tuner.runs.compare.ways import LEVELS, UNTUNED, chosen, names_in
from tuner.runs.journal import Journal
from tuner.trace.trace import Trace, load
from tuner.traffic.window import parse_duration_s
from tuner.views.compare import compare_page, tuned_row
from tuner.views.live import Progress


def run(options: CompareOptions) -> None:
    """Measure all approaches, print the tables and write them. Raises TunerError."""
    trace = load(options.trace)
    requests = served_in(trace, options.trace)
    if requests[0].arrival_s == requests[-1].arrival_s:
        raise TraceError(
            f"{options.trace}: all {len(requests)} requests at one time: no traffic that could be "
            "thinned out or filled up to a load",
            hint="Capture some seconds of traffic.",
        )
    profile = None if options.profile is None else load_profile(options.profile)
    source, model, sampling = Path(str(options.profile)), trace.header.model, None
    if profile is not None:
        model, sampling = profile.model, profile.sampling
    machine = machine_of(options, model, sampling)
    base, of_tuned = _starters(options, machine, trace, profile)
    has_twin = profile is not None and profile.evidence is not None
    loads = options.loads or (",".join(LEVELS) if has_twin else "recorded")
    approaches = chosen(options.approaches, simulated=options.world is not None)
    levels = names_in(loads, [*LEVELS], option="--loads")
    if options.max_num_seqs is not None:
        tuned = Tuned(options.max_num_seqs, "--max-num-seqs")
    elif profile is not None:
        tuned = Tuned(profile.decision.max_num_seqs, str(source))
    else:
        raise UsageError(
            "nothing says which max_num_seqs is the tuned one",
            hint="Give --profile (tuner sweep makes one), or --max-num-seqs N.",
        )
    question = Question(
        requests=requests,
        block_size=trace.header.block_size,
        approaches=approaches,
        levels=levels,
        budget_s=parse_duration_s(options.budget, option="--budget"),
        tuned=tuned,
        profile=profile,
        base=base,
        of_tuned=of_tuned,
    )
    plan = {
        "trace_digest": trace.digest,
        "profile_digest": None if profile is None else profile.digest,
        "engine_arguments": dict(base.resolve(max_num_seqs=UNTUNED)),
        "world": machine.device.get("digest"),
        **in_plan(options, "max_num_seqs", "budget"),
        "loads": ",".join(question.levels),
        "approaches": ",".join(each.name for each in question.approaches),
    }
    book = open_run("compare", options, plan)
    progress = Progress(question.budget_s)
    for warning in trace.warnings:
        progress.warn(warning)
    with kept(book):
        for starter in (base, of_tuned):
            if isinstance(starter, VllmStarter):
                starter.log = book.run_dir / "vllm.log"
        with progress:
            comparison = compare(question, source, book, progress, machine.read)
        doubts = _doubts(options, profile, machine, comparison.journal)
        warnings = [*doubts, *comparison.warnings(), *trace.warnings]
        _conclude(options, profile, comparison, warnings)


def _starters(
    options: CompareOptions, machine: Machine, trace: Trace, profile: ServingProfile | None
) -> tuple[Starter, Starter]:
    """Return what starts engines with the base's arguments, and the tuned ones: with the profile's,
    unless --max-num-seqs says what is tuned."""
    of_profile = None
    if profile is not None and options.max_num_seqs is None:
        of_profile = machine.starter(profile.engine)
    if options.world is not None:
        simulated = machine.starter({})
        return simulated, of_profile or simulated
    arguments = engine_arguments(
        model=None if profile is None or options.base is not None else profile.model,
        base=options.base,
        header_model=trace.header.model,
        overrides=options.overrides,
    )
    if profile is not None and options.profile is not None:
        if arguments["model"] != profile.model:
            raise UsageError(
                f"{options.profile} is for {profile.model}, --base or --set for "
                f"{arguments['model']}",
                hint="Give --base and --profile of one model.",
            )
        check_arguments(profile, options.profile, confirmed=arguments)
    base = VllmStarter(arguments, sampling=machine.sampling)
    return base, of_profile or base


def _conclude(
    options: CompareOptions,
    profile: ServingProfile | None,
    comparison: Comparison,
    warnings: Sequence[str],
) -> None:
    """Print the tables. Raises EngineError where nothing could be measured."""
    journal, tables = comparison.journal, comparison.tables()
    run_dir, rows = comparison.journal.run_dir, [row for table in tables for row in table.rows]
    failures = [text for row in rows for text in row.errors]
    if journal.starts():
        facts, best = journal.facts(), tuned_row(tables[0])
        result = {
            "tuned": comparison.question.tuned,
            "tables": tables,
            "windows": list(map(str, comparison.workload.windows)),
            "device": facts.device,
            "versions": facts.versions,
            "run_dir": str(run_dir),
            "warnings": warnings,
        }
        page = compare_page(
            tables,
            comparison.question.tuned,
            facts,
            spent_s=journal.spent_s(),
            warnings=warnings,
            run_dir=str(run_dir),
            next_=_next(options, profile, is_measured=best is None or best.numbers is not None),
        )
        finish(options, result, page, run_dir)
    if not any(row.numbers for row in rows):
        raise EngineError(
            f"no approach could be measured: {failures[0]}", hint="Look into vllm.log of the run."
        )


def _doubts(
    options: CompareOptions, profile: ServingProfile | None, here: Machine, journal: Journal
) -> Iterator[str]:
    """Yield what limits the comparison with a profile of elsewhere."""
    if profile is None:
        return
    if (change := differs(profile, here)) is not None:
        name, was, is_ = change
        yield (
            f"{options.profile} was measured with {name} {was}, here it is {is_}: only its "
            "settings count here"
        )
    environments = (start.facts.environment for start in journal.starts())
    now = next((each for each in environments if each is not None), None)
    if (words := environment_differs(profile.provenance.environment, now)) is not None:
        yield f"the profile was {words}"


def _next(options: CompareOptions, profile: ServingProfile | None, *, is_measured: bool) -> str:
    """Return what to do with what was compared: roll the profile out where it was measured, look at
    it where not, or make one."""
    if options.profile is None or profile is None:
        return command("sweep", "--trace", options.trace)
    if not is_measured:
        return command("show", options.profile)
    return after(profile, options.profile, base=options.base)
