"""``tuner show``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import Details


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ShowOptions:
    """Say in twelve lines what a serving profile sets, gives, costs and rests on."""

    profile: Annotated[Path, typer.Argument(help="Serving profile, as tuner sweep wrote it.")]
    flags: Annotated[
        bool,
        typer.Option("--flags", help="Print only vLLM's flags, to paste behind the model."),
    ] = False
    details: Details = False
