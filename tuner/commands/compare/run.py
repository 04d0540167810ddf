"""``tuner compare``: from its options to the printed result."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.commands.compare.options import CompareOptions
from tuner.commands.compare.place import ComparePlace, place_of
from tuner.commands.compare.view import (
    ComparePrint,
    CompareProgress,
    block_of,
    json_object,
    markdown,
    render,
    tuned_in,
)
from tuner.commands.report.compare import page_of, steps_of
from tuner.commands.report.drawing.page import POINTS, written
from tuner.commands.shared import dry_run
from tuner.commands.shared.dry_run import DryRun
from tuner.commands.shared.kept_result import keep_result
from tuner.commands.shared.machine import check_machine
from tuner.commands.shared.next_step import after, asked_for, command
from tuner.commands.shared.options import in_plan
from tuner.commands.shared.output import make_folder, print_json
from tuner.commands.shared.run_folder import Where, kept, open_part, open_run
from tuner.commands.shared.traffic import served_in
from tuner.commands.sweep.options import SweepOptions
from tuner.engines.devices import DeviceMeter
from tuner.engines.provenance import environment_differs
from tuner.engines.workers.seam import Batching, Setup
from tuner.errors import EngineError, UsageError
from tuner.profile.profile import load as load_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import minutes
from tuner.replay.readings import Read
from tuner.runs.compare.approaches import OF_TUNED, chosen
from tuner.runs.compare.blocks import Blocks
from tuner.runs.compare.evidence import Comparing, Tuned
from tuner.runs.compare.load_levels import STORY, parse_levels
from tuner.runs.compare.run import Comparison, calibrate
from tuner.runs.compare.settings import CompareSettings
from tuner.runs.compare.windows import check_arrivals, windows_of
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep import sweep
from tuner.system import files, folders
from tuner.trace.trace import Trace, TraceRequest, digest, load, write
from tuner.traffic.slo import parse_slo
from tuner.traffic.window import parse_duration_s, parse_window
from tuner.traffic.workload import keep_what_fits

SWEEP_SHARE = 0.2
"""Of the budget, for the sweep that finds the tuned value."""

SWEEP_STEP_S = 60.0

ANEW: dict[str, Any] = {"resume": False, "run_dir": None, "json": False}
"""Options of a run of its own."""


def run(options: CompareOptions) -> None:
    """Measure all approaches, print the tables and write them. Raises TunerError."""
    trace = load(options.trace)
    settings = settings_of(options, trace)
    requests = _served(trace, options.trace)
    _ = _static(options)  # refused now rather than after minutes
    windows_of(requests, settings.window, step_s=settings.step_s, blocks=settings.repeats)
    if options.output is not None:
        _check_folder(options.output)
    place = place_of(options, trace)
    if place.profile is not None and not options.force:
        check_machine(place.profile, place.here())
    if options.dry_run:
        dry_run.show(_dry_run(options, settings, place, requests), as_json=options.json)
        return
    plan = plan_of(options, trace, place)
    keep_what_fits(requests, max_model_len=int(str(plan["engine_arguments"]["max_model_len"])))
    where = Where(
        options.trace, options.run_dir, resume=options.resume, command="compare", asked=options
    )
    book = open_run(where, plan)
    progress = CompareProgress(settings, sweep_settings_of(options, settings))
    comparing = Comparing(book)
    read = progress.reading(DeviceMeter().read if options.engine == "vllm" else None)
    for warning in trace.warnings:
        progress.warn(warning)
    with kept(book, where):
        with progress:
            testbed = place.testbed(comparing, settings)
            place.execute(calibrate(requests, testbed, settings, comparing, progress), book)
            blocks = Blocks(requests, settings, comparing)
            place.execute(_chosen(blocks, progress), book)
            _keep_traffic(blocks, trace, book.run_dir)
            tuned, elsewhere_s = _tuned(options, place, blocks, progress, read)
            setup = Setup(
                tuned=tuned.max_num_seqs,
                static=_static(options),
                untuned=options.untuned,
                of_profile=_of_profile(place),
            )
            run = Comparison(blocks, testbed, comparing, progress, read)
            place.execute(run.run(setup, elsewhere_s=elsewhere_s), book)
        doubts = (
            *warnings_about(options, place.profile),
            *elsewhere(place.profile, comparing),
            *blocks.warnings,
            *run.warnings,
        )
        told = () if place.profile is None else place.profile.provenance.warnings
        before = [*trace.warnings, *(one for one in doubts if one in told)]
        _report(options, blocks, tuned, [one for one in doubts if one not in told], before)


def _dry_run(
    options: CompareOptions,
    settings: CompareSettings,
    place: ComparePlace,
    requests: Sequence[TraceRequest],
) -> DryRun:
    """Return what a comparison would do."""
    starts, replays = settings.starts_and_replays()
    _, windows = windows_of(
        requests, settings.window, step_s=settings.step_s, blocks=settings.repeats
    )
    names = ", ".join(one.name for one in settings.approaches)
    levels = ", ".join(one.name for one in settings.levels)
    tuned = options.max_num_seqs or _of_profile(place)
    swept = "" if tuned else ", and a fast sweep before"
    most = max([options.untuned, *([] if tuned is None else [tuned])])
    return DryRun(
        command=asked_for("compare", options, dry_run=False),
        rows=[
            ("serves", f"{names}; load {levels}, with lengths as captured and uniform"),
            ("windows", f"{', '.join(map(str, windows))}, one a block"),
            (
                "time",
                (
                    f"at most {minutes(settings.budget_s)} of engine: {starts} starts and "
                    f"{replays} replays of up to {minutes(settings.step_s)}{swept}"
                ),
            ),
        ],
        arguments=place.asked(max_num_seqs=most),
        requests=requests,
        most_seqs=most,
        is_simulated=options.engine == "sim",
    )


def _served(trace: Trace, path: Path) -> list[TraceRequest]:
    served = served_in(trace, path)
    check_arrivals(served, source=str(path))
    return served


async def _chosen(blocks: Blocks, progress: CompareProgress) -> None:
    blocks.choose(progress)


def _keep_traffic(blocks: Blocks, trace: Trace, run_dir: Path) -> None:
    """Write the traffic of each load as a trace, to be swept or refined on."""
    folder = run_dir / "traffic"
    folders.make_own(folder)
    for level in blocks.settings.levels:
        requests = tuple(blocks.traffic(level))
        header = replace(
            trace.header,
            time_origin=None,
            rows_read=len(requests),
            rows_kept=len(requests),
            dropped={},
            notes=(*trace.header.notes, f"{level.name} load of tuner compare"),
        )
        found = Trace(header, requests, digest(requests, header.block_size))
        path = folder / f"{level.name}.jsonl"
        files.remove(path)  # a link there is not followed
        write(found, path, mode=0o600)


def _tuned(
    options: CompareOptions,
    place: ComparePlace,
    blocks: Blocks,
    progress: CompareProgress,
    read: Read | None,
) -> tuple[Tuned, float]:
    """Return the tuned value, found by a sweep if need be, and the engine time that took."""
    if options.max_num_seqs is not None:
        return Tuned(options.max_num_seqs, "--max-num-seqs"), 0.0
    if (of_profile := _of_profile(place)) is not None and _is_tuned(options):
        return Tuned(of_profile, str(options.profile)), 0.0
    if not blocks.settings.sweep_share:
        return Tuned(options.untuned, "no approach needs it"), 0.0
    progress.stage("a fast sweep finds max_num_seqs for the heaviest load")
    settings = sweep_settings_of(options, blocks.settings)
    of_run = blocks.comparing.journal
    book = open_part(of_run.run_dir / "sweep", of_run.events[0]["plan"])
    try:
        outcome = place.execute(
            sweep(
                blocks.heaviest(), place.starter(book), settings, book, progress, read_device=read
            ),
            book,
        )
    except UsageError as problem:
        raise UsageError(
            f"{problem} (of the {blocks.settings.sweep_share:.0%} of --budget that are for "
            "the sweep that finds max_num_seqs)",
            hint="Give --profile or --max-num-seqs, or a larger --budget.",
        ) from None
    finally:
        book.close()
    verdict = outcome.verdict
    tuned = Tuned(verdict.max_num_seqs, f"a fast sweep at this load: {verdict.reason}")
    return tuned, outcome.replay_s + sum(outcome.starts_s)


def _of_profile(place: ComparePlace) -> int | None:
    return None if place.profile is None else place.profile.decision.max_num_seqs


def _report(
    options: CompareOptions,
    blocks: Blocks,
    tuned: Tuned,
    doubts: Sequence[str],
    before: Sequence[str],
) -> None:
    settings, comparing = blocks.settings, blocks.comparing
    tables = comparing.tables(settings.levels, settings.approaches)
    facts = comparing.evidence.facts()
    warnings = (*before, *doubts)
    result = json_object(tables, blocks, tuned, facts, warnings)
    spent_s = sum(comparing.evidence.starts_s()) + comparing.evidence.replay_s()
    row = tuned_in(tables[0])
    how = ComparePrint(
        tuned=tuned,
        facts=facts,
        spent_s=spent_s,
        next=_next(options, is_measured=row is None or row.numbers is not None),
        run_dir=comparing.journal.run_dir,
        warnings=warnings if options.details else doubts,
        said_before=0 if options.details else len(before),
        details=options.details,
    )
    keep_result(how.run_dir, result, block_of(tables[0], how))
    if options.output is not None:
        page = written(page_of(tables, how, steps=steps_of(comparing), budget=POINTS))
        _write(options.output, page, result, markdown(tables, tuned, facts))
    if options.json:
        print_json(result)
    else:
        render(tables, how)
    if not any(row.numbers for table in tables for row in table.rows):
        errors = [text for table in tables for row in table.rows for text in row.errors]
        raise EngineError(
            f"no approach could be measured: {errors[0]}", hint="See what each of them says above."
        )


def _next(options: CompareOptions, *, is_measured: bool) -> str:
    """Return what to do with what was compared.

    Roll the profile out where it was measured, or make one. Where the engine failed, look at what
    it would have to start with, memory and all; of a simulated engine, at the profile.
    """
    if not is_measured and options.engine != "sim":
        return asked_for("compare", options, **ANEW, dry_run=True)
    if options.profile is not None and not is_measured:
        return command("show", options.profile)
    if options.profile is not None:
        return after(load_profile(options.profile), options.profile, base=options.base)
    same = {"model", "base", "overrides", "engine", "world", "slo"}
    as_here = SweepOptions(trace=options.trace, **{name: getattr(options, name) for name in same})
    return asked_for("sweep", as_here)


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written before anything is measured."""
    make_folder(folder)
    for name in ("comparison.md", "comparison.json", "comparison.html"):
        files.check_writable(folder / name)


