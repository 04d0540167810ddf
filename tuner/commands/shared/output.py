"""The output of every command beside its console: JSON on stdout, a folder for files."""

import json
import math
import sys
from pathlib import Path

from tuner.errors import TargetError


def print_json(document: object) -> None:
    """Print one JSON object on a line; what is no number becomes null."""
    sys.stdout.write(json.dumps(_finite(document), allow_nan=False) + "\n")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_folder(folder: Path) -> None:
    """Make the folder of ``-o``, unless it is there. Raises TargetError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise TargetError(
            f"{folder}: cannot be a folder ({problem.strerror})", hint="Choose another -o."
        ) from None
