"""``tuner plan``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuner.commands.shared.options import Details, Json, Require, times


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanOptions:
    """Ask the twin in a profile about another load, other caps, or a fleet.

    Says what every max_num_seqs would give there, with error bars, and how many replicas the load
    needs. Nothing is run: it is a forecast, as good as the twin's error in the profile.
    """

    profile: Annotated[Path, typer.Argument(help="Serving profile with a twin.")]
    load: Annotated[
        float | None,
        typer.Option(
            parser=times,
            metavar="TIMES",
            help="All of the traffic, as a multiple of the profile's: 1.5, 1.5x or 150%; "
            "default: 1.",
        ),
    ] = None
    rps: Annotated[
        float | None, typer.Option(help="The same in requests per second: 5000 for a fleet.")
    ] = None
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="Servers that share the traffic; default: what it needs."
        ),
    ] = None
    router: Annotated[
        Literal["least", "rr", "random"], typer.Option(help="How requests reach replicas.")
    ] = "least"
    require: Require = ()
    details: Details = False
    json: Json = False
