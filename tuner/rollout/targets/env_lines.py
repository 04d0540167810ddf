"""The lines of a file of environment variables. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile(
    r"^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*?)[ \t\r]*$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class EnvLine:
    """One variable, as a line sets it."""

    name: str
    value: str
    """Without its quotes, and without a comment behind it."""

    line: int
    at: int
    """Where the name begins."""

    start: int
    """Where the value begins, behind its quote; ``end``: where it ends, before it."""

    end: int
    quotes: str
    problem: str = ""
    """Why who reads it may read something else."""


def env_lines(text: str) -> Iterator[EnvLine]:
    """Yield the variables of a file, comments and blank lines left out."""
    line, counted = 1, 0
    for match in _LINE.finditer(text):
        line += text.count("\n", counted, match.start(1))
        counted = match.start(1)
        name, value, start, end = match[1], match[2], match.start(2), match.end(2)
        quotes, problem = value[:1] if value[:1] in ("'", '"') else "", ""
        if quotes and (behind := re.fullmatch(r"(.)((?:(?!\1).)*)\1([ \t]+#.*)?", value)):
            value, start, end = behind[2], start + 1, start + behind.end(2)
        elif quotes:
            problem = "its quotes do not match"
            quotes = ""
        elif comment := re.search(r"[ \t]+#", value):
            problem = "a shell takes what follows # for a comment, systemd does not"
            value, end = value[: comment.start()], start + comment.start()
        yield EnvLine(name, value, line, match.start(1), start, end, quotes, problem)
