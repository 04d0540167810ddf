"""The typer app: all commands, and what ``tuner`` says of itself."""

from typing import Annotated

import typer

from tuner.commands.apply import options as apply
from tuner.commands.capture import options as capture
from tuner.commands.compare import options as compare
from tuner.commands.diff import options as diff
from tuner.commands.plan import options as plan
from tuner.commands.refine import options as refine
from tuner.commands.sweep import options as sweep
from tuner.commands.trace import options as trace
from tuner.commands.verify import options as verify
from tuner.commands.watch import options as watch

app = typer.Typer(
    name="tuner",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import version  # noqa: PLC0415 - keeps --help light

    typer.echo(f"tuner {version('tuner')}")
    raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Find the right max_num_seqs for a vLLM server from the traffic that it really gets."""
    del version  # its callback has ended the program


app.command("sweep")(sweep.sweep)
app.command("refine")(refine.refine)
app.command("apply")(apply.apply)
app.command("diff")(diff.diff)
app.command("plan")(plan.plan)
app.command("verify")(verify.verify)
app.command("watch")(watch.watch)
app.command("compare")(compare.compare)
app.add_typer(trace.app, name="trace")
app.add_typer(capture.app, name="capture")
