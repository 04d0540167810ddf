"""``tuner verify``: its options."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def verify(  # noqa: PLR0913 - one parameter an option
    profile: Annotated[Path, typer.Argument(help="Serving profile with a twin.")],
    *,
    trace: Annotated[Path, typer.Option(help="Trace to replay: the profile's, or today's.")],
    engine: Annotated[str, typer.Option(help="vllm, or sim with --world.")] = "vllm",
    world: Annotated[
        Path | None, typer.Option(help="World file: the machine that --engine sim simulates.")
    ] = None,
    window: Annotated[
        str, typer.Option(help="Part of the trace: all, busiest or START+LEN (120s+60s).")
    ] = "all",
    step: Annotated[str, typer.Option(help="How long the replay is.")] = "60s",
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, max=10.0, help="How much worse than promised is kept: 0.1 is 10 %."),
    ] = 0.10,
    replicas: Annotated[
        int, typer.Option(min=1, help="Servers that shared the trace; one server's part is sent.")
    ] = 1,
    router: Annotated[
        Literal["least", "rr", "random", "session"],
        typer.Option(help="How requests reach replicas."),
    ] = "least",
    force: Annotated[
        bool, typer.Option(help="Verify on another machine or vLLM than measured.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and routing.")] = 0,
    junit: Annotated[
        Path | None, typer.Option(help="Write the gates as JUnit XML too, for CI.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay a trace on a fresh engine with exactly a profile's arguments, and gate on its promise.

    Each gate compares what was measured with what the twin in the profile says of the same
    requests. Exits with 6 when a promise is broken.
    """
    from tuner.commands.verify_run import VerifyOptions, run  # noqa: PLC0415 - keeps --help light

    run(
        VerifyOptions(
            profile=profile,
            trace=trace,
            engine=engine,
            world=world,
            window=window,
            step=step,
            tolerance=tolerance,
            replicas=replicas,
            router=router,
            force=force,
            seed=seed,
            junit=junit,
            json=json_,
        )
    )
