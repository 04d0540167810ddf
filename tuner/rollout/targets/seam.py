"""The seam of rollout targets: kinds of file that arguments are written into. Types only."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tuner.engines.seam import ArgumentValue


@dataclass(frozen=True, slots=True)
class Stated:
    """An engine argument as a file states it."""

    value: ArgumentValue
    """As it is spelt, where it is not known here."""

    line: int
    unknown: str = ""
    """Why it is not known here, as in ``comes from the ConfigMap models``; empty where it is."""


Statements = Mapping[str, Stated]
Arguments = Mapping[str, ArgumentValue]
"""By vLLM's names."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A file's statements on where the server will run; None where it says nothing."""

    vllm: Stated | None = None
    """Version, as in the tag of an image."""

    image: Stated | None = None
    """An image whose name does not tell vLLM's version; empty where the file names none."""

    gpu: Stated | None = None
    """Product name, as in a node selector."""


class Beside(Protocol):
    """The files in the folder of the one that is edited, and in the folders near it."""

    def text(self, name: str) -> str | None:
        """Return what is in a file, by its path from there; None where there is none."""
        ...

    def names(self, pattern: str) -> Sequence[str]:
        """Return the paths from there that a pattern such as ``../*/kustomization.yaml`` fits."""
        ...

    def shortest(self, path: str) -> str:
        """Return the shortest path from there that means the same: ``a`` for ``../here/a``."""
        ...


class NoFiles:
    """See Beside: nothing is there."""

    def text(self, name: str) -> str | None:
        del name
        return None

    def names(self, pattern: str) -> Sequence[str]:
        del pattern
        return ()

    def shortest(self, path: str) -> str:
        return posixpath.normpath(path)


@dataclass(frozen=True, slots=True)
class Asked:
    """The server of a file that is meant, and what is known of it beside the text."""

    source: str
    """The file's path, for messages."""

    container: str | None = None
    """``--container``: chooses among several servers."""

    at: str | None = None
    """``--at``: where in the values of a chart the arguments are."""

    trusted: bool = False
    """Whoever asks says that it is vLLM, on record: ``--force``."""

    beside: Beside = field(default_factory=NoFiles)
    home: str = ""
    """The home folder of whoever asks, for services of a user's own."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """The commands that roll the file out, and back: ``{file}`` is the file's name, ``{path}`` one
    with a folder."""

    start: str
    undo: str = ""
    """What takes it back where it runs, once the file is as it was; empty: ``start`` again."""


@dataclass(frozen=True, slots=True)
class Overruled:
    """Another file that decides after this one."""

    path: str
    line: int
    what: str
    """What it does, as in ``replaces args``."""

    stated: Statements = field(default_factory=dict)
    """What it states in place of this one."""

    always: bool = True
    """Wherever this file is used, and not only where the other one is used too."""

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"
