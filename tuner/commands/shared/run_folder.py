"""The folder of a run: made, opened again, removed when the run is refused; its result and page."""

import asyncio
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from tuner.commands.shared.next_step import command as command_line
from tuner.commands.shared.options import as_typed
from tuner.errors import (
    EngineError,
    GateError,
    Interrupted,
    ProfileError,
    RunError,
    TraceError,
    UsageError,
)
from tuner.runs import journal
from tuner.runs.journal import Probed, Replayed
from tuner.system import files, interruption
from tuner.system.passwords import public_words
from tuner.system.printable import printable
from tuner.views.page import Page
from tuner.views.text import plain, print_json, print_page

RESULT = "result.json"
"""The object of ``--json``, with the page of the result."""


def open_run(command: str, options: Any, plan: Mapping[str, Any]) -> journal.Journal:  # noqa: ANN401
    """Open the journal of a new run, or of the one in ``--run-dir``, which continues under the same
    plan. The words of the command are kept with it, without secrets. Raises RunError."""
    words = [command, *public_words(as_typed(replace(options, run_dir=None)))]
    if (run_dir := options.run_dir) is None:
        name = options.trace.stem if command == "sweep" else f"{command}-{options.trace.stem}"
        run_dir = Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    elif is_begun(run_dir):
        check_command(journal.read(run_dir), command)
        sys.stderr.write(f"{printable(str(run_dir))}: continues where it ended\n")
    return journal.opened(run_dir, plan, command=words)


def is_begun(run_dir: Path) -> bool:
    """Whether the folder holds a run. Raises RunError where there can be none."""
    path = run_dir / journal.JOURNAL
    try:
        return path.exists() and path.stat().st_size > 0
    except OSError as problem:  # too long a name, a folder that must not be looked into
        why = (problem.strerror or str(problem)).lower()
        raise RunError(f"{run_dir}: {why}", hint="Name another folder.") from None


def check_command(book: journal.Journal, command: str) -> None:
    """Raise RunError when the run is another command's."""
    its = next(iter(book.planned.command), command)
    if its != command:
        raise RunError(
            f"{book.run_dir}: is the run of tuner {its}, not of tuner {command}",
            hint=f"Name the folder of a run of tuner {command}.",
        )


def read_run(run_dir: Path) -> journal.Journal:
    """Return the journal of a run's folder. Raises RunError."""
    if not is_begun(run_dir):
        raise RunError(
            f"{run_dir}: is not a run directory: it has no journal.jsonl",
            hint="Give the folder of a run, such as runs/prod-1.",
        )
    return journal.read(run_dir)


@contextmanager
def making_sense(run_dir: Path, *, is_stored: bool = True) -> Iterator[None]:
    """Raise RunError for what comes of a stored run that tuner did not write."""
    try:
        yield
    except journal.NO_SENSE as problem:
        if not is_stored:
            raise
        raise RunError(
            f"{run_dir}: cannot be read as a run ({printable(repr(problem))[:200]})",
            hint="Start again in another --run-dir.",
        ) from problem


@contextmanager
def kept(book: journal.Journal, *parts: journal.Journal) -> Iterator[None]:
    """Close the journal, and those of the run's parts, in the end.

    A run that was refused before anything was measured leaves nothing in a folder of its own.
    Raises Interrupted, with the command that continues, where the user or a signal ended the run,
    and RunError for what comes of a resumed run's events that tuner did not write.
    """
    books = (book, *parts)

    def words() -> interruption.Words:
        replays = sum(len(list(part.of(Replayed))) for part in books)
        kept = f"{replays} replay{' is' if replays == 1 else 's are'} kept in {book.run_dir}"
        return kept, f"Continue with: {command_line('resume', book.run_dir)}"

    interruption.say_at_the_end(words)
    try:
        with making_sense(book.run_dir, is_stored=book.before is None):
            yield
    except (KeyboardInterrupt, asyncio.CancelledError, EngineError) as cause:
        if isinstance(cause, EngineError) and not interruption.happened():
            raise
        text, hint = words()
        raise Interrupted(text, hint=hint) from None
    except (UsageError, TraceError, ProfileError, GateError) as problem:  # not of a full disk
        is_measured = any(isinstance(e, Probed | Replayed) for each in books for e in each.events)
        if not is_measured and book.before == frozenset():
            shutil.rmtree(book.run_dir, ignore_errors=True)
        elif is_measured and isinstance(problem, UsageError):
            problem.hint += f" What was measured is kept in {book.run_dir}: tuner resume."
        raise
    finally:
        for each in books:
            each.close()


def keep_result(run_dir: Path, result: Mapping[str, Any], page: Page) -> None:
    """Write the result of a run and its page. Raises TargetError."""
    content = msgspec.json.encode({**result, "page": page}, enc_hook=plain)
    files.write_own(run_dir / RESULT, msgspec.json.format(content, indent=1) + b"\n")


def finish(
    options: Any,  # noqa: ANN401 - any command's
    result: Mapping[str, Any],
    page: Page,
    run_dir: Path | None = None,
) -> None:
    """Keep a result in its run's folder, and print it or, with ``--json``, its object."""
    if run_dir is not None:
        keep_result(run_dir, result, page)
    if options.json:
        print_json(result)
    else:
        print_page(page, details=run_dir is None)  # of a run tuner show prints the rest


def kept_page(run_dir: Path) -> Page | None:
    """Return the page that a command ended with; None of a run that has not ended. Raises
    RunError."""
    path = run_dir / RESULT
    try:
        return msgspec.convert(msgspec.json.decode(files.read_regular(path))["page"], Page)
    except FileNotFoundError:
        return None
    except (OSError, *journal.NO_SENSE) as problem:
        raise RunError(
            f"{path}: cannot be read ({str(problem)[:200]})", hint="Run the command again."
        ) from None
