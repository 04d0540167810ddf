"""``tuner refine``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import (
    IN_PLAN,
    Budget,
    Confirmed,
    ConfirmedBase,
    Details,
    Engine,
    Headroom,
    Json,
    Replicas,
    Require,
    Resume,
    Router,
    Window,
    World,
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RefineOptions:
    """Search around a profile's knee, and keep what a comparison in turns proves to be better.

    Cap and token budget change live; other arguments take engines of their own. The knee stays
    where no gain is proven. Everything measured is kept, and --resume goes on.
    """

    profile: Annotated[Path, typer.Argument(help="Serving profile to refine.")]
    trace: Annotated[Path, typer.Option(help="Trace to replay: the one that was tuned for.")]
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where the refined profile goes.")
    ] = Path("refined.yaml")
    search: Annotated[
        tuple[str, ...],
        typer.Option(
            metavar="KEY=VALUES",
            help="Engine argument to search: a,b,c or low:high[:log|:step]; repeatable.",
        ),
    ] = ()
    objective: Annotated[
        str,
        typer.Option(help="goodput, throughput, e2el, tpot or ttft."),
        IN_PLAN,
    ] = "goodput"
    engine: Engine = "vllm"
    world: World = None
    require: Require = ()
    budget: Budget = "20m"
    step: Annotated[
        str, typer.Option(help="How long each trial replays: 6s at least."), IN_PLAN
    ] = "60s"
    window: Window = "all"
    headroom: Headroom = 1.25
    replicas: Replicas = 1
    router: Router = "least"
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Optuna storage that keeps the trials: a file, or postgresql://…"
        ),
    ] = None
    resume: Resume = False
    run_dir: Annotated[
        Path | None, typer.Option(help="Where measurements are kept; default: runs/refine-…")
    ] = None
    force: Annotated[
        bool, typer.Option(help="Refine on another machine or vLLM than measured.")
    ] = False
    overrides: Confirmed = ()
    base: ConfirmedBase = None
    details: Details = False
    json: Json = False
