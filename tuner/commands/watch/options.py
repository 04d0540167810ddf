"""``tuner watch``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tuner.commands.shared.options import Json, Require

FOREVER = "forever"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WatchOptions:
    """Hold a live server against a profile's promise, and today's traffic against the profile's.

    Says still valid, drifting, re-tune now or not enough evidence, and why. With --canary: promote,
    roll back or undecided. Exits with 6 for re-tune now and roll back, with 5 for not enough
    evidence and undecided, with 4 when the server is gone, with 130 on Ctrl-C; else with 0.
    """

    profile: Annotated[Path, typer.Argument(help="Serving profile with a twin.")]
    url: Annotated[str, typer.Option(help="The live server; with --canary the baseline.")]
    canary: Annotated[
        str | None, typer.Option(help="A second server, to be compared with --url.")
    ] = None
    for_: Annotated[str, typer.Option("--for", help="How long to watch: 30m, 2h, or forever.")] = (
        "30m"
    )
    every: Annotated[str, typer.Option(help="Time between two readings of /metrics.")] = "2s"
    window: Annotated[str, typer.Option(help="Length of a window.")] = "10s"
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=10.0,
            help="How much slower than its law, or a canary than its baseline, is kept: 0.1 is "
            "10 %.",
        ),
    ] = 0.10
    require: Require = ()
    served_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which model, where the server has several."),
    ] = None
    fail_on: Annotated[
        Literal["re-tune", "drifting"],
        typer.Option(help="The mildest verdict that exits with 6, without --canary."),
    ] = "re-tune"
    rollback: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Restore FILE, into which tuner apply wrote this profile, when the canary fails "
            "or the server breaks the promise.",
        ),
    ] = None
    run_dir: Annotated[
        Path | None, typer.Option(help="Append every window to windows.jsonl there.")
    ] = None
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve the verdict to Prometheus on this port."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the requests the twin gets.")] = 0
    json: Json = False
