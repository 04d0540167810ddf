"""The typer app: all commands, and what ``tuner`` says of itself."""

import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec import convert
from typer.core import TyperGroup

from tuner.commands import options as commands
from tuner.commands.shared.options import Options, command
from tuner.commands.trace import options as trace
from tuner.errors import UsageError

USAGE: Any = typer.BadParameter.__mro__[1]
"""The base of all that typer's parser raises."""

PANELS = {
    "Tune": ("sweep", "refine", "compare", "doctor"),
    "Look": ("show", "plan"),
    "Roll out": ("verify", "apply", "live", "watch", "resume"),
}
"""Panel in ``--help`` → commands: ``run`` of a command's module takes its options."""


def options_of(name: str) -> type[Options]:
    return getattr(commands, f"{name.title()}Options")  # type: ignore[no-any-return]


class Commands(TyperGroup):
    """The commands in the order in which they are used: traces first."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - click's context
        return sorted(super().list_commands(ctx), key=lambda name: name != "trace")


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

    from tuner.engines import provenance  # noqa: PLC0415

    typer.echo(f"tuner {version('tuner')}")
    typer.echo(f"for {provenance.SUPPORTED}; installed: {provenance.installed() or 'none'}")
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
for _panel, _names in PANELS.items():
    for _name in _names:
        _run = command(options_of(_name), f"tuner.commands.{_name}")
        app.command(_name, rich_help_panel=_panel)(_run)


def parsed(words: Sequence[str]) -> Any:  # noqa: ANN401 - the options of that command
    """Return the options that the words of a command come to. Raises UsageError as the command line
    does."""
    group: Any = typer.main.get_command(app)
    try:
        values = group.commands[words[0]].make_context(words[0], [*words[1:]]).params
    except USAGE as problem:
        raise UsageError(
            f"{words[0]}: {problem.format_message()}", hint="docs/cli.md says what it may be."
        ) from None
    return convert(values, options_of(words[0]))


def run(name: str, options: Options) -> None:
    """Run a command. Raises TunerError."""
    importlib.import_module(f"tuner.commands.{name}").run(options)
