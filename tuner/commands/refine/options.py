"""``tuner refine``: its options."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import (
    Budget,
    Engine,
    Headroom,
    Json,
    Replicas,
    Resume,
    Router,
    Window,
    World,
)
from tuner.errors import UsageError

MOST_SEED = 2**32 - 1
"""That the sampler takes."""


def refine(  # noqa: PLR0913 - one parameter an option
    profile: Annotated[Path, typer.Argument(help="Serving profile to refine.")],
    *,
    trace: Annotated[
        list[Path],
        typer.Option(metavar="<path>", help="Trace to replay: the one that was tuned for."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where the refined profile goes.")
    ] = Path("refined.yaml"),
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Engine argument to search: a,b,c or low:high[:log|:step]; repeatable.",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(help="goodput, throughput, e2el, tpot or ttft; two with a comma: the front."),
    ] = "goodput",
    engine: Engine = "vllm",
    world: World = None,
    budget: Budget = "20m",
    step: Annotated[str, typer.Option(help="How long each trial replays: 6s at least.")] = "60s",
    window: Window = "all",
    headroom: Headroom = 1.25,
    replicas: Replicas = 1,
    router: Router = "least",
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Optuna storage to share; default: a file in the run directory."
        ),
    ] = None,
    resume: Resume = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where measurements are kept; default: runs/refine-…")
    ] = None,
    force: Annotated[
        bool, typer.Option(help="Refine on another machine or vLLM than measured.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|local", help="Make the trials on a Ray cluster's nodes; docs/ray.md."
        ),
    ] = None,
    ray_engines: Annotated[
        int | None,
        typer.Option(min=1, help="Engines at a time there; default: all it has room for."),
    ] = None,
    ray_cpus: Annotated[
        int | None, typer.Option(min=1, help="CPUs of an engine there; default: 1, or 1 a rank.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Of prompts, routing and the sampler.")
    ] = 0,
    json_: Json = False,
) -> None:
    """Search around a profile's knee, and keep what a comparison in turns proves to be better.

    Cap and token budget change live; other arguments take engines of their own. The knee stays
    where no gain is proven. Everything measured is kept, and --resume goes on.
    """
    from tuner.commands.refine.run import run  # noqa: PLC0415 - keeps --help light
    from tuner.commands.refine.setup import RefineOptions  # noqa: PLC0415

    run(
        RefineOptions(
            profile=profile,
            trace=_the_only(trace),
            output=output,
            search=tuple(search or ()),
            objective=objective,
            engine=engine,
            world=world,
            budget=budget,
            step=step,
            window=window,
            headroom=headroom,
            replicas=replicas,
            router=router,
            storage=storage,
            resume=resume,
            run_dir=run_dir,
            force=force,
            ray=ray,
            ray_engines=ray_engines,
            ray_cpus=ray_cpus,
            seed=seed,
            json=json_,
        )
    )


def _the_only(traces: Sequence[Path]) -> Path:
    """Return the trace. Raises UsageError for several: a profile is of one."""
    if len(traces) > 1:
        raise UsageError(
            f"--trace is there {len(traces)} times: one profile is refined for one trace",
            hint="Tune several together with tuner sweep, and refine each profile by itself.",
        )
    return traces[0]
