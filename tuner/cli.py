"""The typer app and the one error boundary: parse, call, render happen in ``commands``."""

import signal
import sys
from types import FrameType
from typing import NoReturn

import typer

from tuner.commands import apply, sweep, trace
from tuner.errors import Interrupted, TunerError

app = typer.Typer(
    name="tuner",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def root() -> None:
    """Find the right max_num_seqs for a vLLM server from the traffic that it really gets."""


app.command("sweep")(sweep.sweep)
app.command("apply")(apply.apply)
app.add_typer(trace.app, name="trace")


def main() -> NoReturn:
    """Run the command; turn what went wrong into two lines on stderr and an exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _as_interrupt)
    try:
        app()
    except TunerError as error:
        _report(error)
    except KeyboardInterrupt:
        _report(Interrupted("interrupted", hint="Nothing half-written was left behind."))
    except BrokenPipeError:
        # Whoever reads our output has seen enough; at exit Python would complain once more.
        sys.stderr.close()
        sys.exit(1)
    sys.exit(0)


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    """End like Ctrl-C: whatever is open is closed on the way out."""
    raise KeyboardInterrupt


def _report(error: TunerError) -> NoReturn:
    label = "Interrupted" if isinstance(error, Interrupted) else "Error"
    sys.stderr.write(f"{label}: {_one_line(str(error))}\n{_one_line(error.hint)}\n")
    sys.exit(error.exit_code)


def _one_line(text: str) -> str:
    """A message may quote what a file holds: nothing of it may move the cursor or add a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
