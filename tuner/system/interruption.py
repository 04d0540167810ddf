"""Ctrl-C, SIGTERM and SIGHUP: the first ends a command in order, the second at once.

In order means: the main task of a running event loop is cancelled; elsewhere KeyboardInterrupt is
raised. A second KeyboardInterrupt would cut the clean-up short wherever it happened to be, and
Python would print a traceback. So the second signal raises nothing: what must not outlive us is
ended, the last words are printed, and the process is gone.
"""

import atexit
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tuner.system.printable import printable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

EXIT_CODE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_LINE_AND_CURSOR_BACK = b"\r\x1b[K\x1b[?25h"

Words = tuple[str, str]
"""Last words of a command: what is kept, and what to do next."""

Result = TypeVar("Result")


class _Command:
    """The command that a signal meets: how its event loop is cancelled, what it says at last."""

    signals: tuple[signal.Signals, ...] = ()
    count: int = 0
    cancel: Callable[[], object] | None = None
    exit_code: int | None = None
    words: Callable[[], Words] = staticmethod(
        lambda: ("nothing half-written was left behind", "Run the command again.")
    )


_command = _Command()
_endings: list[Callable[[], object]] = []


def listen() -> None:
    """Decide on signals from here on, but for those that are switched off, as nohup does."""
    usual = (signal.SIG_DFL, signal.default_int_handler)
    _command.signals = tuple(each for each in SIGNALS if signal.getsignal(each) in usual)
    _handle_with(lambda _number, _frame: _hear())
    atexit.register(_be_gone)  # the first to register is the last to run


def hear_nothing() -> None:
    """Let signals go unheard."""
    _handle_with(signal.SIG_IGN)


def ended(exit_code: int) -> None:
    """Let signals cut nothing short from here on but the end of the process itself."""
    _command.exit_code = exit_code
    _handle_with(lambda _number, _frame: _exit(exit_code))


def happened() -> bool:
    """Return whether the command is being ended: what fails from then on fails because of that."""
    return _command.count > 0


def cancel() -> None:
    """End the work that ``run`` does in another thread, in order, as a signal would."""
    if _command.cancel is not None:
        _command.cancel()


def words() -> Words:
    """Return the last words of a command that was interrupted."""
    return _command.words()


def say_at_the_end(last: Callable[[], Words]) -> None:
    """Let these be the last words of the command, should it be interrupted."""
    _command.words = last


def ends_with_us(ending: Callable[[], object]) -> None:
    """Call this when the process ends, however it does short of kill -9."""
    atexit.register(ending)
    _endings.append(ending)


def has_ended(ending: Callable[[], object]) -> None:
    """Undo ``ends_with_us``. Twice is allowed."""
    atexit.unregister(ending)
    with suppress(ValueError):
        _endings.remove(ending)


def run(
    work: Coroutine[Any, Any, Result],
    *,
    loop_factory: "Callable[[], AbstractEventLoop] | None" = None,
) -> Result:
    """``asyncio.run`` for a command: any signal cancels the work, and is raised when that is done.

    Raises KeyboardInterrupt.
    """
    import asyncio  # noqa: PLC0415 - most commands have no use for it

    results = list[Result]()  # the runner would have what its task returns written out, all of it

    async def main() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        loop.set_exception_handler(
            lambda loop, context: happened() or loop.default_exception_handler(context)
        )
        _command.cancel = partial(loop.call_soon_threadsafe, task.cancel)
        try:
            results.append(await work)
        finally:
            _command.cancel = None

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            runner.run(main())
        except asyncio.CancelledError:
            if not happened():
                raise
            raise KeyboardInterrupt from None
    return results[0]


def in_two_lines(message: str, cure: str) -> str:
    """Return the last two lines of a command that fails."""
    return f"{printable(message)}\n{printable(cure)}\n"


def _handle_with(handler: "signal._HANDLER") -> None:
    for number in _command.signals:
        signal.signal(number, handler)


def _hear() -> None:
    _command.count += 1
    if _command.count > 1:
        _exit(EXIT_CODE, in_two_lines(f"Interrupted: {words()[0]}", words()[1]))
    # what falls over on the way out is nothing that anybody needs to read
    warnings.simplefilter("ignore")
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None
    if _command.cancel is None:
        raise KeyboardInterrupt
    _command.cancel()


def _exit(code: int, last: str = "") -> NoReturn:
    """End at once: first what must not outlive us, then the process."""
    hear_nothing()
    for ending in reversed([*_endings]):  # which they may leave
        with suppress(Exception):  # one that fails keeps no other from ending
            ending()
    text = last.encode(errors="backslashreplace")
    with suppress(OSError):  # not sys.stderr, in the midst of whose work we may be
        os.write(2, _LINE_AND_CURSOR_BACK + text if text and os.isatty(2) else text)
    os._exit(code)


def _be_gone() -> None:
    """After a signal, leave out the last things that Python does: it takes seconds to forget an
    engine's libraries object by object, and nobody sees what for."""
    hear_nothing()
    if happened() and _command.exit_code is not None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(_command.exit_code)
