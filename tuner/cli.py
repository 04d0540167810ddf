"""The program's entry and its one error boundary.

It imports next to nothing before ``main`` runs: Ctrl-C during the imports is a Ctrl-C like others.
"""

import contextlib
import errno
import io
import os
import sys

from tuner.system import interruption

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""The twin's matrices are small: on a busy machine threads cost several times what they save."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of an output that takes no more; of files the commands make errors of their own."""


def main() -> None:
    """Run the command; turn what went wrong into two lines on stderr and an exit code.

    Raises SystemExit, and what nobody expected as it is.
    """
    try:
        code = _run()
    except KeyboardInterrupt:
        code = _report_interruption()
    except BrokenPipeError:  # whoever reads our output has seen enough
        _discard_output()
        code = 1
    except Exception as problem:  # what a signal hits may fail in any way: an import, a callback
        if interruption.happened():
            code = _report_interruption()
        elif isinstance(problem, OSError) and problem.errno in FULL:
            _discard_output()
            message = f"Error: stdout: cannot be written: {str(problem.strerror).lower()}"
            _report(message, "Free some space, or send the output elsewhere.")
            code = 3
        else:
            raise
    interruption.ended(code)
    sys.exit(code)


def _run() -> int:
    interruption.listen()
    _repair_streams()
    from tuner.commands.root import USAGE, app  # noqa: PLC0415 - see above
    from tuner.errors import Interrupted, TunerError  # noqa: PLC0415

    try:
        try:
            code = int(app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0)
        finally:
            sys.stdout.flush()
    except USAGE as problem:
        command = problem.ctx.command_path if problem.ctx else "tuner"
        _report(f"Error: {problem.format_message()}", f"See {command} --help.")
        return int(problem.exit_code)
    except TunerError as error:
        label, message = "Error", str(error)
        if isinstance(error, Interrupted):
            label, message = "Interrupted", message.removeprefix("interrupted; ")
        _report(f"{label}: {message}", error.hint)
        return error.exit_code
    if code == interruption.EXIT_CODE:  # typer has made an exit code of a KeyboardInterrupt
        raise KeyboardInterrupt
    return code


def _report_interruption() -> int:
    kept, cure = interruption.words()
    _report(f"Interrupted: {kept}", cure)
    return interruption.EXIT_CODE


def _report(message: str, cure: str) -> None:
    """Print the last two lines; from here on another signal changes nothing."""
    interruption.hear_nothing()
    with contextlib.suppress(OSError):
        sys.stderr.write(interruption.in_two_lines(message, cure))


def _repair_streams() -> None:
    """Write what the locale cannot spell as escapes, and nothing to a stream that is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let what is still buffered go nowhere: at exit Python would complain once more."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
