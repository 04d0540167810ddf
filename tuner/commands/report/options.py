"""``tuner report``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReportOptions:
    """Write what a run or a profile says as one page, to be opened from disk.

    Verdict, curves, decode times, traffic, every step over time, and the data behind them. It needs
    no network, and without scripts it is whole; they add zoom and hover.
    """

    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR|PROFILE",
            help="Folder of a run, or a serving profile.",
            show_default=False,
        ),
    ]
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the page goes.")] = Path(
        "report.html"
    )
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output even if it is no report.")
    ] = False
