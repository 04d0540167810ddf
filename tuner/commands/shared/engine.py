"""The engine that --engine names, and the loop that it runs on."""

from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tuner.errors import UsageError

Returned = TypeVar("Returned")

OR_SERVED = ("vllm", "serve")
"""Real engines where a server may be measured too."""


class EngineOptions(Protocol):
    """The options that choose an engine."""

    @property
    def engine(self) -> str | None: ...
    @property
    def world(self) -> Path | None: ...


class ArgumentOptions(EngineOptions, Protocol):
    """The options that choose an engine and its arguments."""

    @property
    def base(self) -> Path | None: ...
    @property
    def overrides(self) -> tuple[str, ...]: ...


class Execute(Protocol):
    """Runs the work of a command to its end, on real or on virtual time."""

    def __call__(self, work: Coroutine[Any, Any, Returned], /) -> Returned: ...


def world_of(options: EngineOptions, *, real: Sequence[str] = ("vllm",)) -> Path | None:
    """Return the world file that ``--engine sim`` simulates; None for a real engine, one of
    ``real``.

    Raises UsageError for options that do not go together.
    """
    if options.engine == "sim":
        if options.world is None:
            raise UsageError("--engine sim needs a world", hint="Give --world FILE.")
        return options.world
    if options.engine not in real:
        known = " or ".join(filter(None, (", ".join(real), "sim")))
        raise UsageError(f"--engine {options.engine!r} is not known here", hint=f"Use {known}.")
    if options.world is not None:
        raise UsageError("--world is for --engine sim", hint="Add --engine sim, or drop --world.")
    return None


def world_alone(options: ArgumentOptions, *, real: Sequence[str] = ("vllm",)) -> Path | None:
    """Return the same where ``--set`` and ``--base`` are options too. Raises UsageError."""
    world = world_of(options, real=real)
    if world is not None and (options.overrides or options.base is not None):
        raise UsageError(
            "--set and --base are for a real engine", hint="Write it into the world file."
        )
    return world
