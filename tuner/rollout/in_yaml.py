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

from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm.flags import canonical
from tuner.engines.vllm.values import typed
from tuner.errors import TargetError
from tuner.rollout import known
from tuner.rollout.edit import end_of_line
from tuner.rollout.server import Chart, Near, Server, Span
from tuner.rollout.words import Launch, UnreadableError, filled, read_flags, reading, split, vllm_in
from tuner.system import yaml_strict

Node = yaml.Node
Find = Callable[[PurePath, str, Near], list[Server]]

_COMMANDS = ("entrypoint", "command", "args")
_DOCKER = {"services", "containerdefinitions"}
"""What is in these hands ``command`` to the image's own program; Kubernetes replaces that."""

_MAY_BE = re.compile(r"vllm['\",\s\\-]+serve\b|vllm\.entrypoints")
_FLAGS = re.compile(r"(?i)(?:args|arguments|flags|options)$")


def items(node: Node | None) -> list[Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def pairs(node: Node | None) -> dict[str, Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}


def get(node: Node | None, *path: str) -> Node | None:
    """Return what is behind keys, in whatever case."""
    for part in path:
        node = {key.lower(): value for key, value in pairs(node).items()}.get(part.lower())
    return node


def scalar(node: Node | None, *path: str) -> str:
    value = get(node, *path)
    return str(value.value) if isinstance(value, yaml.ScalarNode) else ""


def merge(node: Node) -> None:
    """Put the keys that a mapping merges in (``<<``) before its own, which win."""
    if not isinstance(node, yaml.MappingNode):
        return
    inherited, own = list[tuple[Node, Node]](), list[tuple[Node, Node]]()
    for key, value in node.value:
        if not key.tag.endswith(":merge"):
            own.append((key, value))
            continue
        for each in reversed(items(value) or [value]):
            merge(each)
            inherited += each.value if isinstance(each, yaml.MappingNode) else []
    node.value = inherited + own


def plain(node: Node) -> ArgumentValue:
    """Return the value behind a key, as vLLM is given it."""
    if isinstance(node, yaml.MappingNode):
        return {key: plain(value) for key, value in pairs(node).items()}
    if isinstance(node, yaml.SequenceNode):
        return [plain(each) for each in node.value]
    kind = node.tag.rpartition(":")[2]
    if kind == "bool":
        return node.value.lower() in {"true", "yes", "on"}
    return None if kind == "null" else typed(node.value)


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


def has_vllms_flag(text: str) -> bool:
    return known.are_vllms(canonical(flag)[0] for flag in re.findall(r"--([a-z][\w-]*)", text))


def in_yaml(text: str, near: Near, at: str, find: Find, *, source: str) -> list[Server]:
    """Return the servers of a text. ``at``: the path of one that somebody says is vLLM's, as in
    ``.models[0].args``; then it is the only one.

    Raises TargetError for what is no YAML.
    """
    roots = yaml_strict.compose_all(text, source=source, error=TargetError)
    reader = _Reader(text, roots, near, at, find)
    for root in roots:
        reader.document(root)
    return [each for each in reader.servers if at in {"", each.name}]


@dataclass(frozen=True)
class _Place:
    """Where a mapping is, and what the mappings around it set."""

    path: str = ""
    key: str = ""
    name: str = ""
    workload: str = ""
    image: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are set beside vLLM's own words."""

    env: Mapping[str, str] = field(default_factory=dict)
    is_docker: bool = False

    @property
    def full_name(self) -> str:
        return "/".join(part for part in (self.workload, self.name) if part)


class _Reader:
    """Reads the documents of one text."""

    def __init__(self, text: str, roots: Sequence[Node], near: Near, at: str, find: Find) -> None:
        self.text, self.roots, self.near, self.at, self.find = text, roots, near, at, find
        self.servers: list[Server] = []
        self.every = [each for root in roots for each in nodes_of(root)]
        self.times = Counter(id(node) for _, node in self.every)
        for _, node in self.every:
            merge(node)

    # Nodes

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

    # Documents

    def document(self, root: Node) -> None:
        """Find the servers of one document."""
        services = get(root, "services")
        if get(root, "kind") is not None or not isinstance(services, yaml.MappingNode):
            self.walk(root, _Place())
            return
        env = _dotenv(self.near(".env") or "")
        for _, node in nodes_of(root):
            if isinstance(node, yaml.ScalarNode):
                node.value = filled(node.value.replace("$$", "\0"), env)
        extended = {base for name in pairs(services) if (base := self.extend(services, name))}
        for name, service in pairs(services).items():
            if name not in extended or get(service, "profiles") is None:  # nothing starts it
                self.mapping(service, _Place(path=f"services.{name}", name=name, is_docker=True))

    def extend(self, services: Node, name: str) -> str:
        """Put what a service extends before its own keys, and return which service that is."""
        service = pairs(services)[name]
        base = scalar(service, "extends", "service") or scalar(service, "extends")
        if file := scalar(service, "extends", "file"):  # its command cannot be edited here
            roots = yaml_strict.compose_all(self.near(file) or "", source=file, error=TargetError)
            kept = get(roots[0], "services", base) if roots else None
            more = [p for p in getattr(kept, "value", ()) if p[0].value not in _COMMANDS]
            service.value = more + service.value
            return ""
        if not pairs(pairs(services).get(base)) or base == name:
            return ""
        service.value = [each for each in service.value if each[0].value != "extends"]
        self.extend(services, base)
        service.value = pairs(services)[base].value + service.value
        return base

    def walk(self, node: Node, place: _Place) -> None:
        if f".{place.path}" == self.at:
            place = replace(place, name=self.at, workload="")
            if isinstance(node, yaml.MappingNode):
                self.keyed(node, place, is_proven=True, chart="own")
            else:
                self.command(node, [node], place, is_vllms=True)
        elif isinstance(node, yaml.MappingNode):
            self.mapping(node, place)
        for n, each in enumerate(items(node)):
            name = scalar(each, "name") or str(n)
            self.walk(each, replace(place, path=f"{place.path}[{n}]", name=name))

    def mapping(self, node: Node, place: _Place) -> None:
        place = replace(
            place,
            workload=scalar(node, "metadata", "name") or place.workload,
            name=scalar(node, "name") or place.name,
            image=self.image_of(node) or place.image,
            beside={**place.beside, **self.beside(node)},
            env={**place.env, **self.variables_of(node)[0]},
        )
        self.commands(node, place)
        self.by_keys(node, place)
        for key, value in pairs(node).items():
            if key.lower() == "initcontainers":
                continue
            is_own = key in {"vllmConfig", "engine_kwargs"}
            inner = replace(
                place,
                path=f"{place.path}.{key}" if place.path else key,
                key=key,
                name=place.name if is_own or isinstance(value, yaml.SequenceNode) else key,
                is_docker=place.is_docker or key.lower() in _DOCKER,
            )
            self.within(value, inner)
            self.walk(value, inner)

    # What stands beside a command

    def image_of(self, node: Node) -> str:
        image = get(node, "image")
        if isinstance(image, yaml.ScalarNode):
            return str(image.value)
        where = image if get(image, "repository") is not None else node
        parts = [scalar(where, key) for key in ("registry", "repository", "tag")]
        path = "/".join(part for part in parts[:2] if part)
        return f"{path}:{parts[2]}" if path and parts[2] else path

    def beside(self, node: Node) -> dict[str, str]:
        """Return the arguments that a mapping sets beside vLLM's own words."""
        result = dict[str, str]()
        for name, *path in known.FACTS["beside"]:
            where = get(node, *path[:-1])
            if value := scalar(where, path[-1]):
                own = scalar(where, "name").replace("\\", "")
                result.setdefault(name, re.sub(r"\{\{.*?\}\}", own, value).removeprefix("hf://"))
        return result

    def model_anywhere(self) -> str:
        """Return the model that the values of a chart name somewhere."""
        texts = [(path, str(n.value)) for path, n in self.every if n.tag.endswith(":str")]
        for key in known.FACTS["model_keys"]:
            for path, value in texts:
                if value and path[-1:] == [key] and (key != "name" or "model" in path):
                    return value
        return ""

    def variables_of(self, node: Node) -> tuple[dict[str, str], dict[str, Span]]:
        """Return the variables that a container sets: their values, and where these stand."""
        values, spans = dict[str, str](), dict[str, Span]()
        listed = get(node, "environment") or get(node, "env")
        for each in items(listed) or getattr(listed, "value", []):
            if isinstance(each, yaml.ScalarNode):
                name, _, value = each.value.partition("=")
            elif isinstance(each, tuple):
                name, value = str(each[0].value), str(each[1].value)
            else:
                name, value = scalar(each, "name"), scalar(each, "value")
            if value:
                values[name] = value
            first, last = each if isinstance(each, tuple) else (each, each)
            spans[name] = int(first.start_mark.index), self.end_of(last)
        return values, spans

    # Commands

    def commands(self, node: Node, place: _Place) -> None:
        """Look for command lines in a mapping: of a container, or flags behind a chart's key."""
        parts = {key: get(node, key) for key in _COMMANDS}
        patched, is_more = scalar(node, "path").rpartition("/")[2], False
        if get(node, "op") is not None and patched in _COMMANDS:
            parts = {patched: get(node, "value")}
        elif is_more := scalar(node, "name") == "VLLM_ADDITIONAL_ARGS":
            parts = {"value": get(node, "value")}
        parts = {k: v for k, v in parts.items() if not isinstance(v, None | yaml.MappingNode)}
        nodes = [each for each in parts.values() if each is not None]
        if nodes:
            has_program = "entrypoint" in parts or ("command" in parts and not place.is_docker)
            is_vllms = is_more or self.is_vllms(node, nodes, place)
            self.command(node, nodes, place, is_vllms=is_vllms, has_program=has_program)
        if place.key == "vllmConfig" or not known.starts_vllm(place.image):
            return
        for key, value in pairs(node).items():
            if key.lower() in _COMMANDS or not _FLAGS.search(key):
                continue
            if not isinstance(value, yaml.MappingNode) and has_vllms_flag(self.raw(value)):
                beside = {"model": self.model_anywhere(), **place.beside}
                self.command(node, [value], replace(place, beside=beside), is_vllms=True)

    def is_vllms(self, node: Node, nodes: Sequence[Node], place: _Place) -> bool:
        """Whether a mapping says beside its command that it starts vLLM."""
        raw = self.raw(*nodes)
        if scalar(node, "modelFormat", "name").lower() in {"vllm", "huggingface"}:
            return "--backend" not in raw
        if scalar(node, "engine") == "VLLM":
            return True
        if scalar(node, "modelCommand") == "vllmServe":
            return known.may_have_vllm(place.image)
        is_patch = get(node, "image") is None and get(node, "command") is None
        is_container = "containers[" in place.path or get(node, "op") is not None
        return is_patch and is_container and has_vllms_flag(raw)

    def command(
        self,
        node: Node,
        nodes: Sequence[Node],
        place: _Place,
        *,
        is_vllms: bool,
        has_program: bool = False,
    ) -> None:
        """Keep the server that a command line starts, or why it cannot be read."""
        raw = self.raw(*nodes)
        mentioned = [
            span
            for name, span in self.variables_of(node)[1].items()
            if re.search(rf"\$[({{]?{re.escape(name)}\b", raw)
        ]
        spans = [*(self.span(each) for each in reversed(nodes)), *mentioned]

        def find() -> Launch:
            words, image = list[str](), "" if has_program else place.image
            for each in nodes:
                words += self.words(each, place, is_vllms=is_vllms)
            if has_program and words and words[0].startswith("-"):
                image = place.image
            result = vllm_in(words, place.env, image)
            if result is not None or is_vllms:
                return result or Launch(words)
            begin = next((n for n, each in enumerate(words) if each[:1] == "-"), len(words))
            return Launch(words[begin:], tuple(words[:begin]), is_proven=False)

        has_image = not has_program and known.starts_vllm(place.image)
        server = reading(
            Server(name=place.full_name, spans=spans, image=place.image),
            find,
            is_sure=is_vllms or has_image or _MAY_BE.search(raw) is not None,
        )
        if server is not None:
            self.add(server, nodes, place)

    def words(self, node: Node, place: _Place, *, is_vllms: bool) -> list[str]:
        """Return the words of one part of a command line, its variables filled in."""
        texts = [each.value for each in items(node) if isinstance(each, yaml.ScalarNode)]
        if len(texts) < len(items(node)):
            raise UnreadableError("an argument is no text")
        if isinstance(node, yaml.ScalarNode):
            if not (place.is_docker or is_vllms):
                raise UnreadableError("its arguments are no list")
            if place.is_docker and node.style == "|" and re.search(r"\\[ \t]*\n", node.value):
                raise UnreadableError("Compose joins no lines at a backslash", "\\")
            texts = split(node.value.replace("\n", " ").replace("$$", "\0"), {})
        elif not place.is_docker:
            texts = [re.sub(r"\$\((\w+)\)", lambda m: place.env.get(m[1], m[0]), t) for t in texts]
        return [each.replace("\0", "$") for each in texts]

    def add(self, server: Server, own: Sequence[Node], place: _Place) -> None:
        """Keep a server, with what the file says beside its own nodes."""
        beside = {name: typed(value) for name, value in place.beside.items() if value}
        arguments = {**beside, **server.arguments}
        shared = [
            self.raw(node)
            for node in own
            if any(self.times[id(below)] > 1 for _, below in nodes_of(node))
        ]  # others use it too, by its anchor
        self.servers.append(replace(server, arguments=arguments, rest=(server.rest, shared)))

    # Keys

    def by_keys(self, node: Node, place: _Place) -> None:
        """Look for vLLM's arguments as the keys of a mapping."""
        names = {argument_of(key)[0] for key in pairs(node)}
        is_vllms, has_image = known.are_vllms(names), known.starts_vllm(place.image)
        if place.key == "vllmConfig":
            if known.may_have_vllm(place.image) or has_image:
                self.keyed(node, place, is_proven=True, chart="stack")
        elif place.key == "engine_kwargs":
            paths = [str(each.value) for path, each in self.every if path[-1:] == ["import_path"]]
            if paths and re.match(r"ray\.(serve\.)?llm[.:]", paths[0]):
                self.keyed(node, place, is_proven=True, chart="kwargs")
        elif is_vllms and has_image:
            self.keyed(node, place, is_proven=True, chart="own")
        elif is_vllms and not place.path and get(node, "kind") is None:
            odd = sorted(names - known.NAMES)
            doubt = f": {odd[0][:40]} is no argument of vllm serve" if odd else ""
            self.keyed(node, place, is_proven=not odd, doubt=doubt)

    def keyed(
        self, node: Node, place: _Place, *, is_proven: bool, chart: Chart = "", doubt: str = ""
    ) -> None:
        """Keep the server whose arguments are the keys of a mapping."""
        arguments, dropped, extra = dict[str, ArgumentValue](), list[object](), None
        is_helm = chart in {"own", "stack"}
        for key_node, value_node in node.value:
            key, value = str(key_node.value), plain(value_node)
            if is_helm and key in {"extraArgs", "extra_args"} and items(value_node):
                extra = value_node
            elif not chart and not place.key and (value is False or value is None):
                dropped.append((key, value))  # vllm serve --config leaves these out
            else:
                name, is_off = argument_of(key)
                arguments[name] = value is not True if is_off else value
        problem, words = "", [str(each.value) for each in items(extra)]
        if chart == "stack":
            arguments = {"enable_prefix_caching": False} | arguments
        elif is_helm and "model" not in place.beside and (model := self.model_anywhere()):
            arguments.setdefault("model", model)
        try:
            flags = read_flags(words)
        except UnreadableError as error:
            flags, problem = {}, str(error)
        server = Server(
            name=place.full_name or "config",
            arguments={**arguments, **flags},
            is_proven=is_proven,
            doubt=doubt,
            spans=[self.span(node)],
            rest=tuple(dropped),
            words=words,
            is_keyed=True,
            problem=problem,
            image=place.image,
            chart=chart,
        )
        self.add(server, [node], place)

    # Files within the file

    def within(self, node: Node, place: _Place) -> None:
        """Look into a block that is a file of its own."""
        name = place.key
        if PurePath(name).suffix not in known.FACTS["nested_suffixes"]:
            name = known.FACTS["nested_keys"].get(name, "")
        is_block = isinstance(node, yaml.ScalarNode) and node.style == "|"
        if not is_block or not name:
            return
        begin = self.text.index("\n", node.start_mark.index) + 1
        for each in self.find(PurePath(name), self.text[begin : node.end_mark.index], self.near):
            full_name = "/".join(filter(None, (place.workload, each.name)))
            spans = [(begin + first, begin + last) for first, last in each.spans]
            self.add(replace(each, name=full_name, spans=spans), [node], place)


def _dotenv(text: str) -> dict[str, str]:
    lines = re.finditer(r"(?m)^[ \t]*(?:export[ \t]+)?(\w+)=(['\"]?)(.*?)\2[ \t]*\r?$", text)
    return {each[1]: each[3] for each in lines}
