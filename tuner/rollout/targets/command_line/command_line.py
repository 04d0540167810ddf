"""The words that vLLM is started with, wherever in a file they stand. Pure.

A command line may come in parts: a container's command, its arguments, a script within them, a
variable that the script uses. Each part knows how to change its own words in the file.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.errors import TargetError
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.command_line.dialects import (
    SHELL,
    VARIABLE,
    Dialect,
    is_plain,
    shell_quote_within,
)
from tuner.rollout.targets.command_line.flags import (
    Append,
    Change,
    Remove,
    Replace,
    Token,
    token_of,
)
from tuner.rollout.targets.command_line.variables import (
    Scope,
    Variable,
    nothing,
    reference,
    setting_of,
)
from tuner.rollout.targets.command_line.words import Piece, UnreadableError, Word, first_command
from tuner.rollout.targets.seam import Arguments, Stated
from tuner.rollout.targets.view import Edits, View


class CommandPart(Protocol):
    """Some words of a command line, in order."""

    @property
    def tokens(self) -> Sequence[Token]: ...

    def replace(self, index: int, text: str) -> None:
        """Write another word. Raises TargetError where it cannot be edited safely."""
        ...

    def remove(self, index: int) -> None:
        """Take a word out. Raises TargetError where it cannot be edited safely."""
        ...

    def append(self, groups: Sequence[Sequence[str]]) -> None:
        """Write the words of some flags behind the last word. Raises TargetError."""
        ...


@dataclass(slots=True)
class TextPart:
    """Words in a text, such as one command of a script."""

    view: View
    words: Sequence[Word]
    dialect: Dialect
    edits: Edits
    scope: Scope = nothing
    outer: Scope | None = None
    """Where ``$$`` in the file is ``$`` in the text: what is put in for a single one."""

    @property
    def tokens(self) -> list[Token]:
        return [self._token(word) for word in self.words]

    def _token(self, word: Word) -> Token:
        line = self.edits.line(self.view.place(word.start, word.end)[0])
        place = f"{self.edits.source}:{line}"
        return token_of(word.pieces, place, line, self._setting, splits=word.splits)

    def _setting(self, piece: Piece) -> Variable | None:
        at, _ = self.view.place(piece.start, piece.start + 1)
        is_outer = self.outer is not None and not self.edits.text.startswith("$$", at)
        scope = self.outer if is_outer and self.outer is not None else self.scope
        return setting_of(piece, scope, self._change_at)

    def _change_at(self, start: int, end: int) -> Callable[[str], None]:
        return lambda new: self._change(start, end, new)

    def _change(self, start: int, end: int, new: str) -> None:
        check_plain(new, source=self.edits.source)
        self.edits.replace(*self.view.place(start, end), self.view.encode(new))

    def replace(self, index: int, text: str) -> None:
        word = self.words[index]
        self.edits.replace(*self.view.place(word.start, word.end), self._spelt(text))

    def remove(self, index: int) -> None:
        """Remove a word with the blanks before it, or else after it."""
        word = self.words[index]
        start, end = word.start, word.end
        if index:
            start = self.words[index - 1].end
        elif len(self.words) > 1:
            end = self.words[1].start
        self.edits.replace(*self.view.place(start, end), "")

    def append(self, groups: Sequence[Sequence[str]]) -> None:
        """Write them with the blanks that stand before the last flag."""
        spelt = [" ".join(self._spelt(text) for text in group) for group in groups]
        if not self.words:
            at, _ = self.view.place(0, 0)
            self.edits.replace(at, at, " ".join(spelt))
            return
        gap = self._gap()
        _, at = self.view.place(self.words[-1].start, self.words[-1].end)
        self.edits.replace(at, at, "".join(gap + one for one in spelt))

    def _gap(self) -> str:
        """Return what stands between the last flag and the word before it, in the file."""
        for index in range(len(self.words) - 1, 0, -1):
            if self.words[index].text.startswith("--"):
                _, start = self.view.place(self.words[index - 1].start, self.words[index - 1].end)
                end, _ = self.view.place(self.words[index].start, self.words[index].end)
                gap = self.edits.text[start:end]
                if "#" not in gap and ";" not in gap:
                    return gap
        return " "

    def _spelt(self, text: str) -> str:
        if self.dialect is VARIABLE:
            check_plain(text, source=self.edits.source)
        if self.dialect is SHELL:
            return self.view.encode(shell_quote_within(text, self.view.inside))
        return self.view.encode(self.dialect.write(text))


def _more_flags(token: Token) -> TargetError:
    cure = "" if token.variable is None else token.variable.cure
    return TargetError(
        f"{token.place}: {token.text} may hold more flags",
        hint=cure
        or 'Put it in quotes if it is one word, as in "$MODEL"; or apply the profile to the file '
        "that sets it.",
    )


def check_plain(text: str, *, source: str) -> None:
    """Refuse a word that a variable cannot carry. Raises TargetError."""
    if not is_plain(text):
        raise TargetError(
            f"{source}: a variable cannot carry {text!r}: who splits it at blanks may take quotes "
            "for text",
            hint="Write it as a list of arguments, or in a --config file.",
        )


@dataclass(slots=True)
class ElsewherePart:
    """The flags in a variable that is set elsewhere: they are read, and never changed."""

    name: str
    variable: Variable
    tokens: Sequence[Token]

    def replace(self, index: int, _: str) -> None:
        self.remove(index)

    def remove(self, index: int) -> None:
        raise TargetError(
            f"{self.tokens[index].place}: {self.tokens[index].text[:40]} stands in {self.name}, "
            f"which {self.variable.why or 'is set elsewhere'}",
            hint=self.variable.cure or "Write the flag here, where the others are, and not there.",
        )

    def append(self, groups: Sequence[Sequence[str]]) -> None:
        raise AssertionError(groups)


def elsewhere(tokens: Sequence[Token]) -> list[ElsewherePart]:
    """Return the flags that are put in for words, where those may be several and are known.

    Raises TargetError where they cannot be split into words.
    """
    values = {index for flag in flags.find(tokens) for index in flag.values}
    found = list[ElsewherePart]()
    for index, token in enumerate(tokens):
        asked, variable = reference(token.text), token.variable
        if not token.splits or index in values or asked is None or variable is None:
            continue
        if token.value is not None and holds_flags(token.value):
            inner = _inner(token, token.value, asked.name, variable.cure)
            found.append(ElsewherePart(asked.name, variable, inner))
    return found


def _inner(token: Token, value: str, name: str, cure: str) -> list[Token]:
    view = View(value, [(at, at + 1) for at in range(len(value))], str, 0)
    try:
        words = first_command(view, VARIABLE)
    except UnreadableError as problem:
        raise TargetError(
            f"{token.place}: {name} cannot be understood: {problem}",
            hint=cure or "Mend the quotes there.",
        ) from None
    return [
        token_of(word.pieces, token.place, token.line, lambda _: None, splits=word.splits)
        for word in words
    ]


def holds_flags(value: str) -> bool:
    """Whether a variable that is split into words is one of flags, and not of a model's name."""
    return not value.strip() or re.search(r"(^|\s)-", value) is not None


