"""``tuner compare``: its options."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import (
    Base,
    Budget,
    Engine,
    Json,
    Overrides,
    Resume,
    RunDir,
    World,
)


def compare(  # noqa: PLR0913 - one parameter an option
    *,
    trace: Annotated[Path, typer.Option(help="Trace to replay; see `tuner trace import`.")],
    profile: Annotated[
        Path | None,
        typer.Option(help="Serving profile: its max_num_seqs, and all of it as an approach."),
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(min=1, help="The tuned value; default: the profile's, or a fast sweep's."),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="Find the tuned value by a sweep, although there is --profile."
        ),
    ] = False,
    approaches: Annotated[
        str | None,
        typer.Option(help="worker, two-workers, static, untuned, tuned, profile; default: all."),
    ] = None,
    loads: Annotated[
        str,
        typer.Option(
            help="light, medium, heavy, very-heavy (2, 8, 16, 25 in flight untuned), recorded."
        ),
    ] = "very-heavy",
    engine: Engine = "vllm",
    world: World = None,
    model: Annotated[
        str | None, typer.Option(help="Model; before --base, the profile and the trace's header.")
    ] = None,
    base: Base = None,
    set_: Overrides = None,
    untuned: Annotated[int, typer.Option(min=1, help="max_num_seqs that nobody measured.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests of a static batch.")] = 16,
    batch_wait: Annotated[
        str, typer.Option(help="How long a static batch waits to be full.")
    ] = "50ms",
    queue_size: Annotated[
        int, typer.Option(min=1, help="Requests that a worker's queue holds; more fail.")
    ] = 1024,
    slo: Annotated[
        str | None, typer.Option(help="Of the sweep that finds max_num_seqs; default: derived.")
    ] = None,
    window: Annotated[
        str, typer.Option(help="Part of the trace: busiest, all or START+LEN (120s+60s).")
    ] = "busiest",
    step: Annotated[str, typer.Option(help="How long a replay is at most.")] = "20s",
    repeats: Annotated[int, typer.Option(min=1, help="Blocks: each measures everything once.")] = 3,
    budget: Budget = "1h",
    resume: Resume = False,
    run_dir: RunDir = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for Markdown, JSON and a plot."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take a profile that another machine was measured for.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, load and order.")] = 0,
    json_: Json = False,
) -> None:
    """Serve a trace in every way of the story, from one worker behind queues to a tuned engine.

    Each approach is started for real and replays the same requests, as captured and with uniform
    lengths, in blocks of random order; every block has requests of its own. What an approach fails
    at is its result.
    """
    from tuner.commands.compare.run import run  # noqa: PLC0415 - keeps --help light
    from tuner.commands.compare.setup import CompareOptions  # noqa: PLC0415

    run(
        CompareOptions(
            trace=trace,
            profile=profile,
            max_num_seqs=max_num_seqs,
            sweep=sweep,
            approaches=approaches,
            loads=loads,
            engine=engine,
            world=world,
            model=model,
            base=base,
            overrides=tuple(set_ or ()),
            untuned=untuned,
            batch_size=batch_size,
            batch_wait=batch_wait,
            queue_size=queue_size,
            slo=slo,
            window=window,
            step=step,
            repeats=repeats,
            budget=budget,
            resume=resume,
            run_dir=run_dir,
            output=output,
            force=force,
            seed=seed,
            json=json_,
        )
    )
