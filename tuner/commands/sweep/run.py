"""``tuner sweep`` behind its options: everything that may be slow to import."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tuner.commands.shared import dry_run
from tuner.commands.shared.next_step import check_required, check_served
from tuner.commands.shared.options import check_given
from tuner.commands.shared.output import print_json
from tuner.commands.shared.run_folder import Where, check_command, kept, making_sense, open_run
from tuner.commands.sweep import kinds, multi_trace
from tuner.commands.sweep.ceiling import with_ceiling
from tuner.commands.sweep.one_trace import (
    FinishedSweep,
    SweptTraffic,
    beside_now,
    completed,
    confirm_of,
    confirming_of,
    dry_run_of,
    finished,
    keep_trace,
    measured,
    one_servers,
    plan_of,
    ranks_of,
    rescored,
    sealed,
    starter_of,
    taken_from_base,
    traffic_of,
)
from tuner.commands.sweep.options import AUTO, SweepOptions
from tuner.commands.sweep.view import RunProgress, keep_answer, print_of, render
from tuner.engines.seam import Starter
from tuner.errors import UndecidedError, UsageError
from tuner.live.exporter import Exporter
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.runs import journal


def run(options: SweepOptions) -> None:
    """Run the whole sweep, write its profile and print its result. Raises TunerError."""
    check_given("--ray", options.ray)
    _check_confirm(options)
    if options.dry_run and (options.rescore is not None or options.ray is not None):
        raise UsageError(
            "--dry-run is of a sweep on this machine",
            hint="Leave out --ray and --rescore; --rescore starts no engine anyway.",
        )
    if options.check and options.ray is not None:
        raise UsageError("--check is of a sweep on this machine", hint="Leave out --ray.")
    if options.rescore is not None:
        _rescore(options, options.rescore)
    elif options.ray is not None:
        if options.ceiling == AUTO:
            raise UsageError("--ceiling auto is of this machine", hint="Give a number with --ray.")
        kinds.run(options)
    elif options.ray_cpus is not None or options.prices is not None:
        raise UsageError("--prices and --ray-cpus are for --ray", hint="Add --ray ADDRESS.")
    elif len(options.traces) > 1:
        multi_trace.run(options)
    elif options.traces:
        _run_one(options, options.traces[0])
    else:
        raise UsageError("no trace given", hint="Give --trace FILE, or --rescore RUN_DIR.")


def _check_confirm(options: SweepOptions) -> None:
    """Raise UsageError where no server can confirm, or none is asked."""
    if options.rescore is not None:
        return
    if options.send == "text" and options.engine != "serve" and confirm_of(options) == "inproc":
        raise UsageError(
            "--send text is for a server, and none is asked here",
            hint="Leave it out: an engine in tuner's process is given token ids.",
        )
    if options.confirm in {None, "inproc"}:
        return
    if options.engine == "sim":
        raise UsageError(
            f"--confirm {options.confirm} is for a real engine",
            hint="Leave it out with --engine sim.",
        )
    if options.ray is not None or len(options.traces) > 1:
        raise UsageError(
            f"--confirm {options.confirm} is for one trace on this machine",
            hint="Leave it out, or sweep each trace by itself.",
        )


def _run_one(options: SweepOptions, path: Path) -> None:
    asked = prepared(options, path)
    if options.dry_run:
        run = dry_run_of(asked.options, asked.traffic, asked.starter, asked.ceiling)
        dry_run.show(run, as_json=options.json)
        return
    _conclude(asked.options, swept(asked, path), keep=True)


@dataclass(frozen=True, slots=True)
class AskedSweep:
    """A sweep of one trace, checked; nothing has been started for it."""

    options: SweepOptions
    """With the ceiling as a number."""

    traffic: SweptTraffic
    starter: Starter
    ceiling: Sequence[str]
    """Why the ceiling is that; nothing where it was given."""

    began_s: float


def prepared(options: SweepOptions, path: Path) -> AskedSweep:
    """Read and check all that a sweep needs. Raises TunerError."""
    began_s = time.monotonic()
    profile.check_output(options.output, force=options.force)
    traffic = traffic_of(options, path)
    starter = starter_of(options, traffic.trace.header.model)
    traffic = one_servers(traffic, options, starter)
    options, (traffic,), ceiling = with_ceiling(options, [traffic], starter)
    return AskedSweep(options, traffic, starter, ceiling, began_s)


def swept(asked: AskedSweep, path: Path) -> FinishedSweep:
    """Measure all that the run does not hold yet, and decide. Raises TunerError."""
    options, traffic, starter = asked.options, asked.traffic, asked.starter
    arguments = starter.resolve(max_num_seqs=options.ceiling)
    plan = plan_of(options, traffic.trace, arguments, ranks=ranks_of(starter))
    exporter = Exporter(options.metrics_port) if options.metrics_port else None
    where = Where(path, options.run_dir, resume=options.resume, asked=options)
    book = open_run(where, plan)
    progress = RunProgress(traffic.settings, exporter)
    for warning in traffic.warnings:
        progress.warn(warning)
    for said in [*asked.ceiling, *taken_from_base(options)]:
        progress.stage(said)
    with closing(exporter) if exporter else nullcontext(), kept(book, where):
        keep_trace(traffic, book)
        with progress:
            found = measured(
                traffic,
                starter,
                book,
                progress,
                began_s=asked.began_s,
                confirming=confirming_of(options, starter),
                shown=progress.reading,
            )
            outcome = completed(beside_now(found, starter, options), starter)
        wall_s = time.monotonic() - asked.began_s
        return finished(outcome, traffic, starter, book.run_dir, wall_s)


def _rescore(options: SweepOptions, run_dir: Path) -> None:
    """Rescore a stored run under another SLO if one is given, else its own. No engine."""
    if options.traces or options.resume or options.run_dir is not None or options.ray:
        raise UsageError(
            "--rescore asks a stored run", hint="Leave out --trace, --resume, --run-dir and --ray."
        )
    book = journal.read(run_dir)
    check_command(book, "sweep")
    with making_sense(run_dir, is_stored=True):
        if "traces" in book.events[0]["plan"]:
            multi_trace.rescore(options, book)
            return
        profile.check_output(options.output, force=options.force)
        _conclude(options, rescored(options, book), keep=False)


def written(options: SweepOptions, done: FinishedSweep, *, keep: bool) -> ServingProfile:
    """Write the profile, into the run directory first if it is to be kept there; return it."""
    with making_sense(done.run_dir, is_stored=options.resume):
        found = sealed(done)
        if keep:
            profile.keep(found, done.run_dir)
            keep_answer(options, done, found, options.output)
    profile.check_output(options.output, force=options.force)
    profile.save(found, options.output)
    return found


def _conclude(options: SweepOptions, done: FinishedSweep, *, keep: bool) -> None:
    """Write the profile, into the run directory first if it is to be kept there, and print."""
    outcome, found = done.outcome, written(options, done, keep=keep)
    if options.json:
        print_json(done.as_json(options.output))
    else:
        render(outcome, found, print_of(options, done, found, options.output))
    check_required(found, options.output, cure=outcome.verdict.cure)
    if options.check:
        check_served({options.output: found})
    if not outcome.verdict.is_defended:
        hint = f"{options.output} is safe to serve but not defended; give a larger --budget."
        if outcome.verdict.kind == "overloaded":
            hint = "Add replicas or relax the SLO; a larger --budget may make it sure."
        raise UndecidedError(outcome.verdict.reason, hint=hint)
