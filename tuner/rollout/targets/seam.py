"""The seam of rollout targets: kinds of file that arguments are written into. Types only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.engines.seam import ArgumentValue


@dataclass(frozen=True, slots=True)
class Stated:
    """An engine argument as a file states it."""

    value: ArgumentValue
    line: int


@dataclass(frozen=True, slots=True)
class Platform:
    """A file's statements on where the server will run; None where it says nothing."""

    vllm: Stated | None = None
    """Version, as in the tag of an image."""

    image: Stated | None = None
    """An image whose name does not tell vLLM's version; empty where the file names none."""

    gpu: Stated | None = None
    """Product name, as in a node selector."""


class Target(Protocol):
    """One kind of deployment file. Pure: text in, text out.

    ``container`` says which of several servers in the file is meant. The arguments of ``write`` are
    by vLLM's names; None means: leave it to vLLM, so nothing may state it.
    """

    NAME: str
    """As in ``--to``."""

    DEFAULT_FILE: str
    """Written when no file is named; empty where there must be one to edit."""

    SUFFIXES: tuple[str, ...]
    """What the file's name must end in; empty for anything."""

    START: str
    """The command that starts the server: ``{file}`` is the file's name, ``{path}`` one with a
    folder."""

    ON_THIS_MACHINE: bool
    """The server runs where the file is, not in an image or elsewhere."""

    def read(self, text: str, *, source: str, container: str | None = None) -> Mapping[str, Stated]:
        """Return the arguments that the text states.

        Raises TargetError, and UsageError when there are several servers and none is chosen.
        """
        ...

    def platform(self, text: str, *, source: str, container: str | None = None) -> Platform:
        """Return where the server will run. Raises like ``read``."""
        ...

    def write(
        self,
        text: str,
        arguments: Mapping[str, ArgumentValue],
        *,
        source: str,
        container: str | None = None,
    ) -> str:
        """Return the text with these arguments set and everything else as it was, byte for byte.

        A new file begins as an empty text. Raises like ``read``, and TargetError for a text that
        cannot be edited safely, and for a value that the file cannot carry.
        """
        ...
