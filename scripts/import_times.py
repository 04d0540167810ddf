"""Hold what the commands import against another tree: scripts/import_times.py --before DIR.

Both trees are run by the Python that runs this script, in turns, and what counts is the CPU time
of the whole process: neighbours disturb it less than the clock. A command is started in two ways:

program  as a user does, with a file that is not there; --help as it is
import   the module that does its work is imported, and nothing else

The table has the least and the median of each tree, in milliseconds, and now over before. Where a
median is more than --most times the other tree's, the script exits with 1.

    git worktree add /tmp/before 98e8aa2        # the last tree before the rooms
    python scripts/import_times.py --before /tmp/before
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 1.2
RUNS = 15
MAIN = "from tuner.cli import main; main()"

GIVEN = {
    "--help": "",
    "sweep": "--trace none.jsonl",
    "refine": "none.yaml --trace none.jsonl",
    "apply": "none.yaml serve.yaml",
    "diff": "none.yaml serve.yaml",
    "plan": "none.yaml",
    "verify": "none.yaml --trace none.jsonl",
    "watch": "none.yaml --url http://127.0.0.1:9",
    "compare": "--trace none.jsonl",
    "trace": "show none.jsonl",
    "capture": "join none.jsonl -o joined.jsonl",
}
"""Command → words after it, with which it ends at a file that is not there."""


def worker(tree: Path, command: str) -> str:
    """Return the module that does a command's work; before the rooms it had another name."""
    folder = tree / "tuner" / "commands" / command
    return f"tuner.commands.{command}.run" if folder.is_dir() else f"tuner.commands.{command}_run"


def programs(tree: Path) -> dict[tuple[str, str], list[str]]:
    """Return (command, way) → the arguments of Python."""
    found = {}
    for command, given in GIVEN.items():
        found[command, "program"] = ["-c", MAIN, command, *given.split()]
        if command != "--help":
            found[command, "import"] = ["-c", f"import {worker(tree, command)}"]
    return found


def cpu_ms(tree: Path, arguments: list[str], folder: Path) -> float:
    """Run Python on a tree and return the CPU time that it took, of user and system."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "Traceback" in done.stderr or "Usage:" in done.stderr:
        sys.exit(f"{tree}: {' '.join(arguments)}: {done.stderr}")
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--before", type=Path, required=True, help="the other tree")
    options.add_argument("--now", type=Path, default=ROOT, help="the tree; default: this one")
    options.add_argument("--runs", type=int, default=RUNS, help="of each, after one unmeasured")
    options.add_argument("--most", type=float, default=MOST)
    options.add_argument("commands", nargs="*", help="default: all")
    asked = options.parse_args()
    before, now = asked.before.resolve(), asked.now.resolve()
    trees = {before: programs(before), now: programs(now)}
    taken_ms: dict[tuple[Path, str, str], list[float]] = defaultdict(list)
    cases = [one for one in trees[now] if not asked.commands or one[0] in asked.commands]
    with tempfile.TemporaryDirectory() as folder:
        for run in range(asked.runs + 1):
            for command, way in cases:
                for tree, arguments in trees.items():
                    took_ms = cpu_ms(tree, arguments[command, way], Path(folder))
                    if run:  # the first one writes the bytecode
                        taken_ms[tree, command, way].append(took_ms)
    worst = 0.0
    print(f"{'':17}  {'least, ms':>17}  {'':5}  {'median, ms':>17}")
    print(f"{'':17}  {'before':>8} {'now':>8}  {'':5}  {'before':>8} {'now':>8}")
    for command, way in cases:
        old_ms, new_ms = taken_ms[before, command, way], taken_ms[now, command, way]
        least, median = (_cells(of(old_ms), of(new_ms)) for of in (min, statistics.median))
        print(f"{command:9}{way:8}  {least}  {median}")
        worst = max(worst, statistics.median(new_ms) / statistics.median(old_ms))
    sys.exit(worst > asked.most)


def _cells(old_ms: float, new_ms: float) -> str:
    return f"{old_ms:8.0f} {new_ms:8.0f}  {new_ms / old_ms:5.2f}"


if __name__ == "__main__":
    main()
