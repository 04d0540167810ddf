"""The command line of a container: its command, its arguments, a script, a variable. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from tuner.errors import TargetError
from tuner.rollout.targets.command_line.command_line import (
    CommandLine,
    Part,
    TextPart,
    check_plain,
    vllm_begins,
)
from tuner.rollout.targets.command_line.dialects import SHELL, VARIABLE
from tuner.rollout.targets.command_line.flags import Token
from tuner.rollout.targets.command_line.words import UnreadableError, split
from tuner.rollout.targets.kinds.containers import COMPOSE_FILE, Container, lists
from tuner.rollout.targets.view import Edits, View
from tuner.rollout.targets.yaml.file import Escape, ListPart, YamlFile
from tuner.rollout.targets.yaml.nodes import entries, get, items, text_at

_SHELLS = {"sh", "bash", "dash", "ash", "zsh"}
_ARGS_VARIABLE = re.compile(r"VLLM_([A-Z]+_)*ARGS")


@dataclass(slots=True)
class _NewList:
    """A list of words that is not there yet."""

    file: YamlFile
    mapping: yaml.MappingNode
    key: str
    escape: Escape

    @property
    def tokens(self) -> list[Token]:
        return []

    def replace(self, index: int, text: str) -> None:
        raise AssertionError(index, text)

    def remove(self, index: int) -> None:
        raise AssertionError(index)

    def append(self, groups: Sequence[Sequence[str]]) -> None:
        words = [self.escape.write(text) for group in groups for text in group]
        present = entries(self.mapping).get(self.key)
        if present is None:
            self.file.add_key(self.mapping, self.key, words)
            return
        raise self.file.refuse(present, f"{self.key} is empty", hint="Remove the key.")


@dataclass(slots=True)
class _NewVariable(_NewList):
    """A variable of flags that is not there yet; ``key`` is its name."""

    def append(self, groups: Sequence[Sequence[str]]) -> None:
        value = " ".join(text for group in groups for text in group)
        for group in groups:
            for text in group:
                check_plain(text, source=self.file.source)
        variable = {"name": self.key, "value": value}
        listed = get(self.mapping, "env")
        if listed is None:
            self.file.add_key(self.mapping, "env", [variable])
        elif isinstance(listed, yaml.SequenceNode):
            self.file.append_mapping(listed, variable)
        else:
            raise self.file.refuse(listed, "env is no list", hint="Write it as a list.")


def command_line(file: YamlFile, one: Container, *, is_chosen: bool) -> CommandLine:
    """Return the words that vLLM is started with. Raises TargetError."""
    _refuse_merged(file, one)
    parts = lists(file, one)
    tokens = [token for part in parts for token in part.tokens]
    if (script := script_in(parts, tokens, file)) is not None:
        parts, tokens = [script], script.tokens
    begins = vllm_begins([token.text for token in tokens])
    own_command = get(one.node, one.spelling.command) is not None or script is not None
    if len(begins) == 1:
        begin = begins[0]
    elif not begins and not own_command:  # the image knows
        begin = int(tokens[:1] != [] and tokens[0].text == "serve")
    elif not begins and (is_chosen or one.is_vllm):  # a program that passes its flags on
        flagged = [n for n, token in enumerate(tokens) if n and token.text.startswith("-")]
        begin = len(parts[0].tokens) if len(parts) > 1 else min([*flagged, len(tokens)])
    else:
        raise TargetError(
            f"{file.place(one.node)}: {one.full_name} starts vLLM "
            f"{len(begins) or 'not'} {'times' if begins else 'in a way that is known'}",
            hint="Known: vllm serve, python -m vllm.entrypoints.openai.api_server, a vLLM image.",
        )
    return _with_variables(file, one, parts, begin)


def _with_variables(
    file: YamlFile, one: Container, parts: Sequence[Part], begin: int
) -> CommandLine:
    """Add the variables of flags that the command line uses."""
    tokens = [token for part in parts for token in part.tokens]
    used = set(re.findall(r"\w+", " ".join(t.text for t in tokens if not t.known)))
    free = not tokens
    names = {
        name: (node, begins)
        for name, node, begins in _environment(one)
        if name == one.variable or (_ARGS_VARIABLE.fullmatch(name) and (free or name in used))
    }
    variables: list[Part] = [_variable(file, *where) for where in names.values()]
    home: Part
    if variables:
        home = variables[-1]
    elif one.variable and not parts:
        home = _NewVariable(file, one.node, one.variable, one.spelling.escape)
    elif parts:
        home = parts[-1]
    elif one.replaces:
        raise file.refuse(
            one.node,
            f"{one.full_name} has no {one.spelling.args} here, and a list written here replaces "
            "the whole one elsewhere",
            hint="Copy the list here first, or apply the profile to where it is.",
        )
    else:
        home = _NewList(file, one.node, one.spelling.args, one.spelling.escape)
    spare = parts[-1] if variables and parts else None
    return CommandLine([*parts, *variables], begin, home, spare, file.edits, frozenset(names))


def script_in(
    parts: Sequence[Part], tokens: Sequence[Token], file: YamlFile | None
) -> TextPart | None:
    """Return the command of a shell's script that starts vLLM; None where no shell runs.

    ``file``: what the lists among the parts stand in. Raises TargetError.
    """
    if not tokens or tokens[0].text.rpartition("/")[2] not in _SHELLS:
        return None
    option = next((n for n, t in enumerate(tokens) if re.fullmatch(r"-[a-z]*c", t.text)), None)
    if option is None or option + 1 >= len(tokens):
        raise TargetError(
            f"{tokens[0].place}: a shell without -c and a script", hint="Name vllm serve there."
        )
    view, edits = _script_view(file, parts, option + 1)
    try:
        commands = [words for words in split(view, SHELL) if vllm_begins([w.text for w in words])]
    except UnreadableError as problem:
        raise TargetError(
            f"{tokens[option].place}: the script cannot be understood: {problem}",
            hint="Simplify it, or edit it by hand.",
        ) from None
    if len(commands) != 1:
        raise TargetError(
            f"{tokens[option + 1].place}: the script has {len(commands) or 'no'} vllm serve",
            hint="Write vllm serve and its flags once, as a command of its own.",
        )
    return TextPart(view, commands[0], SHELL, edits)


def _script_view(file: YamlFile | None, parts: Sequence[Part], index: int) -> tuple[View, Edits]:
    for part in parts:
        if index < len(part.tokens):
            break
        index -= len(part.tokens)
    if isinstance(part, ListPart):
        assert file is not None
        view = file.view(part.node.value[index])
        return (_undoubled(view) if part.escape is COMPOSE_FILE.escape else view), file.edits
    assert isinstance(part, TextPart)
    inner = part.words[index].inner
    if inner is None:
        raise TargetError(
            f"{part.tokens[index].place}: the script is quoted in pieces",
            hint="Put all of it in one pair of quotes.",
        )
    return inner, part.edits


def _undoubled(view: View) -> View:
    """Return what Compose makes of a text: ``$$`` is one ``$``."""
    pieces = [match.span() for match in re.finditer(r"\$\$|.", view.text, flags=re.DOTALL)]
    text = "".join(view.text[end - 1 : end] for _, end in pieces)
    return view.with_layer(text, pieces, lambda part: part.replace("$", "$$"))


def _environment(one: Container) -> Iterator[tuple[str, yaml.ScalarNode, int]]:
    """Yield name, the scalar that has the value, and where in its text that begins."""
    node = get(one.node, one.spelling.environment)
    for name, value in entries(node).items():
        if isinstance(value, yaml.ScalarNode):
            yield name, value, 0
    for item in items(node):
        listed = get(item, "value")
        if isinstance(listed, yaml.ScalarNode):
            yield text_at(item, "name") or "", listed, 0
        if isinstance(item, yaml.ScalarNode):
            name, equals, _ = item.value.partition("=")
            yield name, item, len(name + equals)


def _variable(file: YamlFile, node: yaml.ScalarNode, begin: int) -> TextPart:
    view = file.view(node).after(begin)
    try:
        commands = split(view, VARIABLE)
    except UnreadableError as problem:
        raise file.refuse(node, f"cannot be understood: {problem}", hint="Simplify it.") from None
    return TextPart(view, commands[0] if commands else [], VARIABLE, file.edits)


def _refuse_merged(file: YamlFile, one: Container) -> None:
    merged = entries(one.node).get("<<")
    sources = items(merged) or ([] if merged is None else [merged])
    keys = {one.spelling.command, one.spelling.args, one.spelling.environment}
    for source in sources:
        if (keys - set(entries(one.node))) & set(entries(source)):
            raise file.refuse(
                one.node,
                f"{one.full_name} takes its command from an anchor",
                hint="Write command and environment out where they should differ.",
            )
