"""``tuner compare``: every way of serving, measured on the same traffic."""

from collections.abc import Sequence

from tuner.commands.options import CompareOptions
from tuner.commands.shared.machine import Machine, check_arguments, differs, machine_of
from tuner.commands.shared.next_step import after, command
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.run_folder import finish, kept, open_run
from tuner.commands.shared.traffic import served_in
from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError, TraceError, UsageError
from tuner.profile.profile import ServingProfile
from tuner.profile.profile import load as load_profile
from tuner.runs.bench import Bench
from tuner.runs.compare.compare import Comparison
from tuner.runs.compare.ways import LEVELS, UNTUNED, chosen, names_in
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
    profile = load_profile(options.profile)
    machine = machine_of(options, profile.model, profile.sampling)
    base, of_tuned = _base(options, machine, trace, profile), machine.starter(profile.engine)
    loads = options.loads or (",".join(LEVELS) if profile.evidence else "recorded")
    approaches = chosen(options.approaches, simulated=options.world is not None)
    levels = names_in(loads, [*LEVELS], option="--loads")
    budget_s = parse_duration_s(options.budget, option="--budget")
    plan = {
        "trace_digest": trace.digest,
        "profile_digest": profile.digest,
        "engine_arguments": dict(base.resolve(max_num_seqs=UNTUNED)),
        "world": machine.device.get("digest"),
        **in_plan(options, "budget"),
        "loads": ",".join(levels),
        "approaches": ",".join(each.name for each in approaches),
    }
    book = open_run("compare", options, plan)
    progress = Progress(budget_s)
    progress.warn(*trace.warnings)
    with kept(book):
        for starter in (base, of_tuned):
            if isinstance(starter, VllmStarter):
                starter.log = book.run_dir / "vllm.log"
        bench = Bench(book, progress, machine.read, block_size=trace.header.block_size)
        comparison = Comparison(
            requests, approaches, levels, budget_s, profile, base, of_tuned, bench
        )
        with progress:
            comparison.run(options.profile)
        warnings = [*comparison.warnings(), *trace.warnings]
        if (change := differs(profile, machine)) is not None:
            where = "{} was measured with {} {}, here it is {}".format(options.profile, *change)
            warnings.insert(0, f"{where}: only its settings count here")
        _conclude(options, comparison, warnings)


def _base(
    options: CompareOptions, machine: Machine, trace: Trace, profile: ServingProfile
) -> Starter:
    """Return what starts engines with the base's arguments."""
    if options.world is not None:
        return machine.starter({})
    arguments = engine_arguments(
        model=None if options.base is not None else profile.model,
        base=options.base,
        header_model=trace.header.model,
        overrides=options.overrides,
    )
    if arguments["model"] != profile.model:
        raise UsageError(
            f"{options.profile} is for {profile.model}, --base or --set for {arguments['model']}",
            hint="Give --base and --profile of one model.",
        )
    check_arguments(profile, options.profile, confirmed=arguments)
    return VllmStarter(arguments, sampling=machine.sampling)


def _conclude(options: CompareOptions, comparison: Comparison, warnings: Sequence[str]) -> None:
    """Print the tables. Raises EngineError where nothing could be measured."""
    journal, tables, profile = comparison.journal, comparison.tables(), comparison.profile
    rows = [row for table in tables for row in table.rows]
    if journal.starts():
        facts, best = journal.facts(), tuned_row(tables[0])
        result = {
            "tuned": {"max_num_seqs": comparison.tuned, "source": str(options.profile)},
            "tables": tables,
            "windows": list(map(str, comparison.workload.windows)),
            "device": facts.device,
            "versions": facts.versions,
            "run_dir": str(journal.run_dir),
            "warnings": warnings,
        }
        next_ = after(profile, options.profile, base=options.base)
        if best is not None and best.numbers is None:
            next_ = command("show", options.profile)
        page = compare_page(comparison, tables, options.profile, warnings=warnings, next_=next_)
        finish(options, result, page, journal.run_dir)
    if not any(row.numbers for row in rows):
        failures = [text for row in rows for text in row.errors]
        raise EngineError(
            f"no approach could be measured: {failures[0]}", hint="Look into vllm.log of the run."
        )
