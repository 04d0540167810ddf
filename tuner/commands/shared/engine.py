"""Where the engines of a command run: on this machine, or in the world of ``--world``."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tuner.errors import UsageError

Returned = TypeVar("Returned")


class ArgumentOptions(Protocol):
    """The options that choose an engine and its arguments."""

    @property
    def world(self) -> Path | None: ...
    @property
    def overrides(self) -> tuple[str, ...]: ...


class Execute(Protocol):
    """Runs the work of a command to its end, on real or on virtual time."""

    def __call__(self, work: Coroutine[Any, Any, Returned], /) -> Returned: ...


def world_of(options: ArgumentOptions) -> Path | None:
    """Return the world file to simulate; None for a real engine. Raises UsageError."""
    if options.world is not None and (options.overrides or getattr(options, "base", None)):
        raise UsageError(
            "--set and --base are for a real engine", hint="Write it into the world file."
        )
    return options.world
