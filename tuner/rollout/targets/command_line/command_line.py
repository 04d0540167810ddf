"""The words that vLLM is started with, wherever in a file they stand. Pure.

A command line may come in parts: a container's command, its arguments, a script within them, a
variable that the script uses. Each part knows how to change its own words in the file.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.engines.seam import ArgumentValue
from tuner.errors import TargetError
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.command_line.dialects import (
    SHELL,
    VARIABLE,
    Dialect,
    is_plain,
    shell_quote_within,
)
from tuner.rollout.targets.command_line.flags import Append, Remove, Replace, Token, is_template
from tuner.rollout.targets.command_line.words import Word
from tuner.rollout.targets.seam import Stated
from tuner.rollout.targets.view import Edits, View

_SERVERS = {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"}
VLLM_IMAGE = re.compile(r"(?:^|/)[^/:@]*vllm[^/:@]*(?:[:@].*)?$")


class Part(Protocol):
    """Some words of a command line, in order."""

    @property
    def tokens(self) -> Sequence[Token]: ...

    def replace(self, index: int, text: str) -> None: ...

    def remove(self, index: int) -> None: ...

    def append(self, groups: Sequence[Sequence[str]]) -> None:
        """Write the words of some flags behind the last word."""
        ...


@dataclass(slots=True)
class TextPart:
    """Words in a text, such as one command of a script."""

    view: View
    words: Sequence[Word]
    dialect: Dialect
    edits: Edits

    @property
    def tokens(self) -> list[Token]:
        return [
            Token(
                word.text,
                self._place(word),
                self._line(word),
                known=word.known and not is_template(word.text),
                splits=word.splits,
            )
            for word in self.words
        ]

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

    def _line(self, word: Word) -> int:
        return self.edits.line(self.view.place(word.start, word.end)[0])

    def _place(self, word: Word) -> str:
        return f"{self.edits.source}:{self._line(word)}"


def check_plain(text: str, *, source: str) -> None:
    """Refuse a word that a variable cannot carry. Raises TargetError."""
    if not is_plain(text):
        raise TargetError(
            f"{source}: a variable cannot carry {text!r}: who splits it at blanks may take quotes "
            "for text",
            hint="Write it as a list of arguments, or in a --config file.",
        )


def vllm_begins(texts: Sequence[str]) -> list[int]:
    """Return where vLLM's own words begin: behind ``vllm serve`` and its like."""
    found = []
    for index, (one, other) in enumerate(itertools.pairwise(texts)):
        is_command = one.rpartition("/")[2] == "vllm" and other == "serve"
        if is_command or (one == "-m" and other in _SERVERS):
            found.append(index + 2)
    if not found and texts and texts[0].rpartition("/")[2] in {"docker", "podman"}:
        images = [n for n, text in enumerate(texts) if VLLM_IMAGE.search(text) and n > 1]
        found = [index + 1 for index in images[:1]]
    return found


@dataclass(slots=True)
class CommandLine:
    """The parts in order, and which of their words are vLLM's."""

    parts: Sequence[Part]
    begin: int
    """Index of the first word that is vLLM's."""

    home: Part
    """Where new flags go."""

    spare: Part | None
    """Where those go that home, a variable, cannot carry."""

    edits: Edits
    spliced: frozenset[str] = frozenset()
    """Variables that are parts themselves."""

    def stated(self) -> dict[str, Stated]:
        tokens = self._tokens()
        found = flags.stated(tokens)
        model = self._positional_model(tokens)
        if model is not None and tokens[model].known:
            found["model"] = Stated(tokens[model].text, tokens[model].line)
        return found

    def write(self, arguments: Mapping[str, ArgumentValue]) -> None:
        """Ask for the edits. Raises TargetError for words that cannot be understood."""
        tokens = self._tokens()
        self._refuse_unclear(tokens)
        rest = dict(arguments)
        model = self._positional_model(tokens)
        if model is not None:
            wanted = rest.pop("model", None)
            stated = tokens[model]
            if wanted is not None and stated.known and str(wanted) != stated.text:
                self._apply(Replace(model, str(wanted)))
        elif "model" not in flags.stated(tokens):
            rest.pop("model", None)  # the image, the runtime or a volume decides
        added = list[tuple[str, ...]]()
        for change in flags.changes(tokens, rest, source=self.edits.source):
            if isinstance(change, Append):
                added.append(change.texts)
            else:
                self._apply(change)
        plain = [words for words in added if self.spare is None or all(map(is_plain, words))]
        if plain:
            self.home.append(plain)
        if self.spare is not None and len(plain) < len(added):
            self.spare.append([words for words in added if words not in plain])

    def _tokens(self) -> list[Token]:
        return [token for part in self.parts for token in part.tokens][self.begin :]

    def _positional_model(self, tokens: Sequence[Token]) -> int | None:
        """Return which word is the model without a flag: the first that is of no flag."""
        of_flags = {index for flag in flags.find(tokens) for index in (flag.index, *flag.values)}
        free = (
            index
            for index, token in enumerate(tokens)
            if index not in of_flags
            and not token.text.startswith("-")
            and not self._is_spliced(token)
        )
        model = next(free, None)
        if model is not None and re.search(r"\s", tokens[model].text):
            raise TargetError(
                f"{tokens[model].place}: {tokens[model].text[:40]!r} is one word, and no model",
                hint="Write each argument as a word of its own, or run a shell: sh -c.",
            )
        return model

    def _is_spliced(self, token: Token) -> bool:
        return re.sub(r"[${}()]", "", token.text) in self.spliced and not token.known

    def _refuse_unclear(self, tokens: Sequence[Token]) -> None:
        found = flags.find(tokens)
        taken = {index for flag in found for index in flag.values} | {0}
        for index, token in enumerate(tokens):
            if token.splits and index not in taken and not self._is_spliced(token):
                raise TargetError(
                    f"{token.place}: {token.text} may hold more flags",
                    hint='Put it in quotes if it is one word, as in "$MODEL"; '
                    "or apply the profile to the file that sets it.",
                )
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

    def _apply(self, change: Replace | Remove) -> None:
        part, local = self._owner(change.index)
        if isinstance(change, Replace):
            part.replace(local, change.text)
        else:
            part.remove(local)

    def _owner(self, index: int) -> tuple[Part, int]:
        local = self.begin + index
        for part in self.parts:
            if local < len(part.tokens):
                return part, local
            local -= len(part.tokens)
        raise AssertionError(f"no word {index}")
