"""Containers in YAML, whose command lines vLLM's arguments are part of. Pure."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import yaml

from tuner.rollout.targets.command_line.command_line import CommandPart, TextPart
from tuner.rollout.targets.command_line.dialects import BRACES, COMPOSE, Dialect
from tuner.rollout.targets.command_line.variables import (
    Scope,
    Variable,
    first_of,
    nothing,
    setting_of,
    value_of,
)
from tuner.rollout.targets.command_line.words import Piece, UnreadableError, first_command
from tuner.rollout.targets.seam import Asked, Statements
from tuner.rollout.targets.view import View
from tuner.rollout.targets.yaml.file import Escape, ListPart, YamlFile
from tuner.rollout.targets.yaml.nodes import entries, get, is_null, items, text_at

_TEMPLATE = r"\{\{(?:(?!\{\{).)*?\}\}"


@dataclass(frozen=True, slots=True)
class Spelling:
    """The keys and marks by which a kind of file writes a container down."""

    command: str
    args: str
    environment: str
    escape: Escape
    splits_text: bool
    """A command may be one text, and is then split."""

    puts_in_environment: bool
    """Variables in the words are the container's own."""

    def with_keys(self, *, command: str, args: str, environment: str) -> "Spelling":
        """Return the same in another place; an empty key is not there."""
        return replace(self, command=command, args=args, environment=environment)


KUBERNETES = Spelling(
    "command", "args", "env",
    Escape(
        re.compile(rf"\$\$|\$\([A-Za-z_.-][\w.-]*\)|{_TEMPLATE}", re.DOTALL),
        lambda word: re.sub(r"\$(?=[$(])", "$$", word),
    ),
    splits_text=False,
    puts_in_environment=True,
)  # fmt: skip
COMPOSE_FILE = Spelling(
    "entrypoint", "command", "environment",
    Escape(
        re.compile(rf"\$\$|{BRACES}|\$[A-Za-z_]\w*|{_TEMPLATE}", re.DOTALL),
        lambda word: word.replace("$", "$$"),
    ),
    splits_text=True,
    puts_in_environment=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Container:
    """One server that a file may describe."""

    workload: str
    name: str
    node: yaml.MappingNode
    pod: yaml.Node | None = None
    """What the node selector stands in."""

    document: yaml.Node | None = None
    """The workload, with its kind and name."""

    spelling: Spelling = KUBERNETES
    variable: str = ""
    """Where the launcher takes more flags from, whatever the file says of its command."""

    elsewhere: Statements = field(default_factory=dict)
    """Arguments that the file states outside the command line; they stay as they are."""

    evidence: str = ""
    """Why it is vLLM by the kind of document, whatever its image is."""

    outer: Scope = lambda _: None
    """What is put in before anybody reads the container: Compose's variables."""

    replaces: bool = False
    """What is not stated here is stated in another file, and a list here would replace that."""

    @property
    def full_name(self) -> str:
        return f"{self.workload}/{self.name}" if self.workload else self.name

    def is_called(self, name: str) -> bool:
        return name in {self.full_name, self.name, self.workload}

    @property
    def image(self) -> str:
        """The image, with what is put in for its variables as far as that is known."""
        pieces = self.spelling.escape.pieces(text_at(self.node, "image") or "")
        return "".join(one.text if one.is_literal else self._put_in(one) for one in pieces)

    def _put_in(self, piece: Piece) -> str:
        found = setting_of(piece, self.outer, lambda _begin, _end: lambda _new: None)
        return "?" if found is None or found.value is None else found.value


FindContainers = Callable[[YamlFile, Asked], Iterator[Container]]


def lists(file: YamlFile, one: Container, scope: Scope) -> list[CommandPart]:
    """Return the words of command and arguments. Raises TargetError where they are no words."""
    found: list[CommandPart] = []
    for key in (one.spelling.command, one.spelling.args):
        node = get(one.node, key)
        if isinstance(node, yaml.SequenceNode):
            found.append(ListPart(file, node, one.spelling.escape, scope))
        elif isinstance(node, yaml.ScalarNode) and one.spelling.splits_text:
            hint = "Write it as a list of texts."
            found.append(text_part(file, file.view(node), node, COMPOSE, hint=hint, scope=scope))
        elif node is not None:
            raise file.refuse(node, f"{key} is no list", hint="Write it as a list of texts.")
    return found


def text_part(  # noqa: PLR0913 - what is read, where it stands, and how it is refused
    file: YamlFile,
    view: View,
    node: yaml.Node,
    dialect: Dialect,
    *,
    name: str = "",
    hint: str = "Simplify it.",
    scope: Scope = nothing,
) -> TextPart:
    """Return the words of a text in YAML. Raises TargetError for one that cannot be understood."""
    try:
        words = first_command(view, dialect)
    except UnreadableError as problem:
        why = f"{name} cannot be understood: {problem}".lstrip()
        raise file.refuse(node, why, hint=hint) from None
    return TextPart(view, words, dialect, file.edits, scope)


def environment(file: YamlFile, one: Container) -> Scope:
    """Return how the container's variables are set.

    A value that comes from a ConfigMap, a Secret or the machine is not known here.
    """
    found: dict[str, Variable] = {}
    scope = first_of(found.get, one.outer)
    node = get(one.node, one.spelling.environment)
    for name, value, begin in variables(one):
        found[name] = _variable(file, one, value, begin, scope)
    for item in items(node):
        source, called = get(item, "valueFrom"), text_at(item, "name")
        if source is not None and called:
            found[called] = Variable(None, _comes_from(source))
    if one.spelling.puts_in_environment and items(get(one.node, "envFrom")):
        names = [_comes_from(item) for item in items(get(one.node, "envFrom"))]
        return first_of(found.get, lambda _: Variable(None, " or ".join(names)))
    return found.get


def _comes_from(source: yaml.Node) -> str:
    for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        for suffix in ("KeyRef", "Ref"):
            if (name := text_at(source, f"{key}{suffix}", "name")) is not None:
                return f"comes from the {kind} {name}"
    return "comes from the pod itself"


def variables(one: Container) -> Iterator[tuple[str, yaml.ScalarNode, int]]:
    """Yield name, the scalar that has the value, and where in its text that begins."""
    node = get(one.node, one.spelling.environment)
    for name, value in entries(node).items():
        if isinstance(value, yaml.ScalarNode) and not is_null(value):
            yield name, value, 0
    for item in items(node):
        listed = get(item, "value")
        if isinstance(listed, yaml.ScalarNode):
            yield text_at(item, "name") or "", listed, 0
        if isinstance(item, yaml.ScalarNode) and "=" in item.value:
            name, equals, _ = item.value.partition("=")
            yield name, item, len(name + equals)


def _variable(
    file: YamlFile, one: Container, node: yaml.ScalarNode, begin: int, scope: Scope
) -> Variable:
    escape = one.spelling.escape
    pieces = escape.pieces(node.value[begin:])
    value = value_of(pieces, lambda piece: setting_of(piece, scope, lambda _a, _b: lambda _c: None))
    if value is None:
        return Variable(None, f"is {node.value[begin:][:80]}")

    def change(new: str) -> None:
        if begin:
            view = file.view(node)
            place = view.place(begin, len(view.text))
            file.edits.replace(*place, view.encode(escape.write(new)))
        else:
            file.set(node, escape.write(new))

    is_plain = all(piece.is_literal for piece in pieces)
    return Variable(value, change=change if is_plain else None)
