"""What ``tuner sweep`` does with its options: everything that may be slow to import."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tuner.commands.shared.options import check_given
from tuner.commands.shared.run_folder import Where, check_command, kept, open_run
from tuner.commands.sweep.setup import (
    SweepOptions,
    Traffic,
    cautions_of,
    execute_on,
    one_servers,
    plan_of,
    ranks_of,
    starter_of,
    traffic_of,
)
from tuner.commands.sweep.view import Progress, render
from tuner.engines import provenance
from tuner.engines.devices import DeviceMeter, gpus_of
from tuner.engines.models import shipped as models
from tuner.engines.seam import Starter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import RunError, UndecidedError, UsageError
from tuner.live.exporter import Exporter
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.replay.readings import Read
from tuner.runs import journal
from tuner.runs.outcome import SweepOutcome
from tuner.runs.result import json_object, profile_of, second_thoughts
from tuner.runs.rig import Watcher
from tuner.runs.settings import SweepSettings, settings_in
from tuner.runs.sweep.rescore import rescore
from tuner.runs.sweep.sweep import sweep
from tuner.trace.trace import load, write
from tuner.traffic.slo import parse_slo

TRACE_COPY = "trace.jsonl"
"""In the run directory: the requests that were tuned for, so that the run can be judged again."""


@dataclass(frozen=True, slots=True)
class Done:
    """One trace's finished run, and what only the command knows of it."""

    outcome: SweepOutcome
    settings: SweepSettings
    warnings: Sequence[str]
    """What to beware of in the trace."""

    run_dir: Path
    trace_digest: str
    wall_s: float
    ranks: int
    """Of a data-parallel server, of which one was measured."""


def run(options: SweepOptions) -> None:
    """Run the whole sweep, write its profile and print its result. Raises TunerError."""
    check_given("--ray", options.ray)
    if options.rescore is not None:
        _rescore(options, options.rescore)
    elif options.ray is not None:
        from tuner.commands.sweep import kinds as sweep_kinds  # noqa: PLC0415 - which builds on this

        sweep_kinds.run(options)
    elif options.ray_cpus is not None or options.prices is not None:
        raise UsageError("--prices and --ray-cpus are for --ray", hint="Add --ray ADDRESS.")
    elif len(options.traces) > 1:
        from tuner.commands.sweep import several as sweep_several  # noqa: PLC0415 - which builds on this

        sweep_several.run(options)
    elif options.traces:
        _run_one(options, options.traces[0])
    else:
        raise UsageError("no trace given", hint="Give --trace FILE, or --rescore RUN_DIR.")


def _run_one(options: SweepOptions, path: Path) -> None:
    began_s = time.monotonic()
    profile.check_output(options.output, force=options.force)
    traffic = traffic_of(options, path)
    starter = starter_of(options, traffic.trace.header.model)
    traffic = one_servers(traffic, options, starter)
    arguments = starter.resolve(max_num_seqs=options.ceiling)
    plan = plan_of(options, traffic.trace, arguments, ranks=ranks_of(starter))
    exporter = Exporter(options.metrics_port) if options.metrics_port else None
    where = Where(path, options.run_dir, resume=options.resume)
    book = open_run(where, plan)
    progress = Progress(traffic.settings, exporter)
    for warning in traffic.warnings:
        progress.warn(warning)
    with closing(exporter) if exporter else nullcontext(), kept(book, where):
        keep_trace(traffic, book.run_dir)
        with progress:
            outcome = measured(traffic, starter, book, progress)
        wall_s = time.monotonic() - began_s
        done = Done(
            outcome,
            traffic.settings,
            traffic.warnings,
            book.run_dir,
            traffic.trace.digest,
            wall_s,
            ranks_of(starter),
        )
        _conclude(options, done, keep=True)


def measured(
    traffic: Traffic, starter: Starter, book: journal.Journal, watcher: Watcher
) -> SweepOutcome:
    """Sweep one trace on one engine: all that its journal does not hold yet."""
    execute = execute_on(starter, book)
    read_device = device_of(starter, book.run_dir)
    return execute(
        sweep(traffic.requests, starter, traffic.settings, book, watcher, read_device=read_device)
    )


def keep_trace(traffic: Traffic, run_dir: Path) -> None:
    """Keep the requests with what is measured of them."""
    if not (run_dir / TRACE_COPY).exists():
        write(replace(traffic.trace, requests=tuple(traffic.requests)), run_dir / TRACE_COPY)


def device_of(starter: Starter, run_dir: Path) -> Read | None:
    """Return what reads the device while it is replayed on; None for a simulated one."""
    if not isinstance(starter, VllmStarter):
        return None
    starter.log = run_dir / "vllm.log"
    return DeviceMeter(gpus_of(starter.resolve(max_num_seqs=1))).read


def _rescore(options: SweepOptions, run_dir: Path) -> None:
    """Judge a stored run anew, under another SLO if one is given, else its own. No engine."""
    if options.traces or options.resume or options.run_dir is not None or options.ray:
        raise UsageError(
            "--rescore asks a stored run", hint="Leave out --trace, --resume, --run-dir and --ray."
        )
    book = journal.read(run_dir)
    check_command(book, "sweep")
    if "traces" in book.events[0]["plan"]:
        from tuner.commands.sweep import several as sweep_several  # noqa: PLC0415 - which builds on this

        sweep_several.rescore(options, book)
        return
    profile.check_output(options.output, force=options.force)
    _conclude(options, rescored(options, book), keep=False)


def rescored(options: SweepOptions, book: journal.Journal) -> Done:
    """Judge one trace's stored run anew."""
    began_s = time.monotonic()
    run_dir, plan = book.run_dir, book.events[0]["plan"]
    try:
        asked = options.slo or plan["slo"]
        settings = settings_in(plan, slo=parse_slo(asked) if asked else None)
        digest, ranks = str(plan["trace_digest"]), int(plan.get("ranks", 1))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{run_dir}/journal.jsonl:1: the plan makes no sense ({error!r})",
            hint="Name the run directory of a sweep of this version of tuner.",
        ) from error
    trace = load(run_dir / TRACE_COPY)
    outcome = rescore(trace.requests, settings, book)
    said = (*trace.warnings, *cautions_of(trace))
    return Done(outcome, settings, said, run_dir, digest, time.monotonic() - began_s, ranks)


def warnings_of(done: Done) -> list[str]:
    """Return all that whoever reads the result should know."""
    outcome = done.outcome
    return [
        *done.warnings,
        *outcome.warnings,
        *outcome.verdict.warnings,
        *second_thoughts(outcome, done.settings),
    ]


def sealed(done: Done, warnings: Sequence[str]) -> ServingProfile:
    """Return the profile of a finished run."""
    settings = done.settings
    origin = {
        "tuner": version("tuner"),
        "seed": settings.seed,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": done.wall_s,
        "warnings": list(warnings),
        "model_digest": _model_digest(done.outcome),
        "ranks": done.ranks,
    }
    return profile_of(
        done.outcome, headroom=settings.headroom, trace_digest=done.trace_digest, origin=origin
    )


def _conclude(options: SweepOptions, done: Done, *, keep: bool) -> None:
    """Write the profile, into the run directory first if it is to be kept there, and print."""
    outcome, said = done.outcome, warnings_of(done)
    found = sealed(done, said)
    if keep:
        profile.save(found, done.run_dir / "profile.yaml")
    profile.check_output(options.output, force=options.force)
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
