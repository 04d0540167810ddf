"""``tuner diff``: in what a profile differs from another, or from what is deployed or running."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import Json


def diff(  # noqa: PLR0913 - one parameter an option
    profile: Annotated[Path, typer.Argument(help="Serving profile.")],
    other: Annotated[
        Path | None, typer.Argument(help="Another profile, or a file to deploy with.")
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(help="A running server in place of OTHER.")] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Kind of OTHER, as in tuner apply; default: found out."),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which container, service, model or variable of OTHER."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 6 when they differ, for CI.")
    ] = False,
    json_: Json = False,
) -> None:
    """Say in what another profile, or what is deployed, differs from a profile, and the evidence.

    Of a file: the engine arguments that tuner apply would change, and what was measured elsewhere.
    A server tells its version, its model and what became of the arguments of its KV cache; what
    it does not tell is said.
    """
    from tuner.commands.diff.run import DiffOptions, run  # noqa: PLC0415 - keeps --help light

    run(
        DiffOptions(
            profile=profile,
            other=other,
            url=url,
            to=to,
            container=container,
            check=check,
            json=json_,
        )
    )
