"""What a command printed as JSON, kept in its run's folder."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuner.errors import RunError
from tuner.runs.journal import NO_SENSE
from tuner.system import files

NAME = "result.json"
"""In the run directory: the object that the command prints with ``--json``."""


@contextmanager
def making_sense(path: Path) -> Iterator[None]:
    """Raise RunError for what comes of events that tuner did not write."""
    try:
        yield
    except NO_SENSE as problem:
        raise RunError(
            f"{path}: an event makes no sense ({repr(problem)[:200]})",
            hint="Give the folder of a run as tuner wrote it.",
        ) from problem


def keep_result(run_dir: Path, found: Mapping[str, Any]) -> None:
    """Write the result of a run. Raises TargetError."""
    files.write_own(run_dir / NAME, (json.dumps(found, indent=1) + "\n").encode())


def read_result(
    run_dir: Path, check: Callable[[Mapping[str, Any]], object]
) -> tuple[dict[str, Any], str]:
    """Return the result of a run, and the text of its file. ``check`` reads all that is used of it,
    so that a file that makes no sense is refused. Raises RunError."""
    path = run_dir / NAME
    try:
        text = files.read_regular(path).decode()
        found = json.loads(text)
        check(found)
    except FileNotFoundError:
        raise RunError(
            f"{path}: is not there: the run has not ended", hint="Run the command to its end."
        ) from None
    except (OSError, *NO_SENSE) as problem:
        raise RunError(
            f"{path}: makes no sense ({repr(problem)[:200]})", hint="Run the command again."
        ) from None
    return dict(found), text
