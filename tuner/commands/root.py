"""The typer app: all commands, and what ``tuner`` says of itself."""

from typing import Annotated

import typer

from tuner.commands.apply.options import ApplyOptions
from tuner.commands.compare.options import CompareOptions
from tuner.commands.diff.options import DiffOptions
from tuner.commands.doctor.options import DoctorOptions
from tuner.commands.export.options import ExportOptions
from tuner.commands.plan.options import PlanOptions
from tuner.commands.refine.options import RefineOptions
from tuner.commands.report.options import ReportOptions
from tuner.commands.shared.options import command
from tuner.commands.show.options import ShowOptions
from tuner.commands.sweep.options import SweepOptions
from tuner.commands.trace import options as trace
from tuner.commands.verify.options import VerifyOptions
from tuner.commands.watch.options import WatchOptions

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

    from tuner.engines.vllm import installed, supported  # noqa: PLC0415

    typer.echo(f"tuner {version('tuner')}")
    typer.echo(f"for {supported.statement()}; installed: {installed.here_is()}")
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


app.command("sweep")(command(SweepOptions, "tuner.commands.sweep.run"))
app.command("refine")(command(RefineOptions, "tuner.commands.refine.run"))
app.command("show")(command(ShowOptions, "tuner.commands.show.run"))
app.command("apply")(command(ApplyOptions, "tuner.commands.apply.run"))
app.command("diff")(command(DiffOptions, "tuner.commands.diff.run"))
app.command("plan")(command(PlanOptions, "tuner.commands.plan.run"))
app.command("verify")(command(VerifyOptions, "tuner.commands.verify.run"))
app.command("watch")(command(WatchOptions, "tuner.commands.watch.run"))
app.command("report")(command(ReportOptions, "tuner.commands.report.run"))
app.command("doctor")(command(DoctorOptions, "tuner.commands.doctor.run"))
app.command("compare")(command(CompareOptions, "tuner.commands.compare.run"))
app.command("export")(command(ExportOptions, "tuner.commands.export.run"))
app.add_typer(trace.app, name="trace")