@dataclass(slots=True)
class CommandLine:
    """The parts in order, and which of their words are vLLM's."""

    parts: Sequence[CommandPart]
    begin: int
    """Index of the first word that is vLLM's."""

    home: CommandPart
    """Where new flags go."""

    spare: CommandPart | None
    """Where those go that home, a variable, cannot carry."""

    edits: Edits
    evidence: str = ""
    """Why it is vLLM that is started."""

    spliced: frozenset[str] = frozenset()
    """Variables of flags: parts themselves, or not known here and left."""

    @property
    def words(self) -> list[Token]:
        """vLLM's own words."""
        return [token for part in self.parts for token in part.tokens][self.begin :]

    def stated(self) -> dict[str, Stated]:
        """Return what the words state. Raises TargetError for words that are not vLLM's."""
        tokens = self.words
        found = flags.stated(tokens)
        at = self._model(tokens)
        if at is not None:
            token = tokens[at]
            why = "" if token.got is not None else flags.why_unknown(token)
            found["model"] = Stated(token.text if why else token.got, token.line, why)
        return found

    def write(self, arguments: Arguments) -> None:
        """Ask for the edits. Raises TargetError for words that cannot be understood."""
        tokens = self.words
        self._refuse_unclear(tokens)
        added = list[tuple[str, ...]]()
        for change in flags.changes(tokens, arguments, source=self.edits.source):
            if isinstance(change, Append):
                added.append(change.texts)
            else:
                self._apply(change)
        plain = [words for words in added if self.spare is None or all(map(is_plain, words))]
        if plain:
            self.home.append(plain)
        if self.spare is not None and len(plain) < len(added):
            self.spare.append([words for words in added if words not in plain])

    def _model(self, tokens: Sequence[Token]) -> int | None:
        """Return which word is the model. Raises TargetError for what cannot be one."""
        spliced = [n for n, token in enumerate(tokens) if self._is_spliced(token)]
        at = flags.model(tokens, but=spliced)
        if at is None or not re.search(r"\s|^-", tokens[at].got or ""):
            return at
        if tokens[at].splits:
            raise _more_flags(tokens[at])
        raise TargetError(
            f"{tokens[at].place}: {tokens[at].text[:40]!r} is one word, and no model",
            hint="Write each argument as a word of its own, or run a shell: sh -c.",
        )

    def _is_spliced(self, token: Token) -> bool:
        return re.sub(r"[${}()]", "", token.text) in self.spliced and not token.known

    def _refuse_unclear(self, tokens: Sequence[Token]) -> None:
        found = flags.find(tokens)
        taken = {index for flag in found for index in flag.values} | {self._model(tokens)}
        for index, token in enumerate(tokens):
            if token.splits and index not in taken and not self._is_spliced(token):
                raise _more_flags(token)
            if token.text == "--":
                raise TargetError(
                    f"{token.place}: a -- ends vLLM's flags", hint="Remove it, or edit by hand."
                )
        for flag in found:
            if flag.argument == "config" and not flag.part:
                raise TargetError(
                    f"{tokens[flag.index].place}: vLLM gets its arguments from a --config file",
                    hint="Apply the profile to that file: tuner apply PROFILE CONFIG.yaml",
                )

    def _apply(self, change: Replace | Remove | Change) -> None:
        part, local = self._owner(change.index)
        if isinstance(change, Replace):
            part.replace(local, change.text)
        elif isinstance(change, Remove):
            part.remove(local)
        else:
            variable = part.tokens[local].variable
            assert variable is not None
            assert variable.change is not None
            variable.change(change.text)

    def _owner(self, index: int) -> tuple[CommandPart, int]:
        local = self.begin + index
        for part in self.parts:
            if local < len(part.tokens):
                return part, local
            local -= len(part.tokens)
        raise AssertionError(f"no word {index}")
