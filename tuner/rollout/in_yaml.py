"""Servers in YAML and JSON: any mapping with a command or arguments, or with vLLM's names as keys.

Whatever the document: a Compose file, a manifest of any controller, a patch, the values of a chart,
alone or within another object.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import yaml

from tuner.engines.arguments import ArgumentValue, canonical, typed
from tuner.errors import TargetError
from tuner.rollout.edit import end_of_line
from tuner.rollout.in_lines import VARIABLE
from tuner.rollout.known import FACTS, NAMES, are_vllms, has_vllms_flag, may_have_vllm, starts_vllm
from tuner.rollout.server import Chart, Near, Server, Span, UnreadableError
from tuner.rollout.words import Launch, filled, read_flags, reading, split, vllm_in
from tuner.system import yaml_strict

Node = yaml.Node
Find = Callable[[PurePath, str, Near], list[Server]]

_COMMANDS = ("entrypoint", "command", "args")
_DOCKER = {"services", "containerdefinitions"}
"""What is in these hands ``command`` to the image's own program; Kubernetes replaces that."""

_OF_A_SERVER = {"vllmConfig", "engine_kwargs"}
"""Keys of mappings that have no name of their own."""

_FLAGS = re.compile(r"(?i)(?:args|arguments|flags|options)$")


