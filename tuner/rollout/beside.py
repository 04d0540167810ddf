"""The files in and near the folder of the one that is edited: only read, and only where named."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.errors import TargetError
from tuner.system import files, yaml_strict

_MOST = 64
"""Files that a pattern may find; more is no deployment's folder."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of a folder: ``targets.seam.Beside`` of real files."""

    path: Path
    _read: dict[str, str | None] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Return what is in a file; None where there is none, or none that can be read."""
        if name not in self._read:
            self._read[name] = self._content(name)
        return self._read[name]

    def _content(self, name: str) -> str | None:
        path = self.path / name
        try:
            if not files.resolve(path).is_file():
                return None
            return yaml_strict.read(path, error=TargetError, missing="")
        except (TargetError, OSError):
            return None

    def shortest(self, path: str) -> str:
        return os.path.relpath(self.path / path, self.path)

    def names(self, pattern: str) -> Sequence[str]:
        """Return the paths that fit a pattern, in order; ``..`` leads upwards."""
        above, within = self.path, pattern
        while within.startswith("../"):
            above, within = above / "..", within.removeprefix("../")
        depth = pattern.count("../")
        try:
            found = sorted(above.glob(within))[:_MOST]
        except (OSError, ValueError):
            return ()
        return ["../" * depth + str(one.relative_to(above)) for one in found]
