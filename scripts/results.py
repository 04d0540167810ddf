"""How the scripts show and keep what they measure."""

import json
from collections.abc import Sequence
from pathlib import Path


def keep(path: Path | None, results: object) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    return "\n".join([table_row(head), table_row(["---"] * len(head)), *map(table_row, rows)])


def table_row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