def _write(folder: Path, page: str, result: dict[str, object], tables: str) -> None:
    files.write_atomically(folder / "comparison.md", tables.encode())
    text = json.dumps(result, indent=1) + "\n"
    files.write_atomically(folder / "comparison.json", text.encode())
    files.write_atomically(folder / "comparison.html", page.encode())


def _static(options: CompareOptions) -> Batching:
    wait_s = parse_duration_s(options.batch_wait, option="--batch-wait")
    return Batching(options.batch_size, wait_s)


def _loads(options: CompareOptions) -> str:
    """Return the loads: the story's, and beside it the one that a profile was made for."""
    return options.loads or (STORY if options.profile is None else f"recorded,{STORY}")


def _is_tuned(options: CompareOptions) -> bool:
    """Whether the tuned value is given."""
    return options.max_num_seqs is not None or (options.profile is not None and not options.sweep)


def settings_of(options: CompareOptions, trace: Trace) -> CompareSettings:
    """Return the settings that the options ask for. Raises UsageError where they contradict."""
    parse_window(options.window)
    if options.sweep and options.max_num_seqs is not None:
        raise UsageError(
            "--sweep finds max_num_seqs, --max-num-seqs gives it", hint="Leave one of them out."
        )
    approaches = chosen(options.approaches, has_profile=options.profile is not None)
    needs_sweep = not _is_tuned(options) and OF_TUNED & {one.name for one in approaches}
    if options.slo is not None:
        parse_slo(options.slo)
        if not needs_sweep:
            raise UsageError(
                "--slo is for the sweep that finds max_num_seqs, and there is none",
                hint="Leave out --slo, or give --sweep instead of --max-num-seqs.",
            )
    return CompareSettings(
        approaches=approaches,
        levels=parse_levels(_loads(options)),
        untuned=options.untuned,
        window=options.window,
        step_s=parse_duration_s(options.step, option="--step"),
        repeats=options.repeats,
        budget_s=parse_duration_s(options.budget, option="--budget"),
        sweep_share=SWEEP_SHARE if needs_sweep else 0.0,
        seed=options.seed,
        trace_block_size=trace.header.block_size,
    )