def items(node: Node | None) -> list[Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def pairs(node: Node | None) -> dict[str, Node]:
    return {str(k.value): v for k, v in node.value} if isinstance(node, yaml.MappingNode) else {}


def get(node: Node | None, *path: str) -> Node | None:
    """Return what is behind keys, in whatever case."""
    for part in path:
        node = {key.lower(): value for key, value in pairs(node).items()}.get(part.lower())
    return node


def scalar(node: Node | None, *path: str) -> str:
    value = get(node, *path)
    return str(value.value) if isinstance(value, yaml.ScalarNode) else ""


def nodes_of(node: Node, path: Sequence[str] = ()) -> Iterator[tuple[Sequence[str], Node]]:
    """Yield a node and all below it, with the keys that lead to each; behind aliases again."""
    yield path, node
    for key, value in pairs(node).items():
        yield from nodes_of(value, [*path, key])
    for each in items(node):
        yield from nodes_of(each, path)


def argument_of(key: str) -> tuple[str, bool]:
    """Return the argument that a key names, in snake, kebab or camel case.

    >>> argument_of("maxNumSeqs"), argument_of("no-enable-prefix-caching")
    (('max_num_seqs', False), ('enable_prefix_caching', True))
    """
    return canonical(re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower())


def in_yaml(text: str, near: Near, find: Find, *, source: str) -> list[Server]:
    """Return the servers of a text; ``find`` finds those of a text within it.

    Raises TargetError for what is no YAML.
    """
    roots = yaml_strict.compose_all(text, source=source, error=TargetError)
    reader = _Reader(text, roots, near, find, source)
    for root in roots:
        reader.document(root)
    return reader.servers


@dataclass(frozen=True)
class _Place:
    """Where a mapping is, and what the mappings around it set."""

    keys: tuple[str, ...] = ("",)
    workload: str = ""
    name: str = ""
    image: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are set beside vLLM's own words."""

    env: Mapping[str, tuple[str, Span]] = field(default_factory=dict)
    """Variable → its value, and where both stand."""

    is_docker: bool = False

    @property
    def full_name(self) -> str:
        return "/".join(filter(None, (self.workload, self.name)))


class _Reader:
    """Reads the documents of one text."""

    def __init__(
        self, text: str, roots: Sequence[Node], near: Near, find: Find, source: str
    ) -> None:
        self.text, self.near, self.find, self.source = text, near, find, source
        self.servers: list[Server] = []
        self.every = [each for root in roots for each in nodes_of(root)]
        self.times = Counter(id(node) for _, node in self.every)

    def end_of(self, node: Node) -> int:
        """Return where a node's last text ends: the mark of a block is past all comments."""
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            end = self.end_of(last[1] if isinstance(last, tuple) else last)
            is_block = self.text[end - 1 : end] == "\n"  # of text: that is its own end
            return end if is_block else end_of_line(self.text, end)
        return int(node.end_mark.index)

    def span(self, node: Node) -> Span:
        return int(node.start_mark.index), self.end_of(node)

    def raw(self, *nodes: Node) -> str:
        return " ".join(self.text[slice(*self.span(each))] for each in nodes)

    def document(self, root: Node) -> None:
        """Find the servers of one document."""
        services = get(root, "services")
        if get(root, "kind") is not None or not isinstance(services, yaml.MappingNode):
            self.walk(root, _Place())
            return
        env = {each["name"]: each["value"] for each in VARIABLE.finditer(self.near(".env") or "")}
        for _, node in nodes_of(root):
            if isinstance(node, yaml.ScalarNode):
                node.value = filled(node.value.replace("$$", "\0"), env)
        bases = {extend(services, name) for name in pairs(services)}
        for name, service in pairs(services).items():
            if name not in bases or get(service, "profiles") is None:  # nothing starts it
                place = _Place(keys=("services", name), name=name, is_docker=True)
                self.walk(service, place)

    def walk(self, node: Node, place: _Place) -> None:
        for n, each in enumerate(items(node)):
            keys = (*place.keys, place.keys[-1])
            self.walk(each, replace(place, keys=keys, name=scalar(each, "name") or str(n)))
        if not isinstance(node, yaml.MappingNode):
            return
        place = replace(
            place,
            workload=scalar(node, "metadata", "name") or place.workload,
            name=scalar(node, "name") or place.name,
            image=image_of(node) or place.image,
            beside={**place.beside, **dict(beside(node))},
            env={**place.env, **dict(self.variables_of(node))},
        )
        self.commands(node, place)
        self.keyed(node, place)
        for key, value in pairs(node).items():
            is_list = isinstance(value, yaml.SequenceNode)
            inner = replace(
                place,
                keys=(*place.keys, key),
                name=place.name if is_list or key in _OF_A_SERVER else key,
                is_docker=place.is_docker or key.lower() in _DOCKER,
            )
            if key.lower() != "initcontainers":
                self.within(value, inner)
                self.walk(value, inner)

    def variables_of(self, node: Node) -> Iterator[tuple[str, tuple[str, Span]]]:
        """Yield the variables that a container sets."""
        listed = get(node, "environment") or get(node, "env")
        for each in listed.value if isinstance(listed, yaml.CollectionNode) else ():
            first, last = each if isinstance(each, tuple) else (each, each)
            name, value = scalar(each, "name"), scalar(each, "value")
            if isinstance(each, tuple):
                name, value = str(first.value), scalar(last)
            elif isinstance(each, yaml.ScalarNode):
                name, _, value = each.value.partition("=")
            yield name, (value, (int(first.start_mark.index), self.end_of(last)))

    # Commands

    def commands(self, node: Node, place: _Place) -> None:
        """Look for command lines in a mapping: of a container, or flags behind a chart's key."""
        parts = {key: get(node, key) for key in _COMMANDS}
        patched = scalar(node, "path").rpartition("/")[2]
        if get(node, "op") is not None and patched in _COMMANDS:
            parts = {patched: get(node, "value")}
        elif scalar(node, "name") == "VLLM_ADDITIONAL_ARGS":
            parts = {"args": get(node, "value")}
        nodes = [each for each in parts.values() if each and is_text_or_list(each)]
        if nodes:
            command = parts.get("entrypoint") or (parts.get("command") and not place.is_docker)
            is_vllms = self.is_vllms(node, nodes, place)
            self.command(nodes, place, is_vllms=is_vllms, has_program=bool(command))
        if place.keys[-1] == "vllmConfig" or not starts_vllm(place.image):
            return
        around = replace(place, beside={"model": self.model_anywhere(), **place.beside})
        for key, value in pairs(node).items():
            is_flags = _FLAGS.search(key) and key.lower() not in _COMMANDS
            if is_flags and is_text_or_list(value) and has_vllms_flag(self.raw(value)):
                self.command([value], around, is_vllms=True)

    def is_vllms(self, node: Node, nodes: Sequence[Node], place: _Place) -> bool:
        """Whether a mapping says beside its command that it starts vLLM."""
        raw = self.raw(*nodes)
        for *path, value in FACTS["says_vllm"]:
            if scalar(node, *path) == value and "--backend" not in raw:
                return may_have_vllm(place.image)
        is_patch = get(node, "image") is None and get(node, "command") is None
        is_container = place.keys[-1] == "containers" or get(node, "op") is not None
        return is_patch and is_container and has_vllms_flag(raw)

    def command(
        self, nodes: Sequence[Node], place: _Place, *, is_vllms: bool, has_program: bool = False
    ) -> None:
        """Keep the server that a command line starts, or why it cannot be read."""
        raw, image = self.raw(*nodes), "" if has_program else place.image
        mentioned = [
            span
            for name, (_, span) in place.env.items()
            if re.search(rf"\$[({{]?{re.escape(name)}\b", raw)
        ]
        spans = [*(self.span(each) for each in reversed(nodes)), *mentioned]
        env = {name: value for name, (value, _) in place.env.items() if value}

        def find() -> Launch | None:
            words = [
                word
                for each in nodes
                for word in words_of(each, env, is_docker=place.is_docker, is_vllms=is_vllms)
            ]
            return vllm_in(words, env, image) or (Launch(words) if is_vllms else None)

        server = Server(name=place.full_name, spans=spans, image=place.image)
        for each in reading(server, raw, find, is_sure=is_vllms or starts_vllm(image)):
            self.add(each, nodes, place)

    def add(self, server: Server, own: Sequence[Node], place: _Place) -> None:
        """Keep a server, with what the file says beside its own nodes."""
        around = {name: typed(value) for name, value in place.beside.items() if value}
        shared = [
            self.raw(node)
            for node in own
            if any(self.times[id(below)] > 1 for _, below in nodes_of(node))
        ]  # others use it too, by its anchor
        rest = (server.rest, shared)
        self.servers.append(replace(server, arguments=around | {**server.arguments}, rest=rest))

    # Keys

    def keyed(self, node: Node, place: _Place) -> None:
        """Look for vLLM's arguments as the keys of a mapping."""
        if (chart := self.chart_of(node, place)) is None:
            return
        arguments, dropped, extra = dict[str, ArgumentValue](), list[object](), None
        for key, value_node in pairs(node).items():
            value = yaml_strict.construct(value_node, source=self.source, error=TargetError)
            value = typed(value) if isinstance(value, str) else value
            name, is_off = argument_of(key)
            if chart in {"own", "stack"} and name == "extra_args" and items(value_node):
                extra = value_node
            elif not chart and (value is False or value is None):
                dropped.append((key, value))  # vllm serve --config leaves these out
            else:
                arguments[name] = value is not True if is_off else value
        if chart == "stack":
            arguments = {"enable_prefix_caching": False} | arguments
        elif chart == "own" and "model" not in place.beside and (model := self.model_anywhere()):
            arguments.setdefault("model", model)
        odd = sorted(arguments.keys() - NAMES) if not chart else []
        server = Server(
            name=place.full_name or "config",
            spans=[self.span(node)],
            rest=tuple(dropped),
            words=[str(each.value) for each in items(extra)],
            is_keyed=True,
            problem=f"{odd[0][:40]} is no argument of vllm serve" if odd else "",
            near="".join(odd[:1]),
            image=place.image,
            chart=chart,
        )
        try:
            arguments |= read_flags(server.words)
        except UnreadableError as error:
            server = replace(server, problem=str(error), near=error.near)
        self.add(replace(server, arguments=arguments), [node], place)

    def chart_of(self, node: Node, place: _Place) -> Chart | None:
        """Return what the keys of a mapping mean; None where they are not vLLM's."""
        if place.keys[-1] == "vllmConfig":
            return "stack" if may_have_vllm(place.image) else None
        if not are_vllms(argument_of(each)[0] for each in pairs(node)):
            return None
        if place.keys[-1] == "engine_kwargs":
            programs = [scalar(each) for path, each in self.every if path[-1:] == ["import_path"]]
            return "kwargs" if re.match(r"ray\.(serve\.)?llm[.:]", "".join(programs)) else None
        if starts_vllm(place.image):
            return "own"
        return "" if place.keys == ("",) and get(node, "kind") is None else None

    def model_anywhere(self) -> str:
        """Return the model that the values of a chart name somewhere."""
        texts = [(path, str(n.value)) for path, n in self.every if n.tag.endswith(":str")]
        for key in FACTS["model_keys"]:
            for path, value in texts:
                if value and path[-1:] == [key] and (key != "name" or "model" in path):
                    return value
        return ""

    # Files within the file

    def within(self, node: Node, place: _Place) -> None:
        """Look into a block that is a file of its own."""
        key = place.keys[-1]
        is_file = PurePath(key).suffix in FACTS["nested_suffixes"]
        name = key if is_file else FACTS["nested_keys"].get(key)
        if name is None or not isinstance(node, yaml.ScalarNode) or node.style != "|":
            return
        begin = self.text.index("\n", node.start_mark.index) + 1
        for each in self.find(PurePath(name), self.text[begin : node.end_mark.index], self.near):
            full_name = "/".join(filter(None, (place.workload, each.name)))
            spans = [(begin + first, begin + last) for first, last in each.spans]
            self.add(replace(each, name=full_name, spans=spans), [node], place)


def extend(services: Node, name: str) -> str:
    """Put what a service extends before its own keys, and return which service that is."""
    service = pairs(services)[name]
    base = scalar(service, "extends", "service") or scalar(service, "extends")
    if base not in pairs(services) or get(service, "extends", "file") is not None:
        return ""
    service.value = [each for each in service.value if each[0].value != "extends"]
    extend(services, base)
    service.value = pairs(services)[base].value + service.value
    return base


def image_of(node: Node) -> str:
    """Return the image that a mapping names, in one text or in parts."""
    where = node if get(node, "image", "repository") is None else get(node, "image")
    path = "/".join(filter(None, (scalar(where, "registry"), scalar(where, "repository"))))
    return scalar(node, "image") or ":".join(filter(None, (path, path and scalar(where, "tag"))))


def beside(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the arguments that a mapping sets beside vLLM's own words, the surest last."""
    for name, *path in reversed(FACTS["beside"]):
        where = get(node, *path[:-1])
        if value := scalar(where, path[-1]):
            own = scalar(where, "name").replace("\\", "")
            yield name, re.sub(r"\{\{.*?\}\}", own, value).removeprefix("hf://")


def words_of(
    node: Node, env: Mapping[str, str], *, is_docker: bool, is_vllms: bool
) -> Sequence[str]:
    """Return the words of one part of a command line, its variables filled in."""
    texts = [each.value for each in items(node) if isinstance(each, yaml.ScalarNode)]
    if len(texts) < len(items(node)):
        raise UnreadableError("an argument is no text")
    if isinstance(node, yaml.ScalarNode):
        if not (is_docker or is_vllms):
            raise UnreadableError("its arguments are no list")
        texts = split(node.value.replace("\n", " ").replace("$$", "\0"), {})
    elif not is_docker:
        texts = [re.sub(r"\$\((\w+)\)", lambda m: env.get(m[1], m[0]), t) for t in texts]
    return [each.replace("\0", "$") for each in texts]


def is_text_or_list(node: Node) -> bool:
    return isinstance(node, yaml.ScalarNode | yaml.SequenceNode)
