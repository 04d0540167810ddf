"""A verdict in at most eight lines of 80 columns, the answer first. Pure."""

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80
MOST_LINES = 8
NAMES = 11
"""Columns of a row's name, with the space on both sides."""

JOINED = " \\"
"""At the end of a line that a shell goes on with in the next."""


@dataclass(frozen=True, slots=True)
class VerdictBlock:
    """What to set, then what it gives, costs and rests on, and last what to run."""

    title: str
    aside: str
    """What sort of answer it is, and how sure: at the right of the title."""

    rows: Sequence[tuple[str, str]]
    """Name and sentence of each, the most important first."""

    next: str
    """The command to run, as a shell takes it. Empty where there is none."""

    def lines(self) -> list[str]:
        """Return at most MOST_LINES lines of at most WIDTH columns. A row that is too long for the
        room that is left ends with an ellipsis, between two clauses where it has any."""
        typed = self._typed()
        found = [self._head()]
        room = MOST_LINES - 1 - max(1, len(typed)) - (len(self.rows) - 1)
        for name, text in self.rows:
            part = wrapped(text, most=room)
            found += _row(name, part)
            room -= len(part) - 1
        return [*found, *_row("next", typed)]

    def _typed(self) -> list[str]:
        """Return the command in lines that a shell joins, as many as the rows leave room for."""
        lines = [""]
        for word in map(shlex.quote, shlex.split(self.next)):
            longer = f"{lines[-1]} {word}".lstrip()
            if lines[-1] and len(longer) > WIDTH - NAMES - len(JOINED):
                lines.append(word)
            else:
                lines[-1] = longer
        if len(self.next) <= WIDTH - NAMES or len(lines) > MOST_LINES - 1 - len(self.rows):
            return [self.next] if self.next else []
        return [*(line + JOINED for line in lines[:-1]), lines[-1]]

    def _head(self) -> str:
        space = WIDTH - len(self.title) - len(self.aside)
        if space >= 2:
            return f"{self.title}{' ' * space}{self.aside}"
        return textwrap.shorten(f"{self.title}: {self.aside}", WIDTH, placeholder=" …")


def _row(name: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a row, its name before the first."""
    return [f"  {'' if number else name:<{NAMES - 2}}{line}" for number, line in enumerate(lines)]


def wrapped(text: str, *, most: int | None = None) -> list[str]:
    """Return the sentence of a row in lines, ``most`` of them at most: of one that is too long the
    clauses that fit or, where not even the first does, its beginning.

    >>> wrapped("16 serves all; " + "8 serves less " * 5, most=1)
    ['16 serves all …']
    """
    lines = _filled(text)
    if most is None or len(lines) <= max(1, most):
        return lines
    clauses = text.split("; ")
    for count in range(len(clauses) - 1, 0, -1):
        lines = _filled(f"{'; '.join(clauses[:count])} …")
        if len(lines) <= max(1, most):
            return lines
    return _filled(text, most=max(1, most))


def _filled(text: str, *, most: int | None = None) -> list[str]:
    width = WIDTH - NAMES
    return textwrap.wrap(text, width, max_lines=most, placeholder=" …", break_on_hyphens=False) or [
        ""
    ]
