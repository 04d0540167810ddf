"""The result of a command, kept in its run's folder."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner.errors import RunError
from tuner.profile.verdict_block import VerdictBlock
from tuner.runs.journal import NO_SENSE
from tuner.system import files

NAME = "result.json"
"""In the run directory: the object that the command prints with ``--json``, and the verdict block
that it ends with."""


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


def keep_result(run_dir: Path, found: Mapping[str, Any], block: VerdictBlock) -> None:
    """Write the result of a run, and the block that says it. Raises TargetError."""
    whole = {**found, "block": asdict(block)}
    files.write_own(run_dir / NAME, (json.dumps(whole, indent=1) + "\n").encode())


def block_in(found: Mapping[str, Any]) -> VerdictBlock | None:
    """Return the verdict block of a result; None of an older tuner, which kept none. Raises one of
    NO_SENSE."""
    if (one := found.get("block")) is None:
        return None
    rows = [(name, text) for name, text in one["rows"]]
    block = VerdictBlock(one["title"], one["aside"], rows, one["next"])
    texts = (block.title, block.aside, block.next, *(text for row in rows for text in row))
    assert all(isinstance(text, str) for text in texts)
    return block


def block_of_run(run_dir: Path) -> VerdictBlock | None:
    """Return the verdict block that a command ended with; None where it kept none. Raises
    RunError."""
    if not (run_dir / NAME).exists():
        return None
    return block_in(read_result(run_dir, block_in)[0])


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
