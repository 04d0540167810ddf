"""``tuner compare``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import (
    IN_PLAN,
    Base,
    Budget,
    Details,
    Engine,
    Json,
    Overrides,
    Resume,
    RunDir,
    World,
)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CompareOptions:
    """Serve a trace in every way of the story, from one worker behind queues to a tuned engine.

    Each approach is started for real and replays the same requests, as captured and with uniform
    lengths, in blocks of random order; every block has requests of its own. What an approach fails
    at is its result. Without --profile a sweep comes first.
    """

    trace: Annotated[Path, typer.Option(help="Trace to replay; see `tuner trace import`.")]
    profile: Annotated[
        Path | None,
        typer.Option(help="Serving profile: its max_num_seqs, and all of it as an approach."),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option(min=1, help="The tuned value; default: the profile's, or a sweep's."),
        IN_PLAN,
    ] = None
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
    budget: Budget = "1h"
    resume: Resume = False
    run_dir: RunDir = None
    force: Annotated[
        bool, typer.Option("--force", help="Take a profile that another machine was measured for.")
    ] = False
    details: Details = False
    json: Json = False
