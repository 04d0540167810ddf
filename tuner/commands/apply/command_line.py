"""The command line of ``tuner apply``, and how the files that it names are read."""

from dataclasses import dataclass
from pathlib import Path

from tuner.errors import TargetError
from tuner.system import files, yaml_strict


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """The command line."""

    profile: Path | None
    file: Path | None
    to: str | None
    container: str | None
    output: Path | None
    dry_run: bool
    exec: bool
    rollback: Path | None
    live_knob: bool
    admission_limits: bool
    force: bool
    json: bool
    canary: int | None = None
    """Percent of the traffic."""

    selector: str | None = None
    """Of servers in PromQL, for what watches them."""


def read_text(path: Path) -> str | None:
    if not files.resolve(path).exists():
        return None
    return yaml_strict.read(path, error=TargetError, missing="Run the command again.")
