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
    DryRun,
    Engine,
    Headroom,
    Json,
    Replicas,
    Require,
    Resume,
    Router,
    StartTimeout,
    Window,
    World,
)
from tuner.errors import UsageError

MOST_SEED = 2**32 - 1
"""That the sampler takes."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RefineOptions:
    """Search around a profile's knee, and keep what a comparison in turns proves to be better.

    Cap and token budget change live; other arguments take engines of their own. The knee stays
    where no gain is proven. Everything measured is kept, and --resume goes on.
    """

    profile: Annotated[Path, typer.Argument(help="Serving profile to refine.")]
    traces: Annotated[
        tuple[Path, ...],
        typer.Option(
            "--trace", metavar="<path>", help="Trace to replay: the one that was tuned for."
        ),
    ]
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
        typer.Option(help="goodput, throughput, e2el, tpot or ttft; two with a comma: the front."),
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
            metavar="URL", help="Optuna storage to share; default: a file in the run directory."
        ),
    ] = None
    resume: Resume = False
    run_dir: Annotated[
        Path | None, typer.Option(help="Where measurements are kept; default: runs/refine-…")
    ] = None
    force: Annotated[
        bool, typer.Option(help="Refine on another machine or vLLM than measured.")
    ] = False
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|local", help="Make the trials on a Ray cluster's nodes; docs/more.md."
        ),
    ] = None
    ray_engines: Annotated[
        int | None,
        typer.Option(min=1, help="Engines at a time there; default: all it has room for."),
    ] = None
    ray_cpus: Annotated[
        int | None, typer.Option(min=1, help="CPUs of an engine there; default: 1, or 1 a rank.")
    ] = None
    overrides: Confirmed = ()
    base: ConfirmedBase = None
    start_timeout: StartTimeout = None
    seed: Annotated[
        int,
        typer.Option(min=0, max=MOST_SEED, help="Of prompts, routing and the sampler."),
        IN_PLAN,
    ] = 0
    dry_run: DryRun = False
    details: Details = False
    json: Json = False

    def __post_init__(self) -> None:
        if len(self.traces) > 1:
            raise UsageError(
                f"--trace is there {len(self.traces)} times: one profile is refined for one trace",
                hint="Tune several together with tuner sweep, and refine each profile by itself.",
            )

    @property
    def trace(self) -> Path:
        return self.traces[0]
