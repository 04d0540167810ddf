"""Values of any Helm chart, where vLLM's arguments are said to be: ``--at PATH.TO.ARGS``. Pure.

A list of words, a text of words, or a mapping of arguments. In the values of vLLM's own chart
(examples/online_serving/chart-helm) they are found: ``image.command``.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from tuner.engines.vllm.flags import canonical
from tuner.errors import NotVllmError, TargetError, UsageError
from tuner.rollout.targets import images
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.command_line.command_line import CommandLine, TextPart
from tuner.rollout.targets.command_line.dialects import VARIABLE
from tuner.rollout.targets.command_line.names import proof
from tuner.rollout.targets.command_line.process import server
from tuner.rollout.targets.kinds.argument_mapping import ArgumentMapping
from tuner.rollout.targets.kinds.containers import KUBERNETES, text_part
from tuner.rollout.targets.seam import Arguments, Asked, Platform, Rollout, Stated
from tuner.rollout.targets.server import Server, check_there, platform_of
from tuner.rollout.targets.yaml.file import ListPart, YamlFile, outline, parse
from tuner.rollout.targets.yaml.nodes import entries, get, is_null, items, line_of, text_at

NAME = "helm-values"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
ON_THIS_MACHINE = False

_OF_VLLM = "image.command"
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class ValuesServer(Server):
    """The server of the arguments at a path."""

    text: str
    asked: Asked
    file: YamlFile
    parent: yaml.Node
    """What the arguments stand in, under ``key``, or as an item of a list."""

    key: str
    arguments: CommandLine | ArgumentMapping
    evidence: str = field()  # not the property of Server
    image: Stated

    @property
    def stated(self) -> dict[str, Stated]:
        return self.arguments.stated()

    @property
    def platform(self) -> Platform:
        return platform_of(str(self.image.value), self.image.line)

    @property
    def rollout(self) -> Rollout:
        return Rollout("helm upgrade RELEASE CHART -f {file}", "helm rollback RELEASE")

    def edited(self, arguments: Arguments) -> str:
        if isinstance(self.arguments, CommandLine):
            self.arguments.write(arguments)
        else:
            self.arguments.ask(arguments)
        return self.file.edits.taken()

    def reopened(self, text: str) -> "ValuesServer":
        return opened(text, self.asked)

    def rest(self) -> list[object]:
        return outline(self.file, {id(self.parent): {self.key}})


def is_of_vllms_chart(document: yaml.Node) -> bool:
    """Whether these are values of vLLM's own chart, or of one like it."""
    image, command = get(document, "image"), items(get(document, "image", "command"))
    words = [word.value for word in command if isinstance(word, yaml.ScalarNode)]
    return text_at(image, "repository") is not None and server(words) is not None


def opened(text: str, asked: Asked) -> ValuesServer:
    """Return the server whose arguments are at the path. Raises TargetError and UsageError."""
    check_there(text, source=asked.source)
    file = parse(text, source=asked.source, tabs=True)
    path = asked.at
    if path is None:
        if not any(map(is_of_vllms_chart, file.roots)):
            raise UsageError(
                f"{asked.source}: where are vLLM's arguments?",
                hint="--at PATH.TO.ARGS, such as --at vllm.extraArgs or --at models[0].args.",
            )
        path = _OF_VLLM
    root = next((one for one in file.roots if isinstance(one, yaml.MappingNode)), None)
    if root is None:
        raise TargetError(f"{asked.source}: holds no values", hint="Name the chart's values file.")
    parents, node, key = _walk(file, root, path)
    image = _image_near(parents)
    if isinstance(node, yaml.MappingNode):
        parent = parents[-1]
        assert isinstance(parent, yaml.MappingNode)
        mapping = ArgumentMapping(file, parent, key)
        why = proof(canonical(name)[0] for name in entries(node))
        _check(file, node, path, asked, why or (images.entrypoint(str(image.value)) or ""))
        evidence = f"its key {why}" if why else images.entrypoint(str(image.value)) or ""
        return ValuesServer(text, asked, file, parent, key, mapping, evidence, image)
    line = _line(file, node, path, asked, image)
    return ValuesServer(text, asked, file, parents[-1], key, line, line.evidence, image)


