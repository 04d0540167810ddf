"""``tuner compare``: from its options to the printed result."""

import statistics
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.commands.options import CompareOptions, SweepOptions
from tuner.commands.shared.engine import world_alone
from tuner.commands.shared.machine import Here, ThisMachine, check_machine
from tuner.commands.shared.next_step import after, command
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.promise import twin_of
from tuner.commands.shared.results import keep_result
from tuner.commands.shared.run_folder import Where, kept, open_part, open_run
from tuner.commands.shared.traffic import served_in
from tuner.commands.shared.trust import check_arguments
from tuner.commands.sweep.one_trace import finished, measured, plan_of, sealed, traffic_of
from tuner.engines.devices import DeviceMeter
from tuner.engines.engine_arguments import engine_arguments
from tuner.engines.provenance import environment_differs
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError, TraceError, UsageError
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.stored_twin import StoredTwin
from tuner.runs.compare.approaches import UNTUNED, Approach, Testbed, chosen
from tuner.runs.compare.compare import REPEATS, Comparing, Comparison, affordable_s
from tuner.runs.compare.table import Tuned
from tuner.runs.compare.traffic import LEVELS, STORY, Cell, Workload, parse_levels, windows_of
from tuner.runs.evidence import Evidence, Selection
from tuner.runs.journal import Journal
from tuner.runs.recorder import Recorder
from tuner.system import interruption
from tuner.trace.trace import Trace, TraceRequest, load
from tuner.traffic.window import Part, parse_duration_s
from tuner.traffic.workload import keep_what_fits
from tuner.twin.simulation import traffic_of as twin_traffic
from tuner.views.compare import compare_json, compare_page, tuned_row
from tuner.views.live import Progress
from tuner.views.text import print_json, print_page

SWEEP_SHARE = 0.2
"""Of the budget, for the sweep that finds the tuned value where there is no profile."""

TUNED = {"tuned", "server"}
"""Approaches that need the tuned value."""


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

    @property
    def max_model_len(self) -> int:
        arguments = self.base.resolve(max_num_seqs=UNTUNED)
        return int(str(arguments["max_model_len"]))


def run(options: CompareOptions) -> None:
    """Measure all approaches, print the tables and write them. Raises TunerError."""
    asked = asked_of(options)
    plan = {
        "compare": True,
        "trace_digest": asked.trace.digest,
        "profile_digest": None if asked.profile is None else asked.profile.digest,
        "engine_arguments": dict(asked.base.resolve(max_num_seqs=UNTUNED)),
        "world": asked.here.device.get("digest"),
        **in_plan(options),
        "loads": ",".join(asked.levels),
        "approaches": ",".join(one.name for one in asked.approaches),
    }
    where = Where(
        options.trace, options.run_dir, resume=options.resume, command="compare", asked=options
    )
    book = open_run(where, plan)
    progress = Progress(parse_duration_s(options.budget, option="--budget"))
    for warning in asked.trace.warnings:
        progress.warn(warning)
    with kept(book, where):
        with progress:
            comparison, tuned = _compared(asked, book, progress)
        _report(asked, comparison, tuned)


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
    if profile is not None and options.model not in {None, profile.model}:
        raise UsageError(
            f"--model {options.model}: {options.profile} is a profile of {profile.model}",
            hint="Leave out --model, or sweep that model for a profile of its own.",
        )
    base, of_profile, here = _starters(options, trace, profile)
    if profile is not None and not options.force:
        check_machine(profile, here)
    is_simulated = options.engine == "sim"
    approaches = chosen(options.approaches, has_profile=profile is not None, simulated=is_simulated)
    loads = options.loads or (STORY if profile is None else f"recorded,{STORY}")
    return Asked(
        options, trace, requests, profile, parse_levels(loads), approaches, base, of_profile, here
    )


def _starters(
    options: CompareOptions, trace: Trace, profile: ServingProfile | None
) -> tuple[Starter, Starter | None, Here]:
    """Return what starts engines with the base's arguments, and with the profile's, and where."""
    model = options.model or (profile.model if profile and options.base is None else None)
    engine: dict[str, Any] = {} if profile is None else {**profile.engine}
    if (path := world_alone(options)) is not None:
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


