"""The folders of machines, and the sweeps of them that tests share."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.outside.table import Done, run

HERE = Path(__file__).parent
MACHINES = sorted(path.parent.name for path in HERE.glob("*/world.yaml"))


@dataclass(frozen=True)
class Sweep:
    """A finished one: the folder has ``profile.yaml`` and the run directory ``run``."""

    folder: Path
    done: Done


Swept = Callable[[str], Sweep]


def options(name: str) -> list[str]:
    """Return the words of a machine's sweep, whatever folder it is run in."""
    words = shlex.split((HERE / name / "options").read_text())
    given = [str((HERE / name / word).resolve()) if word[:3] == "../" else word for word in words]
    return ["--world", str(HERE / name / "world.yaml"), *given]


def sweep(folder: Path, name: str, *more: object) -> Done:
    return run(folder, "sweep", *options(name), "--run-dir", "run", "--json", *more)
