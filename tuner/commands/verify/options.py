"""``tuner verify``: its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import (
    Confirmed,
    ConfirmedBase,
    Json,
    Replicas,
    Require,
    Router,
    Window,
    World,
)
from tuner.profile.tolerances import TOLERANCE


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class VerifyOptions:
    """Replay a trace on a fresh engine with exactly a profile's arguments, and gate on its promise.

    Each gate compares what was measured with what the twin in the profile says of the same
    requests. With --url a server that runs already is asked, and nothing is started. Exits with 6
    when a promise is broken.
    """

    profile: Annotated[Path, typer.Argument(help="Serving profile with a twin.")]
    trace: Annotated[Path, typer.Option(help="Trace to replay: the profile's, or today's.")]
    engine: Annotated[
        str | None,
        typer.Option(
            help="vllm, serve (the same behind vllm serve), or sim with --world; default: as the "
            "profile was confirmed."
        ),
    ] = None
    world: World = None
    url: Annotated[
        str | None, typer.Option(help="A server that runs already: it gets the trace's load.")
    ] = None
    send_load: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Requests that --url may get, if it is not on this machine; without, it is said "
            "how many.",
        ),
    ] = None
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Variable with the key of --url; none is sent unasked."),
    ] = None
    window: Window = "all"
    step: Annotated[str, typer.Option(help="How long the replay is: 6s at least.")] = "60s"
    require: Require = ()
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, max=10.0, help="How much worse than promised is kept: 0.1 is 10 %."),
    ] = TOLERANCE
    replicas: Replicas = 1
    router: Router = "least"
    force: Annotated[
        bool, typer.Option(help="Verify on another machine or vLLM than measured.")
    ] = False
    overrides: Confirmed = ()
    base: ConfirmedBase = None
    junit: Annotated[
        Path | None, typer.Option(help="Write the gates as JUnit XML too, for CI.")
    ] = None
    run_dir: Annotated[
        Path | None, typer.Option(help="Keep the replays and the gates there, for tuner report.")
    ] = None
    json: Json = False
