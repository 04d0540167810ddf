"""Containers in YAML, whose command lines vLLM's arguments are part of. Pure."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import yaml

from tuner.errors import TargetError, UsageError
from tuner.rollout.targets.command_line.command_line import VLLM_IMAGE, Part, TextPart
from tuner.rollout.targets.command_line.dialects import COMPOSE
from tuner.rollout.targets.command_line.flags import Token, find, is_template
from tuner.rollout.targets.command_line.words import UnreadableError, Word, split
from tuner.rollout.targets.seam import Stated
from tuner.rollout.targets.view import View
from tuner.rollout.targets.yaml.file import Escape, ListPart, YamlFile
from tuner.rollout.targets.yaml.nodes import get, text_at

_SIGNS = {"gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs"}
"""Flags that are hardly anybody else's."""

_MOST_NAMES = 20
"""In a message."""


def _kubernetes_reads(word: str) -> tuple[str, bool]:
    plain = re.sub(r"\$\$\(", "", word)
    known = not re.search(r"\$\([A-Za-z_.-][\w.-]*\)", plain) and not is_template(word)
    return word.replace("$$(", "$("), known


def _compose_reads(word: str) -> tuple[str, bool]:
    return word.replace("$$", "$"), "$" not in word.replace("$$", "")


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a kind of file writes a container down."""

    command: str
    args: str
    environment: str
    escape: Escape
    splits_text: bool
    """A command may be one text, and is then split."""

    def with_keys(self, *, command: str, args: str, environment: str) -> "Spelling":
        """Return the same in another place; an empty key is not there."""
        return replace(self, command=command, args=args, environment=environment)


KUBERNETES = Spelling(
    "command", "args", "env",
    Escape(_kubernetes_reads, lambda word: word.replace("$(", "$$(")),
    splits_text=False,
)  # fmt: skip
COMPOSE_FILE = Spelling(
    "entrypoint", "command", "environment",
    Escape(_compose_reads, lambda word: word.replace("$", "$$")),
    splits_text=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Container:
    """One server that a file describes."""

    workload: str
    name: str
    node: yaml.MappingNode
    pod: yaml.Node | None = None
    """What the node selector stands in."""

    spelling: Spelling = KUBERNETES
    variable: str = ""
    """Where the launcher takes more flags from, whatever the file says of its command."""

    elsewhere: Mapping[str, Stated] = field(default_factory=dict)
    """Arguments that the file states outside the command line; they stay as they are."""

    is_vllm: bool = False
    """Known from the kind of document."""

    replaces: bool = False
    """What is not stated here is stated in another file, and a list here would replace that."""

    @property
    def full_name(self) -> str:
        return f"{self.workload}/{self.name}" if self.workload else self.name

    def is_called(self, name: str) -> bool:
        return name in {self.full_name, self.name, self.workload}


FindContainers = Callable[[YamlFile], Iterator[Container]]


def choose(file: YamlFile, found: FindContainers, wanted: str | None) -> Container:
    """Return the server that is meant. Raises TargetError, or UsageError: which one?"""
    all_of_them = list(found(file))
    names = _names(all_of_them)
    if not all_of_them:
        raise TargetError(
            f"{file.source}: there is no container in it",
            hint="Name the file with the server's command, or another kind with --to.",
        )
    if wanted is not None:
        chosen = [one for one in all_of_them if one.is_called(wanted)]
        problem = f"{len(chosen) or 'no'} containers are called {wanted!r}"
    else:
        chosen = [one for one in all_of_them if is_named_vllm(file, one)]
        chosen = chosen or [one for one in all_of_them if _has_signs(file, one)]
        names = _names(chosen) or names
        problem = "which container?"
    if len(chosen) == 1:
        return chosen[0]
    if not chosen and wanted is None:
        raise TargetError(
            f"{file.source}: no container in it is seen to run vLLM",
            hint=f"If one does: --container NAME, of {names}.",
        )
    raise UsageError(f"{file.source}: {problem}", hint=f"--container NAME, of {names}.")


def _names(found: Sequence[Container]) -> str:
    names = sorted({one.full_name for one in found})
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def is_named_vllm(file: YamlFile, one: Container) -> bool:
    """Whether image or command say so."""
    if one.is_vllm or VLLM_IMAGE.search(text_at(one.node, "image") or ""):
        return True
    return any(re.search(r"\bvllm\b", token.text) for token in _tokens(file, one))


def _has_signs(file: YamlFile, one: Container) -> bool:
    return any(flag.argument in _SIGNS for flag in find(_tokens(file, one)))


def _tokens(file: YamlFile, one: Container) -> list[Token]:
    return [token for part in lists(file, one) for token in part.tokens]


def lists(file: YamlFile, one: Container) -> list[Part]:
    found: list[Part] = []
    for key in (one.spelling.command, one.spelling.args):
        node = get(one.node, key)
        if isinstance(node, yaml.SequenceNode):
            found.append(ListPart(file, node, one.spelling.escape))
        elif isinstance(node, yaml.ScalarNode) and one.spelling.splits_text:
            view = file.view(node)
            found.append(TextPart(view, _only(view, file, node), COMPOSE, file.edits))
        elif node is not None:
            raise file.refuse(node, f"{key} is no list", hint="Write it as a list of texts.")
    return found


def _only(view: View, file: YamlFile, node: yaml.Node) -> list[Word]:
    try:
        commands = split(view, COMPOSE)
    except UnreadableError as problem:
        raise file.refuse(
            node, f"cannot be understood: {problem}", hint="Write it as a list of texts."
        ) from None
    return commands[0] if commands else []
