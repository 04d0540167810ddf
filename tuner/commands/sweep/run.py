"""``tuner sweep`` behind its options: everything that may be slow to import."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tuner.commands.options import AUTO, ShowOptions, SweepOptions
from tuner.commands.shared.next_step import after, again, check_required
from tuner.commands.shared.options import check_given
from tuner.commands.shared.results import keep_result
from tuner.commands.shared.run_folder import (
    check_command,
    kept,
    making_sense,
    open_run,
    read_run,
)
from tuner.commands.sweep import forecast, kinds
from tuner.commands.sweep.one_trace import (
    FinishedSweep,
    SweptTraffic,
    beside_now,
    confirming_of,
    finished,
    keep_trace,
    measured,
    one_servers,
    plan_of,
    rescored,
    sealed,
    starter_of,
    taken_from_base,
    traffic_of,
)
from tuner.engines.seam import Starter
from tuner.errors import UndecidedError, UsageError
from tuner.live.exporter import SweepExporter
from tuner.profile import profile
from tuner.profile.schema import ServingProfile
from tuner.runs.ladder import doubling
from tuner.traffic.window import parse_duration_s
from tuner.views.live import Progress
from tuner.views.page import Page
from tuner.views.profile import profile_page
from tuner.views.text import print_json, print_page


def run(options: SweepOptions) -> None:
    """Run the whole sweep, write its profile and print its result. Raises TunerError."""
    check_given("--ray", options.ray)
    _check(options)
    if options.ray is not None:
        kinds.run(options)
    else:
        _run_one(options)


def _check(options: SweepOptions) -> None:
    """Raise UsageError for options that do not go together."""
    if options.ray is not None and (options.dry_run or options.metrics_port):
        name = "--dry-run" if options.dry_run else "--metrics-port"
        raise UsageError(f"{name} is for a sweep on this machine", hint="Leave out --ray.")
    if options.ray is not None and options.ceiling == AUTO:
        raise UsageError("--ceiling auto is for this machine", hint="Give a number with --ray.")


def _run_one(options: SweepOptions) -> None:
    asked = prepared(options)
    if options.dry_run:
        forecast.show(asked.options, asked.traffic, asked.starter, asked.ceiling)
        return
    options, done = asked.options, swept(asked)
    found, page = written(options, done)
    _conclude(done, found, options.output, page, options)


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


def prepared(options: SweepOptions) -> AskedSweep:
    """Read and check all that a sweep needs. Raises TunerError."""
    began_s = time.monotonic()
    profile.check_output(options.output, force=None)
    traffic = traffic_of(options, options.trace)
    starter = starter_of(options, traffic.trace.header.model)
    traffic = one_servers(traffic, options, starter)
    options, traffic, ceiling = forecast.with_ceiling(options, traffic, starter)
    return AskedSweep(options, traffic, starter, ceiling, began_s)


def swept(asked: AskedSweep) -> FinishedSweep:
    """Measure all that the run does not hold yet, and decide. Raises TunerError."""
    options, traffic, starter = asked.options, asked.traffic, asked.starter
    arguments = starter.resolve(max_num_seqs=options.ceiling)
    plan = plan_of(options, traffic.trace, arguments, starter)
    book = open_run("sweep", options, plan)
    progress = Progress(traffic.settings.budget_s, doubling(options.ceiling))
    if options.metrics_port is not None:
        progress.exporter = SweepExporter(options.metrics_port)
    for warning in traffic.warnings:
        progress.warn(warning)
    for line in [*asked.ceiling, *taken_from_base(options)]:
        progress.stage(line)
    with closing(progress.exporter) if progress.exporter else nullcontext(), kept(book):
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
            outcome = beside_now(found, starter, options)
        wall_s = time.monotonic() - asked.began_s
        return finished(outcome, traffic, starter, book.run_dir, wall_s)


def decide_again(options: ShowOptions) -> None:
    """Decide a stored run again, under another SLO or other requirements, without an engine; write
    its profile to ``-o``. Raises TunerError."""
    output = options.output
    if output is not None:
        profile.check_output(output, force=None)
    book = read_run(options.source)
    check_command(book, "sweep")
    with making_sense(options.source, is_stored=True):
        done = rescored(book, slo=options.slo, require=options.require)
        result = sealed(done)
    if output is not None:
        profile.save(result, output)
    path = output or options.source / "profile.yaml"
    page = page_of(done, result, after(result, path))
    _conclude(done, result, path, page, options)


def written(options: SweepOptions, done: FinishedSweep) -> tuple[ServingProfile, Page]:
    """Write the profile, into the run directory first; return it and its page."""
    with making_sense(done.run_dir, is_stored=True):
        found = sealed(done)
        page = page_of(done, found, next_command(options, found))
        profile.keep(found, done.run_dir)
        keep_result(done.run_dir, done.as_json(options.output), page)
    profile.check_output(options.output, force=None)
    profile.save(found, options.output)
    return found, page


def page_of(done: FinishedSweep, found: ServingProfile, next_: str) -> Page:
    """Return the page of a finished sweep."""
    page = profile_page(found, subject=f"Sweep {done.run_dir}", next_=next_)
    return replace(page, run_dir=str(done.run_dir))


def next_command(options: SweepOptions, found: ServingProfile) -> str:
    """Return what to run after a sweep: the same again where that would tell more, or what goes on
    with the profile."""
    decision, real = found.decision, found.provenance.engine != "sim"
    anew: dict[str, Any] = {"run_dir": None, "json": False}
    if real and decision.verdict == "not_reached":
        return again("sweep", options, ceiling=2 * found.curve[-1].max_num_seqs, **anew)
    if real and decision.verdict == "inconclusive":
        twice = f"{2 * parse_duration_s(options.budget, option='--budget'):g}s"
        return again("sweep", options, budget=twice, **anew)
    return after(found, options.output, base=options.base)


def _conclude(
    done: FinishedSweep,
    found: ServingProfile,
    path: Path,
    page: Page,
    options: SweepOptions | ShowOptions,
) -> None:
    """Print the answer. Raises GateError, and UndecidedError where it cannot be defended."""
    if options.json:
        print_json(done.as_json(path))
    else:
        print_page(page, details=options.details if isinstance(options, ShowOptions) else None)
    verdict = done.outcome.verdict
    check_required(found, path, cure=verdict.cure)
    if not verdict.is_defended:
        hint = f"{path} is safe to serve but not defended; give a larger --budget."
        if verdict.kind == "overloaded":
            hint = "Add replicas or relax the SLO; a larger --budget may make it sure."
        raise UndecidedError(verdict.reason, hint=hint)
