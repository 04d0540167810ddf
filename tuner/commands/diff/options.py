"""``tuner diff``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import Json


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DiffOptions:
    """Say in what another profile, or what is deployed, differs from a profile, and the evidence.

    Of a file: the engine arguments that tuner apply would change, and what was measured elsewhere.
    A server tells its version, its model and what became of the arguments of its KV cache; what
    it does not tell is said.
    """

    profile: Annotated[Path, typer.Argument(help="Serving profile.")]
    other: Annotated[
        Path | None, typer.Argument(help="Another profile, or a file to deploy with.")
    ] = None
    url: Annotated[str | None, typer.Option(help="A running server in place of OTHER.")] = None
    to: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Kind of OTHER, as in tuner apply; default: found out."),
    ] = None
    container: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which container, service, model or variable of OTHER."),
    ] = None
    at: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Where vLLM's arguments are in the values of a chart."),
    ] = None
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 6 when they differ, for CI.")
    ] = False
    json: Json = False