def _line(file: YamlFile, node: yaml.Node, path: str, asked: Asked, image: Stated) -> CommandLine:
    part: ListPart | TextPart
    if isinstance(node, yaml.SequenceNode):
        part = ListPart(file, node, KUBERNETES.escape)
    elif isinstance(node, yaml.ScalarNode) and not is_null(node):
        part = text_part(file, file.view(node), node, VARIABLE, name=path)
    else:
        raise file.refuse(node, f"{path} is empty", hint="Write the model's flags there.")
    words = [token.text for token in part.tokens]
    started = server(words)
    if started is not None:
        return CommandLine([part], started.begin, part, None, file.edits, started.evidence)
    line = CommandLine([part], int(words[:1] == ["serve"]), part, None, file.edits)
    begun = itertools.takewhile(lambda word: not word.text.startswith("-"), line.words)
    is_command = len(list(begun)) > 1  # of another program: a model is one word
    why = "" if is_command else proof(flag.argument for flag in flags.find(line.words))
    line.evidence = f"its flag {why}" if why else images.entrypoint(str(image.value)) or ""
    _check(file, node, path, asked, line.evidence)
    return line


def _check(file: YamlFile, node: yaml.Node, path: str, asked: Asked, evidence: str) -> None:
    if not evidence and not asked.trusted:
        raise NotVllmError(
            f"{file.place(node)}: {path} is not seen to hold vLLM's arguments",
            hint="One that is vLLM's alone proves it, such as max-num-seqs, or vllm serve in front "
            "of them, or an image that starts it. If they are vLLM's: --force, on record.",
        )


def _walk(
    file: YamlFile, root: yaml.MappingNode, path: str
) -> tuple[list[yaml.Node], yaml.Node, str]:
    """Return the nodes on the way, the one at the path, and the key that it stands under."""
    steps = [(found[1], found[2]) for found in _STEP.finditer(path)]
    if "".join(name or f"[{number}]" for name, number in steps) != path.replace(".", ""):
        raise UsageError(
            f"--at {path}: is no path", hint="Keys with dots between them: --at models[0].args"
        )
    node: yaml.Node = root
    parents, key = list[yaml.Node](), ""
    for name, number in steps:
        parents.append(node)
        found = entries(node).get(name) if name else next(iter(items(node)[int(number) :]), None)
        if found is None:
            there = ", ".join(list(entries(node))[:10]) or "nothing"
            raise UsageError(
                f"{file.place(node)}: --at {path}: there is no {name or number}",
                hint=f"There is: {there}.",
            )
        node, key = found, name or key
    return parents, node, key


def _image_near(parents: Sequence[yaml.Node]) -> Stated:
    """Return the image that stands nearest to the arguments, as charts write one."""
    for parent in reversed(parents):
        for node in (get(parent, "image"), parent):
            if isinstance(node, yaml.ScalarNode):
                return Stated(node.value, line_of(node))
            repository = text_at(node, "repository")
            if repository is not None:
                tag = text_at(node, "tag")
                line = line_of(node)
                return Stated(f"{repository}:{tag}" if tag else repository, line)
    return Stated("", 0)


def paths_with_arguments(root: yaml.Node) -> list[str]:
    """Return where in values lists or texts are proven to be vLLM's arguments."""
    found = list[str]()

    def look(node: yaml.Node, path: str) -> None:
        words = [one.value for one in items(node) if isinstance(one, yaml.ScalarNode)]
        if isinstance(node, yaml.ScalarNode) and "--" in node.value:
            words = node.value.split()
        tokens = [flags.Token(word, "", 0) for word in words]
        if words and (server(words) or proof(flag.argument for flag in flags.find(tokens))):
            found.append(path)
        for name, child in entries(node).items():
            look(child, f"{path}.{name}" if path else name)
        for number, child in enumerate(items(node)):
            look(child, f"{path}[{number}]")

    look(root, "")
    return [
        path
        for path in found
        if not any(path != other and path.startswith(other) for other in found)
    ]
