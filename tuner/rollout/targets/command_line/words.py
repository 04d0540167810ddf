"""A command line, split into words as the one who runs it splits it. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tuner.rollout.targets.command_line.dialects import Dialect
from tuner.rollout.targets.view import Span, View

_BLANK = " \t\r\n"
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
"""Templates that Helm, Ansible and their like fill in before anybody splits the text."""

_LONGEST = 131_072
"""Bytes of one argument, or one variable, that Linux takes (MAX_ARG_STRLEN)."""

_REDIRECTION = re.compile(r"&?[<>]+[&|]?|[<>]&-?")
_C_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
_C_LETTERS = dict(zip("abfnrstv", "\a\b\f\n\r \t\v", strict=True))
_MANY = re.compile(r"\$[@*]|\$\{[^}]*\[[@*]\]\}")


class UnreadableError(Exception):
    """A command line that cannot be split, and why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word: text that the program gets as it is, or what is put in for it."""

    text: str
    """As it is spelt, where something is put in for it."""

    start: int
    """Where it begins in the view."""

    is_literal: bool = True


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command line."""

    text: str
    start: int
    """Where it stands in the view, with its quotes."""

    end: int
    pieces: tuple[Piece, ...] = ()
    splits: bool = False
    """What is replaced may become several words, or none."""

    inner: View | None = None
    """Its text, when it is quoted as one piece."""


def split(view: View, dialect: Dialect) -> list[list[Word]]:
    """Return the commands of a text, each as its words. Raises UnreadableError."""
    if len(view.text) > _LONGEST:
        raise UnreadableError(f"it is longer than the {_LONGEST} characters that Linux starts")
    return _Scanner(view, dialect).commands()


def first_command(view: View, dialect: Dialect) -> list[Word]:
    """Return the words of a text's first command; none of an empty text. Raises UnreadableError."""
    commands = split(view, dialect)
    return commands[0] if commands else []


@dataclass(slots=True)
class _Read:
    """A part of a word: its characters, and what each is made of."""

    texts: list[tuple[str, Span]] = field(default_factory=list)
    known: bool = True
    splits: bool = False


