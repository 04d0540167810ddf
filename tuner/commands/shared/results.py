"""The result of a command, kept in its run's folder: the object of ``--json``, and its page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tuner.errors import RunError
from tuner.runs.journal import NO_SENSE
from tuner.system import files
from tuner.views.page import Page
from tuner.views.text import plain, print_json, print_page

NAME = "result.json"


class _Result(msgspec.Struct):
    page: Page


def keep_result(run_dir: Path, result: Mapping[str, Any], page: Page) -> None:
    """Write the result of a run and its page. Raises TargetError."""
    content = msgspec.json.encode({**result, "page": page}, enc_hook=plain)
    files.write_own(run_dir / NAME, msgspec.json.format(content, indent=1) + b"\n")


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
        print_page(page)


def kept_page(run_dir: Path) -> Page | None:
    """Return the page that a command ended with; None of a run that has not ended. Raises
    RunError."""
    path = run_dir / NAME
    try:
        return msgspec.json.decode(files.read_regular(path), type=_Result).page
    except FileNotFoundError:
        return None
    except (OSError, *NO_SENSE) as problem:
        raise RunError(
            f"{path}: cannot be read ({str(problem)[:200]})", hint="Run the command again."
        ) from None
