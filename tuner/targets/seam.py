"""What a rollout target is: a kind of file that engine arguments are written into. Types only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.engines.seam import ArgumentValue


@dataclass(frozen=True, slots=True)
class Stated:
    """An engine argument as a file states it."""

    value: ArgumentValue
    line: int


class Target(Protocol):
    """One kind of deployment file. Pure: text in, text out.

    The arguments of ``write`` are by vLLM's names; None means: leave it to vLLM, so nothing may
    state it.
    """

    NAME: str
    """As in ``--to``."""

    DEFAULT_FILE: str
    """Written when no file is named."""

    SUFFIXES: tuple[str, ...]
    """What the file's name must end in; empty for anything."""

    def read(self, text: str, *, source: str) -> Mapping[str, Stated]:
        """Return the arguments that the text states. Raises TargetError."""
        ...

    def write(self, text: str, arguments: Mapping[str, ArgumentValue], *, source: str) -> str:
        """Return the text with these arguments set and everything else as it was, byte for byte.

        A new file begins as an empty text. Raises TargetError for a text that cannot be edited
        safely, and for a value that the file cannot carry.
        """
        ...
