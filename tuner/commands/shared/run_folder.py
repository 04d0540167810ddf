"""The folder of a run: made, opened again, and removed when the run is refused."""

import asyncio
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


def open_run(command: str, options: Any, plan: Mapping[str, Any]) -> journal.Journal:  # noqa: ANN401
    """Open the journal of a new run, or of the one in ``--run-dir``, which continues under the same
    plan. The words of the command are kept with it, without secrets. Raises RunError."""
    words = [command, *public_words(as_typed(replace(options, run_dir=None)))]
    if (run_dir := options.run_dir) is None:
        name = options.trace.stem if command == "sweep" else f"{command}-{options.trace.stem}"
        run_dir = Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    if is_begun(run_dir):
        check_command(journal.read(run_dir), command)
        book = journal.resume(run_dir, plan, command=words)
        sys.stderr.write(f"{printable(str(run_dir))}: continues where it ended\n")
        return book
    return journal.create(run_dir, plan, command=words)


def open_each(
    book: journal.Journal, plans: Mapping[str, Mapping[str, Any]]
) -> dict[str, journal.Journal]:
    """Open each part's journal inside the run's folder: the one that is there, or a new one."""
    books: dict[str, journal.Journal] = {}
    for name, plan in plans.items():
        run_dir = book.run_dir / name
        files.make_own(run_dir)
        words = book.planned.command
        if is_begun(run_dir):
            books[name] = journal.resume(run_dir, plan, command=words)
        else:
            books[name] = journal.create(run_dir, plan, command=words, is_part=True)
    return books


def is_begun(run_dir: Path) -> bool:
    """Whether the folder holds a run. Raises RunError where there can be none."""
    path = run_dir / journal.JOURNAL
    try:
        return path.exists() and path.stat().st_size > 0
    except OSError as problem:  # too long a name, a folder that must not be looked into
        why = (problem.strerror or str(problem)).lower()
        raise RunError(f"{run_dir}: {why}", hint="Name another folder.") from None


def resume_command(book: journal.Journal) -> str:
    """Return the command that continues a run; of a part, the run that it is part of."""
    is_part = book.planned.is_part
    return command_line("resume", book.run_dir.parent if is_part else book.run_dir)


def check_command(book: journal.Journal, command: str) -> None:
    """Raise RunError when the run is another command's."""
    if (its := command_of(book)) not in {command, None}:
        raise RunError(
            f"{book.run_dir}: is the run of tuner {its}, not of tuner {command}",
            hint=f"Name the folder of a run of tuner {command}.",
        )


def command_of(book: journal.Journal) -> str | None:
    """Return the command whose run this is; None where it was not kept."""
    return next(iter(book.planned.command), None)


def read_run(run_dir: Path) -> journal.Journal:
    """Return the journal of a run's folder. Raises RunError."""
    if not is_begun(run_dir):
        raise RunError(
            f"{run_dir}: is not a run directory: it has no journal.jsonl",
            hint="Give the folder of a run, such as runs/prod-1.",
        )
    return journal.read(run_dir)


@contextmanager
def making_sense(run_dir: Path, *, is_stored: bool) -> Iterator[None]:
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
