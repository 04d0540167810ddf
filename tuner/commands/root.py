"""The typer app: all commands, and what ``tuner`` says of itself."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tuner.commands.options import (
    ApplyOptions,
    CompareOptions,
    DoctorOptions,
    LiveOptions,
    PlanOptions,
    RefineOptions,
    ResumeOptions,
    ShowOptions,
    SweepOptions,
    VerifyOptions,
    WatchOptions,
)
from tuner.commands.shared.options import command
from tuner.commands.trace import options as trace
from tuner.errors import UsageError

USAGE: Any = typer.BadParameter.__mro__[1]
"""The base of all that typer's parser raises."""

TUNE, LOOK, ROLL_OUT = "Tune", "Look", "Roll out"
COMMANDS: dict[str, tuple[type[Any], str, str]] = {
    "sweep": (SweepOptions, "tuner.commands.sweep", TUNE),
    "refine": (RefineOptions, "tuner.commands.refine", TUNE),
    "compare": (CompareOptions, "tuner.commands.compare", TUNE),
    "doctor": (DoctorOptions, "tuner.commands.doctor", TUNE),
    "show": (ShowOptions, "tuner.commands.show", LOOK),
    "plan": (PlanOptions, "tuner.commands.plan", LOOK),
    "verify": (VerifyOptions, "tuner.commands.verify", ROLL_OUT),
    "apply": (ApplyOptions, "tuner.commands.apply", ROLL_OUT),
    "live": (LiveOptions, "tuner.commands.live", ROLL_OUT),
    "watch": (WatchOptions, "tuner.commands.watch", ROLL_OUT),
    "resume": (ResumeOptions, "tuner.commands.resume", ROLL_OUT),
}
"""Name → its options, the module whose ``run`` takes them, and its panel in ``--help``."""


class Commands(TyperGroup):
    """The commands in the order in which they are used: traces first."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's context
        return ["trace", *(name for name in super().list_commands(ctx) if name != "trace")]


app = typer.Typer(
    name="tuner",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(is_wanted: bool) -> None:
    if not is_wanted:
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


app.add_typer(trace.app, name="trace", rich_help_panel="Traffic")
for name, (options, module, panel) in COMMANDS.items():
    app.command(name, rich_help_panel=panel)(command(options, module))


def parsed(words: list[str]) -> Any:  # noqa: ANN401 - the options of that command
    """Return the options that the words of a command come to. Raises UsageError as the command line
    does."""
    from typer.main import get_command  # noqa: PLC0415 - slow to load

    group: Any = get_command(app)
    try:
        values = group.commands[words[0]].make_context(words[0], words[1:]).params
    except USAGE as problem:
        raise UsageError(
            f"{words[0]}: {problem.format_message()}", hint="docs/cli.md says what it may be."
        ) from None
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return COMMANDS[words[0]][0](**values)
