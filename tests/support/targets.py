"""Rollout targets in short: a text in, a text or what it states out."""

from collections.abc import Mapping
from pathlib import PurePath

from tuner.engines.seam import ArgumentValue
from tuner.rollout.targets.kinds.detect import detect
from tuner.rollout.targets.kinds.registry import named
from tuner.rollout.targets.seam import Asked, Beside, NoFiles, Platform, Stated
from tuner.rollout.targets.server import Server, Target

NOTHING = NoFiles()


def server(  # noqa: PLR0913 - one for each thing that may be asked
    target: Target | str,
    text: str,
    *,
    source: str = "f",
    container: str | None = None,
    at: str | None = None,
    trusted: bool = False,
    beside: Beside = NOTHING,
) -> Server:
    """Return the server that a text is seen to describe."""
    asked = Asked(source, container, at, trusted, beside=beside)
    return (named(target) if isinstance(target, str) else target).opened(text, asked)


def write(  # noqa: PLR0913 - as above
    target: Target | str,
    text: str,
    arguments: Mapping[str, ArgumentValue],
    *,
    source: str = "f",
    container: str | None = None,
    trusted: bool = False,
) -> str:
    """Return the text with these arguments."""
    found = server(target, text, source=source, container=container, trusted=trusted)
    return found.written(arguments)


def read(
    target: Target | str, text: str, *, source: str = "f", container: str | None = None
) -> Mapping[str, Stated]:
    """Return what the text states."""
    return server(target, text, source=source, container=container).stated


def platform(target: Target | str, text: str) -> Platform:
    """Return what the text says of where the server runs."""
    return server(target, text).platform


def kind_of(name: str, text: str) -> Target:
    """Return the kind of file that name and text make it."""
    return detect(PurePath(name), text, Asked(name))
