"""What ``tuner compare`` does with its options."""

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tuner import files
from tuner.approaches.seam import Setup
from tuner.commands.compare_setup import (
    CompareOptions,
    Place,
    open_sweep,
    place_of,
    plan_of,
    settings_of,
    sweep_settings_of,
)
from tuner.commands.compare_view import json_object, markdown, render
from tuner.commands.run_folder import Where, kept, open_run
from tuner.commands.sweep_view import Progress
from tuner.compare.comparison import Table
from tuner.compare.evidence import Comparing, Tuned
from tuner.compare.run import CompareSettings, Comparison
from tuner.devices import DeviceMeter
from tuner.errors import EngineError, TargetError, TraceError
from tuner.profile import load as load_profile
from tuner.sweep import sweep
from tuner.trace import Trace, TraceRequest, load
from tuner.traffic import scale_load
from tuner.workload import keep_what_fits


def run(options: CompareOptions) -> None:
    """Measure all approaches, print the tables and write them. Raises TunerError."""
    trace = load(options.trace)
    settings = settings_of(options, trace)
    requests = _served(trace, options.trace)
    _ = options.static  # refused now rather than after minutes
    if options.output is not None:
        _check_folder(options.output)
    place = place_of(options, trace)
    where = Where(options.trace, options.run_dir, resume=options.resume, kind="compare-")
    book = open_run(where, plan_of(options, trace, place))
    progress = Progress(sweep_settings_of(options, settings), None)
    comparing = Comparing(book)
    read = DeviceMeter().read if options.engine == "vllm" else None
    with kept(book, where), progress:
        site = place.site(comparing, settings)
        run = Comparison(requests, site, settings, comparing, progress, read)
        run.warnings += trace.warnings
        place.execute(run.calibrate(), book)
        tuned, spent_s = _tuned(options, place, run, progress)
        setup = Setup(
            tuned=tuned.max_num_seqs,
            static=options.static,
            untuned=options.untuned,
            of_profile=_of_profile(options),
        )
        place.execute(run.run(setup, spent_s=spent_s), book)
    _report(options, settings, comparing, tuned, run.warnings)


def _served(trace: Trace, path: Path) -> list[TraceRequest]:
    served = [one for one in trace.requests if one.status in {"ok", "aborted"}]
    if not served:
        raise TraceError(f"{path}: no request that was served", hint="Capture some traffic first.")
    return served


def _tuned(
    options: CompareOptions, place: Place, run: Comparison, progress: Progress
) -> tuple[Tuned, float]:
    """Return the tuned value, found by a sweep if need be, and the engine time spent so far."""
    comparing, spent_s = run.comparing, run.comparing.spent_s()
    if options.max_num_seqs is not None:
        return Tuned(options.max_num_seqs, "--max-num-seqs"), spent_s
    if (of_profile := _of_profile(options)) is not None:
        return Tuned(of_profile, str(options.profile)), spent_s
    if not {"tuned", "profile"} & {one.name for one in run.settings.approaches}:
        return Tuned(options.untuned, "no approach needs it"), spent_s
    found = comparing.rates()
    assert found is not None
    rates, max_model_len = found
    requests, _ = keep_what_fits(run.requests, max_model_len=max_model_len)
    rate = max(rates.values(), default=None)
    if rate is not None:
        span_s = max(requests[-1].arrival_s - requests[0].arrival_s, 1.0)
        factor = rate * span_s / len(requests)
        requests = scale_load(requests, factor, seed=options.seed)
    progress.stage("no profile: a fast sweep finds max_num_seqs for this load")
    settings = sweep_settings_of(options, run.settings)
    book = open_sweep(comparing.journal.run_dir, {**comparing.journal.events[0]["plan"]})
    try:
        outcome = place.execute(
            sweep(requests, place.starter(book), settings, book, progress, read_device=run.read),
            book,
        )
    finally:
        book.close()
    verdict = outcome.verdict
    tuned = Tuned(verdict.max_num_seqs, f"a fast sweep at this load: {verdict.reason}")
    return tuned, spent_s + outcome.replay_s + sum(outcome.starts_s)


def _of_profile(options: CompareOptions) -> int | None:
    return load_profile(options.profile).decision.max_num_seqs if options.profile else None


def _report(
    options: CompareOptions,
    settings: CompareSettings,
    comparing: Comparing,
    tuned: Tuned,
    warnings: Sequence[str],
) -> None:
    tables = comparing.tables(settings.levels, settings.approaches)
    facts = comparing.evidence.facts()
    result = json_object(tables, comparing, tuned, facts, warnings)
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
        from tuner.commands import compare_plot  # noqa: PLC0415 - plotly, where there is one

        files.write_atomically(folder / "comparison.html", compare_plot.page(tables).encode())
