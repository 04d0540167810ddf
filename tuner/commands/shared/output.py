"""The output of every command beside its console: JSON on stdout, a folder for files."""

import json
import sys
from pathlib import Path

from tuner.errors import TargetError


def print_json(found: object) -> None:
    """Print one JSON object on a line."""
    sys.stdout.write(json.dumps(found) + "\n")


def make_folder(folder: Path) -> None:
    """Make the folder of ``-o``, unless it is there. Raises TargetError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise TargetError(
            f"{folder}: cannot be a folder ({problem.strerror})", hint="Choose another -o."
        ) from None
