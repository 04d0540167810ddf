"""``tuner report``: from a run's folder or a profile to a page."""

import os
import sys
from pathlib import Path

from tuner.commands.report import compare, others, sweep, watch
from tuner.commands.report.drawing.page import GENERATOR, Page, written
from tuner.commands.report.options import ReportOptions
from tuner.commands.shared.kept_result import making_sense
from tuner.commands.shared.run_folder import command_of, read_run
from tuner.commands.watch.run import WINDOWS_FILE as WINDOWS
from tuner.errors import ProfileError, RunError, TargetError
from tuner.system import files
from tuner.system.printable import printable


def run(options: ReportOptions) -> None:
    """Write the page. Raises InputError, TargetError."""
    _check_output(options)
    page = written(_page(options.source)).encode()
    files.write_atomically(options.output, page)
    where = printable(str(options.output))
    sys.stderr.write(f"{where}: {len(page) / 1e3:,.0f} kB, open it in a browser\n")


def _page(source: Path) -> Page:
    if not source.is_dir():
        if not source.exists():
            raise ProfileError(
                f"{source}: there is no such file or folder",
                hint="Give the folder of a run (runs/...), or a serving profile.",
            )
        return sweep.of_profile(source)
    if (source / WINDOWS).exists() and not (source / "journal.jsonl").exists():
        with making_sense(source / WINDOWS):
            return watch.of_run(source)
    with making_sense(source / "journal.jsonl"):
        return _of_run(source)


def _of_run(source: Path) -> Page:
    book = read_run(source)
    of_run = OF_RUN.get(command_of(book) or "")
    if of_run is None:
        raise RunError(
            f"{source}: its plan is not of a command that has a report",
            hint="Give the folder of a sweep, refine, compare, verify or watch, or a profile.",
        )
    return of_run(book)


OF_RUN = {
    "sweep": sweep.of_run,
    "refine": others.of_refinement,
    "compare": compare.of_run,
    "verify": others.of_verification,
}
"""Command → what makes the page of its run."""


def _check_output(options: ReportOptions) -> None:
    """Refuse to write over what is no report, before anything is read. Raises TargetError."""
    path = files.resolve(options.output)
    files.check_writable(path)
    if not os.access(path.parent, os.W_OK):
        raise TargetError(f"{path.parent}: must not be written", hint="Choose another -o.")
    old = files.content(path)
    if old and f'content="{GENERATOR}"'.encode() not in old[:4096]:
        raise TargetError(
            f"{options.output}: is there already and is no report",
            hint="Choose another -o, or remove it first.",
        )
