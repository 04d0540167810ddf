"""``tuner capture``: a trace out of Prometheus, and one out of the files of a recording."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.shared.options import command

app = typer.Typer(no_args_is_help=True, help="Make traces of what a server serves.")

Output = Annotated[Path, typer.Option("-o", "--output", help="Where the trace goes.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrometheusOptions:
    """Write a synthetic trace that fits what Prometheus remembers of a vLLM server.

    As many requests as were scraped, as long, and as many at a time; marked as synthetic. Where
    Prometheus wants a bearer token, TUNER_PROMETHEUS_TOKEN has it.
    """

    url: Annotated[str, typer.Option(help="Prometheus that scrapes the server.")]
    output: Output
    from_: Annotated[
        str, typer.Option("--from", help="Begin: how long ago (2h), a date, or Unix seconds.")
    ] = "1h"
    to: Annotated[str, typer.Option(help="End, as --from, or now.")] = "now"
    selector: Annotated[
        str, typer.Option(help='Label matchers, as in \'job="vllm",model_name="m"\'.')
    ] = ""
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 0
    force: Force = False


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JoinOptions:
    """Write one trace out of the files that a recording's processes left."""

    files: Annotated[tuple[Path, ...], typer.Argument(help="Files of one recording, in any order.")]
    output: Output
    force: Force = False


app.command("prometheus")(command(PrometheusOptions, "tuner.commands.capture.run", "prometheus"))
app.command("join")(command(JoinOptions, "tuner.commands.capture.run", "join"))
