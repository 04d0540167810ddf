"""Variables in a command line: the values put in for them, and where those are set. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.rollout.targets.command_line.words import Piece

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE = re.compile(
    rf"\$(?P<bare>{_NAME})|\$\{{(?P<name>{_NAME})(?:(?P<how>:?[-=?])(?P<default>.*))?\}}"
    rf"|\$\((?P<kubernetes>[A-Za-z_.-][A-Za-z0-9_.-]*)\)|(?P<systemd>%[A-Za-z])",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable as it is set."""

    value: str | None
    """None where that is not known here."""

    why: str = ""
    """Where a value comes from that is not known, or that is set in another file."""

    change: Callable[[str], None] | None = None
    """Asks for another value in the file that is edited; None: it is set elsewhere."""

    cure: str = ""
    """What to do to change it elsewhere, as a hint."""


Scope = Callable[[str], Variable | None]
"""A variable's name → how it is set; None: not at all."""


def nothing(_: str) -> None:
    """Return how a variable is set where nothing sets any."""


def first_of(*scopes: Scope) -> Scope:
    """Return the scope of several, in the order in which they are asked."""
    return lambda name: next((found for one in scopes if (found := one(name))), None)


@dataclass(frozen=True, slots=True)
class Reference:
    """The variable of a spelling: ``$NAME``, ``${NAME:-default}``, ``$(NAME)``."""

    name: str
    default: str | None = None
    default_at: int = 0
    """Where the default begins in the spelling."""

    if_empty: bool = True
    """The default stands for an empty value too, as with ``:-``."""


def reference(spelt: str) -> Reference | None:
    """Return what a spelling refers to; None for what is worked out, such as ``$(cat file)``.

    >>> reference("${SLOTS:-64}")
    Reference(name='SLOTS', default='64', default_at=9, if_empty=True)
    """
    found = _REFERENCE.fullmatch(spelt)
    if found is None:
        return None
    name = found["bare"] or found["name"] or found["kubernetes"] or found["systemd"]
    how = found["how"] or "?"
    if how.endswith("?"):
        return Reference(name)
    return Reference(name, found["default"], found.start("default"), how.startswith(":"))


def setting_of(
    piece: Piece, scope: Scope, change_at: Callable[[int, int], Callable[[str], None]]
) -> Variable | None:
    """Return how what is put in for a piece is set; None where nothing here says so.

    ``change_at``: where a default begins and ends in the view → what asks for another one.
    """
    asked = reference(piece.text)
    if asked is None:
        return None
    found = scope(asked.name)
    if found is not None and (found.value != "" or not asked.if_empty or not asked.default):
        return found
    if asked.default is None:
        return None
    if "$" not in asked.default:
        begin = piece.start + asked.default_at
        return Variable(asked.default, change=change_at(begin, begin + len(asked.default)))
    inner = reference(asked.default)
    return None if inner is None else scope(inner.name) or _default(inner)


def _default(asked: Reference) -> Variable | None:
    plain = asked.default is not None and "$" not in asked.default
    return Variable(asked.default, why="is a default within a default") if plain else None


def value_of(pieces: Sequence[Piece], setting: Callable[[Piece], Variable | None]) -> str | None:
    """Return the text that the pieces make; None where a part of it is not known."""
    parts = list[str]()
    for one in pieces:
        found = None if one.is_literal else setting(one)
        text = one.text if one.is_literal else None if found is None else found.value
        if text is None:
            return None
        parts.append(text)
    return "".join(parts)