def _compared(asked: Asked, book: Journal, progress: Progress) -> tuple[Comparison, Tuned]:
    """Measure all that the run does not hold yet."""
    options, comparing, log = asked.options, Comparing(book), book.run_dir / "vllm.log"
    for starter in (asked.base, asked.of_profile):
        if isinstance(starter, VllmStarter):
            starter.log = log
    budget_s = parse_duration_s(options.budget, option="--budget")
    profile, needs_twin = asked.profile, any(LEVELS[level] for level in asked.levels)
    needs_cap = options.max_num_seqs is None and TUNED & {one.name for one in asked.approaches}
    if profile is None and (needs_twin or needs_cap):
        profile, swept_s = _swept(asked, book, progress)
        budget_s -= swept_s
    twin = None
    if profile is not None and needs_twin:
        cure = "Sweep again, or compare with --loads recorded."
        twin = twin_of(profile, options.profile or book.run_dir / "sweep", cure=cure)
    requests, dropped = keep_what_fits(asked.requests, max_model_len=asked.max_model_len)
    workload = Workload(requests, (), asked.levels, twin, asked.trace.header.block_size)
    choice = comparing.evidence.selection()
    if choice is None:
        starts = None if profile is None else profile.provenance
        start_s = starts.engine_seconds.starts / max(1, starts.engine_starts) if starts else 0.0
        cells = len(workload.cells)
        step_s = affordable_s(budget_s, asked.approaches, cells=cells, start_s=start_s)
        part = Part(requests[0].arrival_s, requests[-1].arrival_s)
        choice = Selection(part, windows_of(requests, step_s=step_s, blocks=REPEATS), step_s)
        _run(asked, comparing, workload, _selected(book, choice))
    workload = replace(workload, windows=choice.windows)
    warnings = workload.warnings()
    if dropped:
        too_long = (
            f"{dropped} of {len(asked.requests)} requests are longer than max_model_len="
            f"{asked.max_model_len} and were left out: raise it to compare with them"
        )
        warnings.insert(0, too_long)
    tuned = _tuned(asked, profile, workload)
    of_profile = tuned.max_num_seqs
    if asked.profile is not None:
        of_profile = asked.profile.decision.max_num_seqs
    comparison = Comparison(
        workload,
        asked.approaches,
        budget_s,
        Testbed(asked.base, asked.of_profile, tuned.max_num_seqs, of_profile, log),
        comparing,
        progress,
        progress.reading(DeviceMeter().read if options.engine == "vllm" else None),
        warnings,
    )
    _run(asked, comparing, workload, comparison.run())
    return comparison, tuned


async def _selected(book: Journal, selection: Selection) -> None:
    Recorder(book).add_selection(selection)


def _run(
    asked: Asked, comparing: Comparing, workload: Workload, work: Coroutine[Any, Any, None]
) -> None:
    """Run on real time, or on virtual time from where the journal ends."""
    if isinstance(asked.base, VllmStarter):
        interruption.run(work)
        return
    from tuner.engines.sim import virtual_time  # noqa: PLC0415 - for sim alone
    from tuner.engines.sim.start import SimStarter  # noqa: PLC0415

    assert isinstance(asked.base, SimStarter)
    sessions = comparing.sessions()
    is_lost = any(
        comparing.left(one.name, block, workload.cells)
        for one in asked.approaches
        for block in range(REPEATS)
        if sessions and sessions[-1] == f"{one.name} {block}"
    )
    asked.base.go_on_after(comparing.evidence.engines(), lost=is_lost)
    virtual_time.run(work, begin_s=comparing.journal.clock_s)


def _swept(asked: Asked, book: Journal, progress: Progress) -> tuple[ServingProfile, float]:
    """Return the profile of a quick sweep of the trace, and the engine time that it took."""
    began_s = time.monotonic()
    progress.stage("a quick sweep finds max_num_seqs and the step-time law")
    budget_s = SWEEP_SHARE * parse_duration_s(asked.options.budget, option="--budget")
    options = SweepOptions(
        trace=asked.options.trace,
        ceiling=UNTUNED,
        headroom=1.0,
        budget=f"{budget_s:g}s",
        engine=asked.options.engine,
        world=asked.options.world,
    )
    traffic = traffic_of(options, asked.options.trace)
    quick = replace(traffic.settings, fast=True, confirm="inproc")
    traffic = replace(traffic, settings=quick)
    arguments = asked.base.resolve(max_num_seqs=UNTUNED)
    part = open_part(book.run_dir / "sweep", plan_of(options, asked.trace, arguments, asked.base))
    try:
        outcome = measured(
            traffic, asked.base, part, progress, began_s=began_s, shown=progress.reading
        )
        profile = sealed(finished(outcome, traffic, asked.base, part.run_dir, wall_s=0.0))
        return profile, Evidence(part).spent_s()
    except UsageError as problem:
        raise UsageError(
            f"{problem} (of the {SWEEP_SHARE:.0%} of --budget that are for the sweep)",
            hint="Give --profile, or a larger --budget.",
        ) from None
    finally:
        part.close()


