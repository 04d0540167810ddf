"""``tuner sweep`` behind its options: everything that may be slow to import."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.commands.shared import dry_run
from tuner.commands.shared.next_step import check_required
from tuner.commands.shared.options import check_given
from tuner.commands.shared.output import print_json
from tuner.commands.shared.run_folder import Where, check_command, kept, making_sense, open_run
from tuner.commands.sweep import kinds
from tuner.commands.sweep.ceiling import with_ceiling
from tuner.commands.sweep.one_trace import (
    FinishedSweep,
    SweptTraffic,
    beside_now,
    completed,
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
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.runs import journal
from tuner.runs.ladder import doubling


def run(options: SweepOptions) -> None:
    """Run the whole sweep, write its profile and print its result. Raises TunerError."""
    check_given("--ray", options.ray)
    _check(options)
    if options.rescore is not None:
        _rescore(options, options.rescore)
    elif options.ray is not None:
        kinds.run(options)
    elif options.trace is not None:
        _run_one(options, options.trace)


def _check(options: SweepOptions) -> None:
    """Raise UsageError for options that do not go together."""
    if options.trace is None and options.rescore is None:
        raise UsageError("no trace given", hint="Give --trace FILE, or --rescore RUN_DIR.")
    if options.rescore is not None and (
        options.trace or options.resume or options.run_dir or options.ray or options.dry_run
    ):
        raise UsageError(
            "--rescore reads a stored run and starts no engine",
            hint="Leave out --trace, --resume, --run-dir, --ray and --dry-run.",
        )
    if options.ray is None and options.prices is not None:
        raise UsageError("--prices is for --ray", hint="Add --ray ADDRESS.")
    if options.ray is not None and options.dry_run:
        raise UsageError("--dry-run is of a sweep on this machine", hint="Leave out --ray.")
    if options.ray is not None and options.ceiling == AUTO:
        raise UsageError("--ceiling auto is of this machine", hint="Give a number with --ray.")


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
    options, traffic, ceiling = with_ceiling(options, traffic, starter)
    return AskedSweep(options, traffic, starter, ceiling, began_s)


def swept(asked: AskedSweep, path: Path) -> FinishedSweep:
    """Measure all that the run does not hold yet, and decide. Raises TunerError."""
    options, traffic, starter = asked.options, asked.traffic, asked.starter
    arguments = starter.resolve(max_num_seqs=options.ceiling)
    plan = plan_of(options, traffic.trace, arguments, ranks=ranks_of(starter))
    where = Where(path, options.run_dir, resume=options.resume, asked=options)
    book = open_run(where, plan)
    progress = RunProgress(traffic.settings.budget_s, doubling(options.ceiling))
    for warning in traffic.warnings:
        progress.warn(warning)
    for line in [*asked.ceiling, *taken_from_base(options)]:
        progress.stage(line)
    with kept(book, where):
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
    book = journal.read(run_dir)
    check_command(book, "sweep")
    with making_sense(run_dir, is_stored=True):
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
    if not outcome.verdict.is_defended:
        hint = f"{options.output} is safe to serve but not defended; give a larger --budget."
        if outcome.verdict.kind == "overloaded":
            hint = "Add replicas or relax the SLO; a larger --budget may make it sure."
        raise UndecidedError(outcome.verdict.reason, hint=hint)
