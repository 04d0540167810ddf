"""A verdict in at most eight lines of 80 columns, the answer first. Pure."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80
MOST_LINES = 8
NAMES = 11
"""Columns of a row's name, with the space on both sides."""


@dataclass(frozen=True, slots=True)
class VerdictBlock:
    """What to set, then what it gives, costs and rests on, and last what to run."""

    title: str
    aside: str
    """What sort of answer it is, and how sure: at the right of the title."""

    rows: Sequence[tuple[str, str]]
    """Name and sentence of each, the most important first."""

    next: str
    """The command to run; never broken, so that it can be copied. Empty where there is none."""

    def lines(self) -> list[str]:
        """Return at most MOST_LINES lines of at most WIDTH columns, but for the command. A row that
        is too long for the room that is left ends with an ellipsis."""
        found = [self._head()]
        room = MOST_LINES - 2 - (len(self.rows) - 1)
        for name, text in self.rows:
            part = wrapped(text, most=room)
            found += [f"  {name:<{NAMES - 2}}{part[0]}", *(" " * NAMES + line for line in part[1:])]
            room -= len(part) - 1
        return [*found, f"  {'next':<{NAMES - 2}}{self.next}"] if self.next else found

    def _head(self) -> str:
        space = WIDTH - len(self.title) - len(self.aside)
        if space >= 2:
            return f"{self.title}{' ' * space}{self.aside}"
        return textwrap.shorten(f"{self.title}: {self.aside}", WIDTH, placeholder=" …")


def wrapped(text: str, *, most: int | None = None) -> list[str]:
    """Return the sentence of a row in lines, ``most`` of them at most."""
    lines = textwrap.wrap(
        text,
        WIDTH - NAMES,
        max_lines=None if most is None else max(1, most),
        placeholder=" …",
        break_on_hyphens=False,
    )
    return lines or [""]