def _tuned(asked: Asked, profile: ServingProfile | None, workload: Workload) -> Tuned:
    """Return the tuned value: as given, the profile's, or the twin's for the heaviest load."""
    given = asked.options.max_num_seqs
    if given is not None:
        return Tuned(given, "--max-num-seqs")
    if asked.profile is not None:
        return Tuned(asked.profile.decision.max_num_seqs, str(asked.options.profile))
    if profile is None:
        return Tuned(UNTUNED, "no approach needs it")
    twin = workload.twin
    if twin is None:
        return Tuned(profile.decision.max_num_seqs, f"a sweep: {profile.decision.reason}")
    heaviest = max(asked.levels, key=lambda level: LEVELS[level] or 0)
    best = [_best_cap(profile, twin, workload, heaviest, block) for block in range(REPEATS)]
    return Tuned(statistics.median_high(best), f"a sweep, whose twin was asked of {heaviest}")


def _best_cap(
    profile: ServingProfile, twin: StoredTwin, workload: Workload, level: str, block: int
) -> int:
    assert profile.twin is not None
    traffic = twin_traffic(
        workload.sent(Cell(level, "captured"), block),
        hash_block_size=workload.block_size,
        hit_share=profile.twin.hit_share,
        kv_tokens=twin.shape.kv_tokens,
    )
    caps = [one.max_num_seqs for one in profile.curve]
    return twin.weighed(traffic, profile.decision.slo.slo, caps, headroom=1.0).best


def _report(asked: Asked, comparison: Comparison, tuned: Tuned) -> None:
    options, comparing = asked.options, comparison.comparing
    tables = comparing.tables(asked.levels, asked.approaches)
    evidence = comparing.evidence
    facts = evidence.facts()
    doubts = [*_doubts(asked, evidence), *comparison.warnings]
    warnings = [*asked.trace.warnings, *doubts]
    result = compare_json(tables, comparison, tuned, facts, warnings)
    row = tuned_row(tables[0])
    page = compare_page(
        tables,
        tuned,
        facts,
        spent_s=sum(evidence.starts_s()) + evidence.replay_s(),
        warnings=[*doubts, *asked.trace.warnings],
        run_dir=str(comparing.journal.run_dir),
        next_=_next(options, is_measured=row is None or row.numbers is not None),
    )
    keep_result(comparing.journal.run_dir, result, page)
    if options.json:
        print_json(result)
    else:
        print_page(page)
    if not any(row.numbers for table in tables for row in table.rows):
        errors = [text for table in tables for row in table.rows for text in row.errors]
        raise EngineError(
            f"no approach could be measured: {errors[0]}", hint="See what each of them says above."
        )


def _doubts(asked: Asked, evidence: Evidence) -> list[str]:
    """Return what to beware of in what was asked, and where it ran."""
    profile, found = asked.profile, list[str]()
    if profile is None:
        return found
    if asked.options.force:
        path = asked.options.profile
        found.append(f"--force: {path} may be of another machine; only its settings count here")
    if asked.options.engine == "sim" and profile.provenance.engine != "sim":
        found.append(
            "a simulated engine takes of a profile's arguments only max_num_seqs, "
            "max_num_batched_tokens, num_gpu_blocks_override and block_size"
        )
    environments = (one.facts.environment for one in evidence.starts())
    now = next((one for one in environments if one is not None), None)
    differs = environment_differs(profile.provenance.environment, now)
    return found if differs is None else [*found, f"the profile was {differs}"]


def _next(options: CompareOptions, *, is_measured: bool) -> str:
    """Return what to do with what was compared: roll the profile out where it was measured, look at
    it where not, or make one."""
    if options.profile is None:
        return command("sweep", "--trace", options.trace)
    if not is_measured:
        return command("show", options.profile)
    return after(load_profile(options.profile), options.profile, base=options.base)
