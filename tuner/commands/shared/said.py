"""Remembers the warnings that a command has said of a trace, so that none is said twice.

Whoever imports a trace, looks at it and sweeps it would read the same warning three times. What was
said is kept for some hours in the user's folder for state, by digests alone; where that cannot be
written, warnings are said again.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tuner.errors import TunerError
from tuner.system import files

KEPT_S = 12 * 3600.0


def not_said(trace: Path, warnings: Sequence[str]) -> list[str]:
    """Return the warnings that no command has said of this trace; from here on they are said."""
    now_s = datetime.now(UTC).timestamp()
    path = _file()
    said = {key: at_s for key, at_s in _read(path).items() if now_s - at_s < KEPT_S}
    keys = {text: _key(trace, text) for text in dict.fromkeys(warnings)}
    new = [text for text, key in keys.items() if key not in said]
    if new:
        with suppress(OSError, TunerError):
            path.parent.mkdir(parents=True, exist_ok=True)
            content = said | {keys[text]: now_s for text in new}
            files.write_atomically(path, json.dumps(content).encode())
    return new


def mark_said(trace: Path, warnings: Sequence[str]) -> None:
    """Note that a command said these warnings of this trace: others need not."""
    not_said(trace, warnings)


def _file() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(home) / "tuner" / "said.json"


def _key(trace: Path, text: str) -> str:
    return hashlib.sha256(f"{trace.resolve()}\0{text}".encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_bytes())
        return {str(key): float(at_s) for key, at_s in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
