"""The one ``vllm serve`` of a shell's script, and the variables that the script sets. Pure."""

import re
from collections.abc import Callable, Sequence

from tuner.errors import NotVllmError, TargetError
from tuner.rollout.targets.command_line.command_line import TextPart
from tuner.rollout.targets.command_line.dialects import SHELL
from tuner.rollout.targets.command_line.flags import token_of
from tuner.rollout.targets.command_line.process import server
from tuner.rollout.targets.command_line.variables import (
    Scope,
    Variable,
    first_of,
    nothing,
    setting_of,
)
from tuner.rollout.targets.command_line.words import Piece, UnreadableError, Word, split
from tuner.rollout.targets.view import Edits, View

SHELLS = frozenset({"ash", "bash", "dash", "sh", "zsh"})
_BRANCHES = frozenset({"case", "for", "function", "if", "select", "until", "while"})
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=", re.DOTALL)
_SETS = frozenset({"declare", "export", "readonly", "typeset"})


def command_of(
    view: View, edits: Edits, place: str, *, outer: Scope = nothing, doubled: Scope | None = None
) -> TextPart:
    """Return the command of the script that starts vLLM.

    ``outer``: the variables that are set around the script; ``doubled``: where ``$$`` in the file
    is the script's ``$``, those of the script, and ``outer`` are put in before. Raises TargetError
    for a script that cannot be understood, NotVllmError for one without ``vllm serve``.
    """
    try:
        commands = split(view, SHELL)
    except UnreadableError as problem:
        raise TargetError(
            f"{place}: the script cannot be understood: {problem}",
            hint="Simplify it, or edit it by hand.",
        ) from None
    found = [n for n, words in enumerate(commands) if server([word.text for word in words])]
    if not found:
        raise NotVllmError(
            f"{place}: the script has no vllm serve",
            hint="Write vllm serve and its flags once, as a command of its own.",
        )
    if len(found) > 1:
        raise TargetError(
            f"{place}: the script has {len(found)} vllm serve",
            hint="Write vllm serve and its flags once, as a command of its own.",
        )
    around = outer if doubled is None else doubled
    own = _Assigned(view, edits, commands[: found[0]], around)
    part = TextPart(view, commands[found[0]], SHELL, edits, first_of(own.find, around))
    part.outer = None if doubled is None else outer
    return part


class _Assigned:
    """The variables that a script sets before a command."""

    def __init__(
        self, view: View, edits: Edits, commands: Sequence[Sequence[Word]], outer: Scope
    ) -> None:
        self._view, self._edits, self._outer = view, edits, outer
        self._found: dict[str, Variable] = {}
        may_be_left_out = False
        for words in commands:
            may_be_left_out |= any(word.text in _BRANCHES for word in words[:1])
            rest = words[1:] if words and words[0].text in _SETS else words
            if rest and all(_ASSIGNMENT.match(word.text) for word in rest):
                for word in rest:
                    self._add(word, may_be_left_out=may_be_left_out)

    def find(self, name: str) -> Variable | None:
        return self._found.get(name)

    def _add(self, word: Word, *, may_be_left_out: bool) -> None:
        assigned = _ASSIGNMENT.match(word.text)
        assert assigned is not None
        name, begin = assigned[1], assigned.end()
        if name in self._found or may_be_left_out or assigned[2]:
            self._found[name] = Variable(None, "is set in several ways in the script")
            return
        pieces = _behind(word.pieces, begin)
        scope = first_of(self.find, self._outer)
        token = token_of(pieces, "", 0, lambda piece: setting_of(piece, scope, self._change_at))
        if token.known:
            self._found[name] = Variable(
                token.text, change=self._change_at(word.start + begin, word.end)
            )
        else:
            self._found[name] = token.variable or Variable(
                token.value, f"is {word.text[begin:][:80]}"
            )

    def _change_at(self, start: int, end: int) -> Callable[[str], None]:
        def change(new: str) -> None:
            at = self._view.place(start, end)
            self._edits.replace(*at, self._view.encode(SHELL.write(new)))

        return change


def _behind(pieces: Sequence[Piece], begin: int) -> list[Piece]:
    """Return what stands behind the ``NAME=`` that the first piece begins with."""
    first, *rest = pieces
    tail = [Piece(first.text[begin:], first.start + begin)] if first.text[begin:] else []
    return [*tail, *rest] or [Piece("", first.start + begin)]
