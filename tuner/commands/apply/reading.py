"""Reads the files that ``tuner apply`` and ``tuner diff`` name."""

from pathlib import Path

from tuner.errors import TargetError
from tuner.rollout.beside import Folder
from tuner.rollout.targets.seam import Asked
from tuner.system import files, yaml_strict


def read_text(path: Path) -> str | None:
    """Return what is in a file; None where there is none. Raises TargetError."""
    if not files.resolve(path).exists():
        return None
    return yaml_strict.read(path, error=TargetError, missing="Run the command again.")


def asked_of(path: Path, *, container: str | None, at: str | None, trusted: bool = False) -> Asked:
    """Return which server of a file is meant, with the files beside it."""
    return Asked(
        str(path), container, at, trusted, beside=Folder(path.parent), home=str(Path.home())
    )
