"""A text as a program reads it, with the place in the file of each of its characters. Pure.

Texts lie within texts: a flag in a script, the script in a string of a command line, the string in
a YAML scalar. A view looks through all of them, so that a change of a few characters changes only
these, written as every layer asks for.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tuner.errors import TargetError

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class View:
    """A text; ``spans[i]`` is where its character ``i`` stands in the file."""

    text: str
    spans: Sequence[Span]
    encode: Callable[[str], str]
    """How a part of the text is written at this place in the file."""

    origin: int
    """Where an empty text would begin in the file."""

    inside: str = ""
    """The quotes that it stands in, where they cannot be part of it."""

    def place(self, start: int, end: int) -> Span:
        """Return where a part of the text stands in the file."""
        if start < end:
            return self.spans[start][0], self.spans[end - 1][1]
        at = self.spans[start - 1][1] if start else self.origin
        return at, at

    def after(self, start: int) -> "View":
        """Return the text from there on."""
        at, _ = self.place(start, start)
        return replace(self, text=self.text[start:], spans=self.spans[start:], origin=at)

    def part(self, start: int, end: int) -> "View":
        """Return a part of the text."""
        at, _ = self.place(start, start)
        return replace(self, text=self.text[start:end], spans=self.spans[start:end], origin=at)

    def with_layer(
        self, text: str, taken: Sequence[Span], encode: Callable[[str], str], inside: str = ""
    ) -> "View":
        """Return a text read from this one; ``taken[i]`` is what its character ``i`` is made of."""
        outer = self.encode
        return View(
            text,
            [self.place(*one) for one in taken],
            lambda part: outer(encode(part)),
            self.place(taken[0][0], taken[0][0])[0] if taken else self.origin,
            inside,
        )


@lru_cache(maxsize=2)
def _line_ends(text: str) -> list[int]:
    return [found.end() for found in re.finditer(r"\r\n|\n|\r", text)]


@dataclass(slots=True)
class Edits:
    """The changes asked of one file's text."""

    text: str
    source: str
    changes: list[tuple[int, int, str]] = field(default_factory=list)

    def line(self, at: int) -> int:
        """Return the line, counted from 1, as editors count: CRLF is one line end."""
        return bisect_right(_line_ends(self.text), at) + 1

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def replace(self, start: int, end: int, new: str) -> None:
        """Change a part of the text; several texts put in at one place keep their order."""
        self.changes.append((start, end, new))

    def line_bounds(self, start: int, end: int) -> Span:
        """Return the whole lines on which a part of the text stands, with the last line end."""
        first = max(self.text.rfind("\n", 0, start), self.text.rfind("\r", 0, start)) + 1
        if end > start and self.text[end - 1] in "\r\n":
            return first, end
        last = self.text.find("\n", end)
        return first, len(self.text) if last < 0 else last + 1

    def taken(self) -> str:
        """Return the changed text; nothing is asked for any more. Raises TargetError."""
        result = self.result()
        self.changes.clear()
        return result

    def result(self) -> str:
        """Return the changed text. Raises TargetError where two changes meet."""
        parts, at, removing = list[str](), 0, False
        for start, end, new in sorted(self.changes, key=lambda change: change[:2]):
            if start < at and removing and not new:
                at = max(at, end)
                continue
            if start < at:
                raise TargetError(
                    f"{self.source}:{self.line(start)}: cannot be edited safely",
                    hint="Write each argument on its own, or edit the file by hand.",
                )
            parts += [self.text[at:start], new]
            at, removing = end, not new
        return "".join([*parts, self.text[at:]])