def sweep_settings_of(options: CompareOptions, settings: CompareSettings) -> SweepSettings:
    """Return the settings of that sweep."""
    return SweepSettings(
        ceiling=options.untuned,
        slo=parse_slo(options.slo) if options.slo is not None else None,
        window="all",
        step_s=SWEEP_STEP_S,
        budget_s=settings.sweep_share * settings.budget_s,
        headroom=1.0,
        fast=True,
        closed_sessions=False,
        seed=settings.seed,
        trace_block_size=settings.trace_block_size,
    )


def warnings_about(options: CompareOptions, profile: ServingProfile | None) -> list[str]:
    """Say what to beware of in what was asked."""
    if profile is None:
        return []
    found = []
    if options.force:
        found.append(
            f"--force: {options.profile} may be of another machine; only its settings count here"
        )
    if options.engine == "sim" and profile.provenance.engine != "sim":
        found.append(
            "a simulated engine takes of a profile's arguments only max_num_seqs, "
            "max_num_batched_tokens, num_gpu_blocks_override and block_size"
        )
    return found


def elsewhere(profile: ServingProfile | None, comparing: Comparing) -> list[str]:
    """Say that engines ran in another environment than the profile's."""
    was = None if profile is None else profile.provenance.environment
    told = (one.facts.environment for one in comparing.evidence.starts())
    now = next((one for one in told if one is not None), None)
    differs = environment_differs(was, now)
    return [] if differs is None else [f"the profile was {differs}"]


def plan_of(options: CompareOptions, trace: Trace, place: ComparePlace) -> dict[str, Any]:
    """Return what every measurement of this run rests on; a resumed run must have the same."""
    return {
        "compare": True,
        "trace_digest": trace.digest,
        "profile_digest": None if place.profile is None else place.profile.digest,
        **place.machine(),
        **in_plan(options),
        "loads": _loads(options),
    }
