"""What ``tuner sweep`` does with its options: everything that may be slow to import."""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tuner import files, journal, models, profile, provenance
from tuner.commands.run_folder import Where, kept, open_run
from tuner.commands.sweep_setup import (
    SweepOptions,
    cautions_of,
    check_window,
    execute_on,
    plan_of,
    requests_of,
    settings_of,
    starter_of,
)
from tuner.commands.sweep_view import Progress, render
from tuner.devices import DeviceMeter
from tuner.engines.vllm import VllmStarter
from tuner.errors import RunError, TargetError, UndecidedError, UsageError
from tuner.exporter import Exporter
from tuner.outcome import SweepOutcome
from tuner.rescore import rescore
from tuner.result import json_object, profile_of, second_thoughts
from tuner.settings import SweepSettings, settings_in
from tuner.slo import parse_slo
from tuner.sweep import sweep
from tuner.trace import load, write

TRACE_COPY = "trace.jsonl"
"""In the run directory: the requests that were tuned for, so that the run can be judged again."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One finished run, and what only the command knows of it."""

    settings: SweepSettings
    warnings: Sequence[str]
    run_dir: Path
    trace_digest: str
    wall_s: float


def run(options: SweepOptions) -> None:
    """Run the whole sweep, write its profile and print its result. Raises TunerError."""
    if options.rescore is not None:
        _rescore(options, options.rescore)
        return
    began_s = time.monotonic()
    _check_output(options)
    if options.trace is None:
        raise UsageError("no trace given", hint="Give --trace FILE, or --rescore RUN_DIR.")
    trace = load(options.trace)
    settings = settings_of(options, trace)
    requests, warnings = requests_of(options, trace)
    check_window(options, requests)
    starter = starter_of(options, trace)
    plan = plan_of(options, trace, starter)
    exporter = Exporter(options.metrics_port) if options.metrics_port else None
    where = Where(options.trace, options.run_dir, resume=options.resume)
    book = open_run(where, plan)
    execute = execute_on(starter, book)
    read_device = None
    if isinstance(starter, VllmStarter):
        starter.log = book.run_dir / "vllm.log"
        read_device = DeviceMeter().read
    progress = Progress(settings, exporter)
    for warning in warnings:
        progress.warn(warning)
    with closing(exporter) if exporter else nullcontext(), kept(book, where):
        if not (book.run_dir / TRACE_COPY).exists():
            write(replace(trace, requests=tuple(requests)), book.run_dir / TRACE_COPY)
        with progress:
            outcome = execute(
                sweep(requests, starter, settings, book, progress, read_device=read_device)
            )
        wall_s = time.monotonic() - began_s
        done = _Run(settings, warnings, book.run_dir, trace.digest, wall_s)
        _conclude(options, outcome, done, keep=True)


def _rescore(options: SweepOptions, run_dir: Path) -> None:
    """Judge a stored run anew, under another SLO if one is given, else its own. No engine."""
    began_s = time.monotonic()
    if options.trace is not None or options.resume or options.run_dir is not None:
        raise UsageError(
            "--rescore asks a stored run", hint="Leave out --trace, --resume and --run-dir."
        )
    _check_output(options)
    book = journal.read(run_dir)
    plan = book.events[0]["plan"]
    try:
        asked = options.slo or plan["slo"]
        settings = settings_in(plan, slo=parse_slo(asked) if asked else None)
        digest = str(plan["trace_digest"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{run_dir}/journal.jsonl:1: the plan makes no sense ({error!r})",
            hint="Name the run directory of a sweep of this version of tuner.",
        ) from error
    trace = load(run_dir / TRACE_COPY)
    outcome = rescore(trace.requests, settings, book)
    said = (*trace.warnings, *cautions_of(trace))
    done = _Run(settings, said, run_dir, digest, time.monotonic() - began_s)
    _conclude(options, outcome, done, keep=False)


def _conclude(options: SweepOptions, outcome: SweepOutcome, done: _Run, *, keep: bool) -> None:
    """Write the profile, into the run directory first if it is to be kept there, and print."""
    settings = done.settings
    said = [
        *done.warnings,
        *outcome.warnings,
        *outcome.verdict.warnings,
        *second_thoughts(outcome, settings),
    ]
    origin = {
        "tuner": version("tuner"),
        "seed": settings.seed,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": done.wall_s,
        "warnings": said,
        "model_digest": _model_digest(outcome),
    }
    found = profile_of(
        outcome, headroom=settings.headroom, trace_digest=done.trace_digest, origin=origin
    )
    if keep:
        profile.save(found, done.run_dir / "profile.yaml")
    _check_output(options)
    profile.save(found, options.output)
    if options.json:
        result = json_object(
            outcome, run_dir=str(done.run_dir), profile=str(options.output), warnings=said
        )
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        render(outcome, profile_path=options.output, run_dir=done.run_dir, warnings=said)
    if outcome.verdict.kind == "inconclusive":
        raise UndecidedError(
            outcome.verdict.reason,
            hint=f"{options.output} is safe to serve but not defended; give a larger --budget.",
        )


def _model_digest(outcome: SweepOutcome) -> str | None:
    """Return the digest of the model's files; None where a model is simulated or on a hub."""
    if outcome.facts.engine == "sim":
        return None
    return provenance.model_digest(models.model_path(str(outcome.facts.arguments["model"])))


def _check_output(options: SweepOptions) -> None:
    """Refuse to destroy what is not ours, before anything is measured and again at the end.

    An older profile may go: its run directory still has it.
    """
    path = files.resolve(options.output)
    files.check_writable(path)
    if not os.access(path.parent, os.W_OK):
        raise TargetError(f"{path.parent}: must not be written", hint="Choose another -o.")
    old = files.content(path)
    if old is not None and not options.force and b"schema_version:" not in old[:4096]:
        raise TargetError(
            f"{options.output}: is there already and is no serving profile",
            hint="Choose another -o, or overwrite it with --force.",
        )
