"""``tuner report``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReportOptions:
    """Write a run or a profile as one page, to be opened from disk.

    Verdict, curves, decode times, traffic, and every step over time. It needs no network and no
    scripts.
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
