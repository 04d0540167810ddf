"""Options that several commands share, said once."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from tuner.errors import UsageError

Base = Annotated[
    Path | None, typer.Option(help="The `vllm serve --config` YAML that production uses.")
]
Budget = Annotated[str, typer.Option(help="Engine time to spend, starts included.")]
Engine = Annotated[str, typer.Option(help="vllm, or sim with --world.")]
Headroom = Annotated[
    float, typer.Option(min=1.0, max=10.0, help="Load of the validation, times the trace's.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any vLLM engine argument; repeatable."),
]
Replicas = Annotated[
    int, typer.Option(min=1, help="Servers that shared the trace; one server's part is sent.")
]
Resume = Annotated[bool, typer.Option(help="Go on with an interrupted run.")]
Router = Annotated[
    Literal["least", "rr", "random", "session"], typer.Option(help="How requests reach replicas.")
]
RunDir = Annotated[
    Path | None, typer.Option(help="Where measurements are kept; default: runs/TRACE-TIME.")
]
World = Annotated[
    Path | None, typer.Option(help="World file: the machine that --engine sim simulates.")
]
Window = Annotated[
    str, typer.Option(help="Part of the trace: all, busiest or START+LEN (120s+60s).")
]


def check_given(option: str, value: str | None) -> None:
    """Raise UsageError for a value that is there and empty: the variable that it was to come from
    is not set, and to go on without it would be something else than what was asked."""
    if value is not None and not value.strip():
        raise UsageError(
            f"{option} is empty",
            hint=f"Give {option} a value (is a variable not set?), or drop it.",
        )
