"""``tuner watch``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuner.commands.shared.options import Json

FOREVER = "forever"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WatchOptions:
    """Compare a live server with a profile's promise, and today's traffic with the profile's.

    Prints still valid, drifting, re-tune now or not enough evidence, and why. Exits with 6 for
    re-tune now, with 5 for not enough evidence, with 4 when the server is gone, with 130 on Ctrl-C;
    else with 0.
    """

    profile: Annotated[Path, typer.Argument(help="Serving profile with a twin.")]
    url: Annotated[str, typer.Option(help="The live server.")]
    for_: Annotated[str, typer.Option("--for", help="How long to watch: 30m, 2h, or forever.")] = (
        "30m"
    )
    every: Annotated[str, typer.Option(help="Time between two readings of /metrics.")] = "2s"
    window: Annotated[str, typer.Option(help="Length of a window.")] = "60s"
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0, max=10.0, help="How much slower than its law a server may be: 0.1 is 10%."
        ),
    ] = 0.10
    served_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which model, where the server has several."),
    ] = None
    fail_on: Annotated[
        Literal["re-tune", "drifting"],
        typer.Option(help="The mildest verdict that exits with 6."),
    ] = "re-tune"
    run_dir: Annotated[
        Path | None, typer.Option(help="Append every window to windows.jsonl there.")
    ] = None
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve the verdict to Prometheus on this port."),
    ] = None
    json: Json = False
