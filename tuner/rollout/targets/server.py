"""A rollout target: a kind of file, and a server that such a file describes. Pure.

The server is read, edited, and read again before anything is written.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from tuner.engines.vllm import values as vllm_values
from tuner.errors import TargetError
from tuner.rollout.targets import images
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.seam import (
    Arguments,
    Asked,
    Overruled,
    Platform,
    Rollout,
    Stated,
    Statements,
)


class Server(ABC):
    """One server that a file describes."""

    __slots__ = ()

    text: str
    asked: Asked

    @property
    @abstractmethod
    def evidence(self) -> str:
        """The reason to take it for vLLM, in words; empty where somebody only says so."""

    @property
    @abstractmethod
    def stated(self) -> Statements:
        """The arguments that the file states, by vLLM's names. Raises TargetError."""

    @property
    @abstractmethod
    def rollout(self) -> Rollout:
        """The commands that roll the file out."""

    @abstractmethod
    def edited(self, arguments: Arguments) -> str:
        """Return the text with these arguments set. Raises TargetError where that cannot be."""

    @abstractmethod
    def reopened(self, text: str) -> "Server":
        """Return the same server of an edited text. Raises TargetError and UsageError."""

    @abstractmethod
    def rest(self) -> object:
        """Return all that the file says beside the arguments."""

    def own(self, arguments: Arguments) -> Arguments:
        """Return those of the arguments that are this file's to state. Raises TargetError."""
        return arguments

    @property
    def platform(self) -> Platform:
        """The place where the server will run, as far as the file says so."""
        return Platform()

    @property
    def is_new(self) -> bool:
        """Whether there is nothing in the file yet, so that it is to name the model too."""
        return False

    @property
    def notes(self) -> Sequence[str]:
        """Warnings, such as that a key is not vLLM's."""
        return ()

    @property
    def overruled(self) -> Sequence[Overruled]:
        """The files that decide after this one."""
        return ()

    def written(self, arguments: Arguments) -> str:
        """Return the text with these arguments set and all else as it was, byte for byte.

        The arguments are by vLLM's names; None means: leave it to vLLM, so nothing may state it.
        The model is written into a new file only: elsewhere it is what it is. The result is read
        again. Raises TargetError for a text that cannot be edited safely, and for a value that the
        file cannot carry.
        """
        wanted = {name: one for name, one in arguments.items() if name != "model" or self.is_new}
        before = self.stated
        own = self.own(wanted)
        result = self.edited(own)
        if result == self.text:
            return result
        try:
            after = self.reopened(result)
            faults = self.faults(before, after.stated, own)
        except TargetError as problem:
            raise unsafe(self.asked.source, str(problem)) from None
        if faults or self.rest() != after.rest():
            what = ", ".join(faults) or "something else would change"
            raise unsafe(self.asked.source, what)
        return result

    def faults(self, before: Statements, after: Statements, arguments: Arguments) -> list[str]:
        """Return the arguments that, read back, are not what was asked for."""
        wanted = {name: one.value for name, one in before.items() if name not in arguments}
        wanted |= {
            name: value for name, value in arguments.items() if flags.is_written(name, value)
        }
        found = {name: one.value for name, one in after.items()}
        return sorted(
            name
            for name in wanted.keys() | found.keys()
            if name not in wanted
            or name not in found
            or not vllm_values.same(flags.comparable(found[name], wanted[name]), wanted[name])
        )


class Target(Protocol):
    """One kind of deployment file. Pure: text in, text out."""

    NAME: str
    """As in ``--to``."""

    DEFAULT_FILE: str
    """Written when no file is named; empty where there must be one to edit."""

    SUFFIXES: tuple[str, ...]
    """What the file's name must end in; empty for anything."""

    ON_THIS_MACHINE: bool
    """The server runs where the file is, not in an image or elsewhere."""

    def opened(self, text: str, asked: Asked) -> Server:
        """Return the server that is meant; a new file begins as an empty text.

        Raises TargetError where none is seen to be vLLM's, or the text cannot be read, and
        UsageError when there are several and none is chosen.
        """
        ...


def platform_of(image: str, line: int, gpu: Stated | None = None) -> Platform:
    """Return what an image's name tells of where the server will run."""
    version = images.vllm_version(image)
    if version is None:
        return Platform(gpu=gpu, image=Stated(image, line))
    return Platform(vllm=Stated(version, line), gpu=gpu)


def check_there(text: str, *, source: str) -> None:
    """Refuse a file that would be new. Raises TargetError."""
    if not text:
        raise TargetError(
            f"{source}: no such file, and only an existing one can be edited",
            hint="Name the file that the server is deployed with.",
        )


def unsafe(source: str, why: str) -> TargetError:
    """Return the refusal of an edit whose result is not what was asked for."""
    return TargetError(
        f"{source}: cannot be edited safely ({why})",
        hint="Write one argument a line, without anchors, or edit it by hand.",
    )
