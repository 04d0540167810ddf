"""What ``tuner compare`` does with its options."""

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.commands.compare.place import Place, place_of
from tuner.commands.compare.setup import (
    CompareOptions,
    open_sweep,
    plan_of,
    settings_of,
    sweep_settings_of,
    warnings_about,
)
from tuner.commands.compare.view import json_object, markdown, render
from tuner.commands.shared.machine import check_machine
from tuner.commands.shared.run_folder import Where, kept, open_run
from tuner.commands.sweep.view import Progress
from tuner.engines.devices import DeviceMeter
from tuner.engines.workers.seam import Setup
from tuner.errors import EngineError, TargetError, TraceError, UsageError
from tuner.profile.profile import load as load_profile
from tuner.replay.readings import Read
from tuner.runs.compare.blocks import Blocks
from tuner.runs.compare.comparison import Table
from tuner.runs.compare.evidence import Comparing, Tuned
from tuner.runs.compare.run import Comparison, calibrate
from tuner.runs.compare.windows import check_arrivals, windows_of
from tuner.runs.sweep.sweep import sweep
from tuner.system import files
from tuner.trace.trace import Trace, TraceRequest, digest, load, write
from tuner.traffic.workload import keep_what_fits


def run(options: CompareOptions) -> None:
    """Measure all approaches, print the tables and write them. Raises TunerError."""
    trace = load(options.trace)
    settings = settings_of(options, trace)
    requests = _served(trace, options.trace)
    _ = options.static  # refused now rather than after minutes
    windows_of(requests, settings.window, step_s=settings.step_s, blocks=settings.repeats)
    if options.output is not None:
        _check_folder(options.output)
    place = place_of(options, trace)
    if place.profile is not None and not options.force:
        check_machine(place.profile, place.here())
    plan = plan_of(options, trace, place.machine())
    keep_what_fits(requests, max_model_len=int(str(plan["engine_arguments"]["max_model_len"])))
    where = Where(options.trace, options.run_dir, resume=options.resume, command="compare")
    book = open_run(where, plan)
    progress = Progress(sweep_settings_of(options, settings), None)
    comparing = Comparing(book)
    read = DeviceMeter().read if options.engine == "vllm" else None
    with kept(book, where), progress:
        testbed = place.testbed(comparing, settings)
        place.execute(calibrate(requests, testbed, settings, comparing, progress), book)
        blocks = Blocks(requests, settings, comparing)
        place.execute(_chosen(blocks, progress), book)
        _keep_traffic(blocks, trace, book.run_dir)
        tuned, elsewhere_s = _tuned(options, place, blocks, progress, read)
        setup = Setup(
            tuned=tuned.max_num_seqs,
            static=options.static,
            untuned=options.untuned,
            of_profile=_of_profile(options),
        )
        run = Comparison(blocks, testbed, comparing, progress, read)
        place.execute(run.run(setup, elsewhere_s=elsewhere_s), book)
    warnings = (*trace.warnings, *warnings_about(options), *blocks.warnings, *run.warnings)
    _report(options, blocks, tuned, warnings)


def _served(trace: Trace, path: Path) -> list[TraceRequest]:
    served = [one for one in trace.requests if one.status in {"ok", "aborted"}]
    if not served:
        raise TraceError(f"{path}: no request that was served", hint="Capture some traffic first.")
    check_arrivals(served, source=str(path))
    return served


async def _chosen(blocks: Blocks, progress: Progress) -> None:
    blocks.choose(progress)


def _keep_traffic(blocks: Blocks, trace: Trace, run_dir: Path) -> None:
    """Write the traffic of each load as a trace, to be swept or refined on."""
    folder = run_dir / "traffic"
    folder.mkdir(exist_ok=True)
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
        write(found, folder / f"{level.name}.jsonl", force=True)


def _tuned(
    options: CompareOptions, place: Place, blocks: Blocks, progress: Progress, read: Read | None
) -> tuple[Tuned, float]:
    """Return the tuned value, found by a sweep if need be, and the engine time that took."""
    if options.max_num_seqs is not None:
        return Tuned(options.max_num_seqs, "--max-num-seqs"), 0.0
    if (of_profile := _of_profile(options)) is not None and options.is_tuned:
        return Tuned(of_profile, str(options.profile)), 0.0
    if not blocks.settings.sweep_share:
        return Tuned(options.untuned, "no approach needs it"), 0.0
    progress.stage("a fast sweep finds max_num_seqs for the heaviest load")
    settings = sweep_settings_of(options, blocks.settings)
    journal = blocks.comparing.journal
    book = open_sweep(journal.run_dir, {**journal.events[0]["plan"]})
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


def _of_profile(options: CompareOptions) -> int | None:
    return load_profile(options.profile).decision.max_num_seqs if options.profile else None


def _report(options: CompareOptions, blocks: Blocks, tuned: Tuned, warnings: Sequence[str]) -> None:
    settings, comparing = blocks.settings, blocks.comparing
    tables = comparing.tables(settings.levels, settings.approaches)
    facts = comparing.evidence.facts()
    result = json_object(tables, blocks, tuned, facts, warnings)
    if options.output is not None:
        _write(options.output, tables, result, markdown(tables, tuned, facts))
        if importlib.util.find_spec("plotly") is None:
            sys.stderr.write(
                "No plot: plotly is not installed. Run pip install 'tuner[report]', and the "
                "command again with --resume.\n"
            )
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        render(tables, tuned, facts, warnings=warnings, run_dir=comparing.journal.run_dir)
    if not any(row.numbers for table in tables for row in table.rows):
        errors = [text for table in tables for row in table.rows for text in row.errors]
        raise EngineError(
            f"no approach could be measured: {errors[0]}", hint="See what each of them says above."
        )


def _check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise TargetError(
            f"{folder}: cannot be a folder ({problem.strerror})", hint="Choose another -o."
        ) from None
    for name in ("comparison.md", "comparison.json", "comparison.html"):
        files.check_writable(folder / name)


def _write(folder: Path, tables: Sequence[Table], result: dict[str, object], page: str) -> None:
    files.write_atomically(folder / "comparison.md", page.encode())
    text = json.dumps(result, indent=1) + "\n"
    files.write_atomically(folder / "comparison.json", text.encode())
    if importlib.util.find_spec("plotly") is not None:
        from tuner.commands.compare import plot as compare_plot  # noqa: PLC0415 - plotly, where there is one

        files.write_atomically(folder / "comparison.html", compare_plot.page(tables).encode())
