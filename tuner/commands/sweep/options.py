"""``tuner sweep``: replay a trace at growing max_num_seqs and stop at the knee."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import (
    IN_PLAN,
    Base,
    Budget,
    Details,
    DryRun,
    Headroom,
    Json,
    Overrides,
    Replicas,
    Require,
    Resume,
    Router,
    RunDir,
    SamplingText,
    ServedEngine,
    Window,
    World,
)

AUTO = 0
"""The ceiling that is found by the traffic, the memory and the server's default."""


def ceiling_in(text: str | int) -> int:
    """Return the ceiling that is written; AUTO for ``auto``. Raises typer.BadParameter.

    >>> ceiling_in("64"), ceiling_in("auto") == AUTO
    (64, True)
    """
    if str(text).strip().lower() == "auto":
        return AUTO
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise typer.BadParameter(f"{text!r} is no ceiling: give auto, or a number from 1")
    return value


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepOptions:
    """Find the right max_num_seqs for a trace and write a serving profile.

    One engine walks the caps 1, 2, 4, ... live; a fresh one confirms the choice. Everything
    measured is kept in the run directory, and --resume goes on after an interruption.
    """

    trace: Annotated[
        Path | None, typer.Option(help="Trace to replay; see `tuner trace import`.")
    ] = None
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where the serving profile goes.")
    ] = Path("profile.yaml")
    model: Annotated[
        str | None, typer.Option(help="Model; before --base and the trace's header.")
    ] = None
    base: Base = None
    overrides: Overrides = ()
    sampling: SamplingText = None
    engine: ServedEngine = "vllm"
    world: World = None
    ceiling: Annotated[
        int,
        typer.Option(
            parser=ceiling_in,
            metavar="N|auto",
            help="Largest max_num_seqs to try; auto: by the traffic, the KV cache and the server.",
        ),
        IN_PLAN,
    ] = 32
    slo: Annotated[
        str | None,
        typer.Option(help="ttft=500ms,tpot=50ms,e2el=10s; default: derived on the engine."),
        IN_PLAN,
    ] = None
    require: Require = ()
    budget: Budget = "15m"
    window: Window = "all"
    step: Annotated[str, typer.Option(help="How long a step replays: 6s at least."), IN_PLAN] = (
        "60s"
    )
    replicas: Replicas = 1
    router: Router = "least"
    headroom: Headroom = 1.25
    closed_sessions: Annotated[
        bool,
        typer.Option(help="A session's turn waits for the one before it, plus its think time."),
        IN_PLAN,
    ] = False
    resume: Resume = False
    run_dir: RunDir = None
    rescore: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR", help="No engine: rescore a stored run under another --slo."
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|local",
            help="A sweep and a profile for each kind of node of a Ray cluster; docs/more.md.",
        ),
    ] = None
    prices: Annotated[
        str | None,
        typer.Option(metavar="KIND=PRICE,…", help="Per GPU and hour: what a million tokens cost."),
    ] = None
    dry_run: DryRun = False
    details: Details = False
    force: Annotated[bool, typer.Option(help="Overwrite the output even if it is no profile.")] = (
        False
    )
    json: Json = False