@dataclass(slots=True)
class _Scanner:
    view: View
    dialect: Dialect
    at: int = 0
    filled_in: int = field(init=False)
    """Place behind which no template ends. Without it the end would be looked for at every brace,
    which takes for ever."""

    def __post_init__(self) -> None:
        self.filled_in = self.text.rfind("}}")

    @property
    def text(self) -> str:
        return self.view.text

    def commands(self) -> list[list[Word]]:
        found: list[list[Word]] = [[]]
        while self.at < len(self.text):
            here = self.text[self.at]
            if here in self.dialect.ends:
                self._end_of_command(here)
                found.append([])
            elif here in _BLANK:
                self.at += 1
            elif continued := self._continued():
                self.at = continued.end()
            elif here == "#" and self.dialect.comments:
                self.at = self._find("\n", self.at)
            elif self.dialect.comments and (to := _REDIRECTION.match(self.text, self.at)):
                self._redirection(found[-1], to)
            else:
                found[-1].append(self._word())
        return [command for command in found if command]

    def _end_of_command(self, here: str) -> None:
        if not self.dialect.comments:
            raise UnreadableError(f"{self.dialect.name} knows no {here!r}")
        if here == "&" and (to := _REDIRECTION.match(self.text, self.at)):
            self.at = to.end() - 1
        self.at += 1

    def _redirection(self, command: list[Word], to: re.Match[str]) -> None:
        """Skip a redirection with the file that it names; neither is an argument."""
        if to[0].startswith("<<"):
            raise UnreadableError("it has a here-document")
        if command and command[-1].end == self.at and command[-1].text.isdigit():
            command.pop()
        self.at = to.end()
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        if self.at < len(self.text) and self.text[self.at] not in _BLANK + self.dialect.ends:
            self._word()

    def _word(self) -> Word:
        start, read, quoted, parts = self.at, list[_Read](), list[str](), 0
        while self.at < len(self.text) and not self._ends_word():
            here = self.text[self.at]
            if here in "'\"":
                quoted.append(here)
                read += self._quoted(here)
                parts += 1
            else:
                read.append(self._one(None))
                parts += 1
        texts = [one for part in read for one in part.texts]
        text = "".join(piece for piece, _ in texts)
        inner = None
        if parts == len(quoted) == 1:
            within, quotes = self.dialect.within, quoted[0]
            spans = [span for piece, span in texts for _ in piece]
            inner = self.view.with_layer(text, spans, lambda part: within(part, quotes), quotes)
        return Word(
            text,
            start,
            self.at,
            pieces=tuple(_pieces(read)),
            splits=any(part.splits for part in read),
            inner=inner,
        )

    def _ends_word(self) -> bool:
        here = self.text[self.at]
        if here in _BLANK or here in self.dialect.ends:
            return True
        if self.dialect.comments and here in "<>":
            return True
        return self._continued() is not None

    def _continued(self) -> re.Match[str] | None:
        pattern = self.dialect.continued
        return None if pattern is None else pattern.match(self.text, self.at)

    def _quoted(self, quotes: str) -> list[_Read]:
        opened, found = self.at, list[_Read]()
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quotes:
            found.append(self._one(quotes))
        if self.at >= len(self.text):
            raise UnreadableError(f"a {quotes} is not closed: {self.text[opened:][:20]!r}")
        self.at += 1
        return found

    def _one(self, quotes: str | None) -> _Read:
        """Read one character, or what stands for some."""
        dialect, start = self.dialect, self.at
        template = _TEMPLATE.match(self.text, start) if start < self.filled_in else None
        if template is not None:
            self.at = template.end()
            texts = [(c, (start + n, start + n + 1)) for n, c in enumerate(template[0])]
            return _Read(texts, known=False, splits=quotes is None)
        raw = quotes == "'" and not dialect.c_escapes
        if self.text[start] == "\\" and not raw:
            return self._escaped(quotes)
        for twice, once in dialect.literal.items():
            if self.text.startswith(twice, start):
                self.at += len(twice)
                return _Read([(once, (start, self.at))])
        expands_here = not raw or dialect.literal  # Compose replaces before it splits
        expansion = dialect.expansion.match(self.text, start) if expands_here else None
        if expansion is not None:
            self.at = expansion.end()
            texts = [(c, (start + n, start + n + 1)) for n, c in enumerate(expansion[0])]
            many = quotes is None and not self._is_systemd_word(expansion)
            splits = many or (quotes == '"' and _MANY.match(expansion[0]) is not None)
            return _Read(texts, known=False, splits=splits)
        self.at += 1
        return _Read([(self.text[start], (start, self.at))])

    def _is_systemd_word(self, expansion: re.Match[str]) -> bool:
        """Whether systemd keeps it one word: it splits only ``$NAME``, and only as a word of its
        own."""
        if not self.dialect.c_escapes:
            return False
        return expansion[0].startswith(("${", "%"))

    def _escaped(self, quotes: str | None) -> _Read:
        start = self.at
        after = self.text[start + 1 : start + 2]
        if not after:
            raise UnreadableError("it ends in a backslash")
        self.at = start + 2
        if self.dialect.c_escapes:
            if code := _C_CODE.match(self.text, start + 1):
                self.at = code.end()
                digits = next(group for group in code.groups() if group)
                after = chr(int(digits, 8 if code[4] else 16))
            else:
                after = _C_LETTERS.get(after, after)
        elif quotes and after not in self.dialect.double_escapes:
            return _Read([("\\", (start, start + 1)), (after, (start + 1, start + 2))])
        elif after == "\n":
            if self.dialect.continued is None:
                raise UnreadableError(f"{self.dialect.name} does not join lines at a backslash")
            return _Read()
        return _Read([(after, (start, self.at))])

    def _find(self, what: str, start: int) -> int:
        at = self.text.find(what, start)
        return len(self.text) if at < 0 else at


def _pieces(read: Sequence[_Read]) -> Iterator[Piece]:
    """Yield what was read, with the characters between two replacements in one piece."""
    for number, run in groupby(enumerate(read), key=lambda one: -1 if one[1].known else one[0]):
        texts = [one for _, part in run for one in part.texts]
        if texts:
            yield Piece("".join(text for text, _ in texts), texts[0][1][0], number < 0)
