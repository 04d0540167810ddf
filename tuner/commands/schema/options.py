"""``tuner schema``: its options."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SchemaOptions:
    """Print the JSON Schema of a file, for editors and for CI.

    It says what one value may be. What several must agree on, such as a profile's digest, the
    command says that reads the file.
    """

    of: Annotated[
        Literal["profile", "trace", "sweep-json"],
        typer.Argument(
            metavar="{profile|trace|sweep-json}",
            help="A serving profile, one line of a trace, or what tuner sweep --json prints.",
        ),
    ]
