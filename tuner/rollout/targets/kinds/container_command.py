"""The command line of a container: its command, its arguments, a script, a variable. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import yaml

from tuner.errors import NotVllmError, TargetError
from tuner.rollout.targets import images
from tuner.rollout.targets.command_line import script
from tuner.rollout.targets.command_line.command_line import (
    CommandLine,
    CommandPart,
    TextPart,
    check_plain,
    elsewhere,
    holds_flags,
)
from tuner.rollout.targets.command_line.dialects import VARIABLE
from tuner.rollout.targets.command_line.flags import Token
from tuner.rollout.targets.command_line.process import server
from tuner.rollout.targets.command_line.variables import Scope, reference
from tuner.rollout.targets.kinds.containers import (
    Container,
    environment,
    lists,
    text_part,
    variables,
)
from tuner.rollout.targets.view import Edits, View
from tuner.rollout.targets.yaml.file import Escape, ListPart, YamlFile
from tuner.rollout.targets.yaml.nodes import entries, get, items, text_at


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


def command_line(file: YamlFile, one: Container, *, is_trusted: bool = False) -> CommandLine:
    """Return the words that vLLM is started with.

    ``is_trusted``: somebody says that it is vLLM. Raises NotVllmError where nothing else does, and
    TargetError for words that cannot be understood.
    """
    _refuse_merged(file, one)
    inner = environment(file, one)
    parts = lists(file, one, inner if one.spelling.puts_in_environment else one.outer)
    tokens = [token for part in parts for token in part.tokens]
    own_command = get(one.node, one.spelling.command) is not None
    found = script_in(parts, tokens, _Scripts(file, one, inner))
    if found is not None:
        parts, tokens, own_command = [found], found.tokens, True
    started = server([token.text for token in tokens])
    known = None if own_command else images.entrypoint(one.image)
    if started is not None:
        begin, evidence = started.begin, started.evidence
    elif one.evidence or known or is_trusted:
        begin, evidence = _flags_begin(parts, own_command), one.evidence or known or ""
    else:
        raise NotVllmError(
            f"{file.place(one.node)}: {one.full_name} is not seen to run vLLM: "
            f"it starts {_started(one, tokens, own_command)}",
            hint="vllm serve, python -m vllm.entrypoints.openai.api_server and images that start "
            f"them are known. If it is vLLM: --container {one.full_name} --force, on record.",
        )
    return _with_variables(file, one, parts, begin, evidence)


def _flags_begin(parts: Sequence[CommandPart], own_command: bool) -> int:
    """Return where the flags of an image's entrypoint begin, or of one that hands them on."""
    tokens = [token for part in parts for token in part.tokens]
    if not own_command:
        return int(tokens[:1] != [] and tokens[0].text == "serve")
    if len(parts) > 1:
        return len(parts[0].tokens)
    flagged = [n for n, token in enumerate(tokens) if n and token.text.startswith("-")]
    return min([*flagged, len(tokens)])


def _started(one: Container, tokens: Sequence[Token], own_command: bool) -> str:
    if own_command:
        return " ".join(token.text for token in tokens[:3])[:80]
    if not (image := one.image or text_at(one.node, "repository")):
        return "what is built here" if get(one.node, "build") else "nothing that is named"
    return f"what the image {image[:80]} starts"


def _with_variables(
    file: YamlFile, one: Container, parts: Sequence[CommandPart], begin: int, evidence: str
) -> CommandLine:
    """Add the variables of flags that the command line uses."""
    tokens = [token for part in parts for token in part.tokens][begin:]
    used = {asked.name for token in tokens if token.splits and (asked := reference(token.text))}
    names = {
        name: (node, at)
        for name, node, at in variables(one)
        if name == one.variable or (name in used and holds_flags(node.value[at:]))
    }
    others = [part for part in elsewhere(tokens) if part.name not in names]
    spliced: list[CommandPart] = [
        text_part(file, file.view(node).after(begins), node, VARIABLE)
        for node, begins in names.values()
    ]
    home: CommandPart
    if spliced:
        home = spliced[-1]
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
    spare = parts[-1] if spliced and parts else None
    known = frozenset({*names, *(part.name for part in others)})
    return CommandLine([*parts, *spliced, *others], begin, home, spare, file.edits, evidence, known)


@dataclass(frozen=True, slots=True)
class _Scripts:
    """The surroundings of a script in a container."""

    file: YamlFile
    one: Container
    inner: Scope


def script_in(
    parts: Sequence[CommandPart], tokens: Sequence[Token], around: _Scripts | None
) -> TextPart | None:
    """Return the command of a shell's script that starts vLLM; None where no shell runs.

    ``around``: what the lists among the parts stand in. Raises TargetError.
    """
    if not tokens or tokens[0].text.rpartition("/")[2] not in script.SHELLS:
        return None
    option = next((n for n, t in enumerate(tokens) if re.fullmatch(r"-[a-z]*c", t.text)), None)
    at = None if option is None else option + 1
    if at is not None and at < len(tokens) and tokens[at].text == "--":
        at += 1
    if at is None or at >= len(tokens):
        raise NotVllmError(
            f"{tokens[0].place}: a shell without -c and a script", hint="Name vllm serve there."
        )
    view, edits = _script_view(around, parts, at)
    if around is None:
        return script.command_of(view, edits, tokens[at].place)
    if around.one.spelling.puts_in_environment:
        return script.command_of(view, edits, tokens[at].place, outer=around.inner)
    return script.command_of(
        view, edits, tokens[at].place, outer=around.one.outer, doubled=around.inner
    )


def _script_view(
    around: _Scripts | None, parts: Sequence[CommandPart], index: int
) -> tuple[View, Edits]:
    for part in parts:
        if index < len(part.tokens):
            break
        index -= len(part.tokens)
    if isinstance(part, ListPart):
        assert around is not None
        view = around.file.view(part.node.value[index])
        return _undoubled(view, part.escape.write), around.file.edits
    assert isinstance(part, TextPart)
    inner = part.words[index].inner
    if inner is None:
        raise TargetError(
            f"{part.tokens[index].place}: the script is quoted in pieces",
            hint="Put all of it in one pair of quotes.",
        )
    return inner, part.edits


def _undoubled(view: View, write: Callable[[str], str]) -> View:
    """Return what Compose or Kubernetes makes of a text: ``$$`` is one ``$``."""
    pieces = [match.span() for match in re.finditer(r"\$\$|.", view.text, flags=re.DOTALL)]
    text = "".join(view.text[end - 1 : end] for _, end in pieces)
    return view.with_layer(text, pieces, write)


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
