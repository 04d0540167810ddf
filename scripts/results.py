"""What the studies share: their options, their workers, and how they keep and show results."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path


def parsed(parser: argparse.ArgumentParser, *, smoke: str) -> argparse.Namespace:
    """Return the options of a study; with --smoke they are these, whatever else is given."""
    parser.add_argument("--smoke", action="store_true", help=f"a quick try: the same as {smoke}")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the results as JSON")
    return parser.parse_args(shlex.split(smoke) if "--smoke" in sys.argv else None)


def workers(processes: int) -> Pool:
    """Return processes with one thread of OpenBLAS each: several threads that share the cores wait
    for each other in a loop, and a study takes up to seven times as long."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return get_context("spawn").Pool(processes)  # numpy reads it when it is imported: no fork


def keep(path: Path | None, found: object) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
