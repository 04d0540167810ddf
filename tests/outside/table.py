"""The program as this suite knows it: commands, options, files, and two ways to run it.

Tests write the words on the left of these tables. A renamed command, option or file is one line.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.in_process import tuner

COMMANDS = {
    "sweep": "sweep",
    "refine": "refine",
    "compare": "compare",
    "doctor": "doctor",
    "show": "show",
    "plan": "plan",
    "verify": "verify",
    "apply": "apply",
    "rollback": "apply --rollback",
    "live": "live",
    "watch": "watch",
    "resume": "resume",
    "trace show": "trace show",
    "trace import": "trace import",
    "trace cut": "trace cut",
    "history": "trace import",
    "join": "trace import",
}
"""What the suite calls a command, and the words that call it."""

OPTIONS: dict[str, str] = {}
"""Options that have another name by now: `"--world": "--machine"`."""

JOURNAL = "journal.jsonl"
REPLAYS = "replays"
"""In a run directory."""

OK, USAGE, BAD_INPUT, ENGINE_FAILED, UNDECIDED, GATE_FAILED, INTERRUPTED = 0, 2, 3, 4, 5, 6, 130

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
"""Data of third parties, on some machines only: skip where it is not there."""


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and its two streams."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - any document
        return json.loads(self.stdout)

    @property
    def error(self) -> str:
        """The error and its cure, after a check that they are two lines and no traceback."""
        assert self.code not in {OK, 1}, self.stderr
        assert "Traceback" not in self.stderr
        start = self.stderr.rindex("Error: ")
        lines = self.stderr[start:].splitlines()
        assert len(lines) <= 2, self.stderr
        assert all(line.isprintable() for line in lines), self.stderr
        return self.stderr[start:]


def words(command: str, *options: object) -> list[str]:
    """Return the words of a command of ``COMMANDS`` with options, as the program has them now."""
    return [
        *COMMANDS.get(command, command).split(),
        *(OPTIONS.get(str(each), str(each)) for each in options),
    ]


def run(folder: Path, command: str, *options: object) -> Done:
    """Run a command in ``folder``, in this process: without a second of imports."""
    done = tuner(folder, *words(command, *options))
    return Done(done.returncode, done.stdout, done.stderr)


def start(folder: Path, command: str, *options: object, **env: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own, which leads its group."""
    return subprocess.Popen(
        [Path(sys.executable).with_name("tuner"), *words(command, *options)],
        cwd=folder, env={**os.environ, **env}, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], timeout_s: float = 60) -> Done:
    """Wait for a process, and return what it left."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Done(process.returncode, out, err)
