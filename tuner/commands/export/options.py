"""``tuner export``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExportOptions:
    """Write what a run measured as tables: curve, replays, requests, iterations."""

    run_dir: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", help="Folder of a run: runs/...", show_default=False),
    ]
    to: Annotated[Literal["csv", "parquet"], typer.Option(help="csv or parquet.")] = "csv"
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for the tables; default: RUN_DIR/export."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite tables that are there.")] = False
