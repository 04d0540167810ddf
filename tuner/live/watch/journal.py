"""The journal of a watch: RUN_DIR/windows.jsonl, one object a line, written window by window."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tuner.errors import RunError
from tuner.system import files

NAME = "windows.jsonl"


class WindowJournal:
    """Appends to a run directory, which is made if it is not there, for its owner alone. Raises
    RunError, and TargetError for a link or a pipe in the journal's place.

    A watch that continues in the same directory writes another ``begin``.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / NAME
        try:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            # unbuffered: what could not be written must not be tried again at the end
            self._file: IO[bytes] = open(self._path, "ab", buffering=0, opener=files.opened_own)  # noqa: SIM115
        except OSError as problem:
            raise self._cannot(problem) from None

    def append(self, event: str, content: Mapping[str, object]) -> None:
        """Write one line; it is on disk when this returns. Raises RunError where that cannot be."""
        line = json.dumps(plain({"event": event, **content}), allow_nan=False) + "\n"
        rest = memoryview(line.encode())
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as problem:
            raise self._cannot(problem) from None

    def close(self) -> None:
        self._file.close()

    def _cannot(self, problem: OSError) -> RunError:
        return RunError(
            f"{self._path}: cannot be written: {(problem.strerror or str(problem)).lower()}",
            hint="Free some space, or give another --run-dir.",
        )


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON content
    """Return it as JSON can hold it: six digits, null for what is no number."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
