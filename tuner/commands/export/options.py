"""``tuner export``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ExportOptions:
    """Write what a run measured as tables: curve, replays, requests, iterations.

    A trace is exported by tuner trace export. With --to mlflow the run becomes one of MLflow's:
    arguments as parameters, the curve as metrics whose step is max_num_seqs, the profile as an
    artifact.
    """

    run_dir: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", help="Folder of a run: runs/...", show_default=False),
    ]
    to: Annotated[
        Literal["csv", "parquet", "mlflow"], typer.Option(help="csv, parquet or mlflow.")
    ] = "csv"
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for the tables; default: RUN_DIR/export."),
    ] = None
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help="Of MLflow; default: what MLFLOW_TRACKING_URI says, or ./mlruns."
        ),
    ] = None
    experiment: Annotated[str, typer.Option(help="MLflow's, made if it is not there.")] = "tuner"
    force: Annotated[bool, typer.Option("--force", help="Overwrite tables that are there.")] = False
