"""``tuner show``: its options."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import Details, options_of_command


@options_of_command
class ShowOptions:
    """Say in twelve lines what a serving profile sets, gives, costs and rests on."""

    profile: Annotated[Path, typer.Argument(help="Serving profile, as tuner sweep wrote it.")]
    flags: Annotated[
        bool,
        typer.Option("--flags", help="Print only vLLM's flags, to paste behind the model."),
    ] = False
    details: Details = False
