"""``tuner compare``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import (
    IN_PLAN,
    AnyVllm,
    Base,
    Budget,
    Details,
    DryRun,
    Engine,
    Json,
    Overrides,
    Resume,
    RunDir,
    StartTimeout,
    World,
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompareOptions:
    """Serve a trace in every way of the story, from one worker behind queues to a tuned engine.

    Each approach is started for real and replays the same requests, as captured and with uniform
    lengths, in blocks of random order; every block has requests of its own. What an approach fails
    at is its result.
    """

    trace: Annotated[Path, typer.Option(help="Trace to replay; see `tuner trace import`.")]
    profile: Annotated[
        Path | None,
        typer.Option(help="Serving profile: its max_num_seqs, and all of it as an approach."),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option(min=1, help="The tuned value; default: the profile's, or a fast sweep's."),
        IN_PLAN,
    ] = None
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="Find the tuned value by a sweep, although there is --profile."
        ),
        IN_PLAN,
    ] = False
    approaches: Annotated[
        str | None,
        typer.Option(
            help="worker, two-workers, static, untuned, tuned, server (tuned, behind vllm serve), "
            "profile; default: all but server."
        ),
        IN_PLAN,
    ] = None
    loads: Annotated[
        str | None,
        typer.Option(
            help="light, medium, heavy, very-heavy (2, 8, 16, 25 in flight untuned), recorded; "
            "default: very-heavy, and recorded, which a profile was made for, beside it."
        ),
        IN_PLAN,
    ] = None
    engine: Engine = "vllm"
    world: World = None
    model: Annotated[
        str | None, typer.Option(help="Model; before --base, the profile and the trace's header.")
    ] = None
    base: Base = None
    overrides: Overrides = ()
    untuned: Annotated[
        int, typer.Option(min=1, help="max_num_seqs that nobody measured."), IN_PLAN
    ] = 64
    batch_size: Annotated[int, typer.Option(min=1, help="Requests of a static batch."), IN_PLAN] = (
        16
    )
    batch_wait: Annotated[
        str, typer.Option(help="How long a static batch waits to be full."), IN_PLAN
    ] = "50ms"
    queue_size: Annotated[
        int, typer.Option(min=1, help="Requests that a worker's queue holds; more fail."), IN_PLAN
    ] = 1024
    slo: Annotated[
        str | None,
        typer.Option(help="Of the sweep that finds max_num_seqs; default: derived."),
        IN_PLAN,
    ] = None
    window: Annotated[
        str, typer.Option(help="Part of the trace: busiest, all or START+LEN (120s+60s)."), IN_PLAN
    ] = "busiest"
    step: Annotated[str, typer.Option(help="How long a replay is at most."), IN_PLAN] = "20s"
    repeats: Annotated[
        int, typer.Option(min=1, help="Blocks: each measures everything once."), IN_PLAN
    ] = 3
    budget: Budget = "1h"
    resume: Resume = False
    run_dir: RunDir = None
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for Markdown, JSON and a page."),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Take a profile that another machine was measured for.")
    ] = False
    start_timeout: StartTimeout = None
    any_vllm: AnyVllm = False
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, load and order."), IN_PLAN] = 0
    dry_run: DryRun = False
    details: Details = False
    json: Json = False
