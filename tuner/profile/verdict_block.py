"""A verdict in at most eight lines of 80 columns, the answer first. Pure."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80
MOST_LINES = 8
NAMES = 11
"""Columns of a row's name, with the space on both sides."""

BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:ms|s|min|h)\b)")
TOGETHER = "\N{NO-BREAK SPACE}"
"""Between a number and its unit while lines are filled: they stay together."""


@dataclass(frozen=True, slots=True)
class VerdictBlock:
    """A verdict: what to set, then what that gives, costs and rests on."""

    title: str
    aside: str
    """What sort of answer it is, and how sure: at the right of the title."""

    rows: Sequence[tuple[str, str]]
    """Name and sentence of each, the most important first."""

    def lines(self) -> list[str]:
        """Return at most MOST_LINES lines of at most WIDTH columns.

        Of a row that is too long for the room that is left, its first whole clauses are kept. The
        reason is the first row to give way.
        """
        head, rows = self._head(), dict[int, list[str]]()
        room = MOST_LINES - len(head) - (len(self.rows) - 1)
        for number in sorted(range(len(self.rows)), key=lambda at: self.rows[at][0] == "why"):
            name, text = self.rows[number]
            part = wrapped(text, most=room)
            rows[number] = _row(name, part)
            room -= len(part) - 1
        return [*head, *(line for number in sorted(rows) for line in rows[number])]

    def _head(self) -> list[str]:
        """Return the title, with the aside beside it where it fits and in a row of its own below a
        longer one. A title with strangers' names that is longer than two lines is cut."""
        space = WIDTH - len(self.title) - len(self.aside)
        if not self.aside or space >= 2:
            return [f"{self.title}{' ' * space * bool(self.aside)}{self.aside}"]
        title = textwrap.wrap(
            self.title, WIDTH, max_lines=2, placeholder=" …", break_on_hyphens=False
        )
        return [*title, *_row("verdict", [self.aside])]


def _row(name: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a row, its name before the first."""
    return [f"  {'' if number else name:<{NAMES - 2}}{line}" for number, line in enumerate(lines)]


def wrapped(text: str, *, most: int | None = None) -> list[str]:
    """Return the sentence of a row in lines, ``most`` of them at most.

    Of one that is too long the clauses that fit are kept, of one clause its parts. Only what has no
    part that fits, such as a stranger's name, ends with an ellipsis.

    >>> wrapped("16 serves all; " + "8 serves less " * 5, most=1)
    ['16 serves all']
    >>> wrapped("99 % in SLO (now 82, or less), " + "p95 TPOT 31 ms, or more, " * 2, most=1)
    ['99 % in SLO (now 82, or less), p95 TPOT 31 ms, or more']
    """
    lines = _filled(text)
    if most is None or len(lines) <= max(1, most):
        return lines
    for end in reversed([*_ends(text, ", "), *_ends(text, "; ")]):
        lines = _filled(text[:end])
        if len(lines) <= max(1, most):
            return lines
    return _filled(text, most=max(1, most))


def _ends(text: str, between: str) -> list[int]:
    """Return where the clauses end but for the last, none of them in brackets."""
    return [
        found.start()
        for found in re.finditer(re.escape(between), text)
        if text.count("(", 0, found.start()) == text.count(")", 0, found.start())
    ]


def _filled(text: str, *, most: int | None = None) -> list[str]:
    lines = textwrap.wrap(
        BEFORE_UNIT.sub(TOGETHER, text),
        WIDTH - NAMES,
        max_lines=most,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return [line.replace(TOGETHER, " ") for line in lines] or [""]
