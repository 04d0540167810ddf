"""Servers in YAML and JSON: any mapping with a command or arguments, or with vLLM's names as keys.

Whatever the document: a Compose file, a manifest of any controller, a patch, the values of a chart,
alone or within another object.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath

import yaml

from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm.flags import canonical
from tuner.engines.vllm.values import typed
from tuner.errors import TargetError
from tuner.rollout import known
from tuner.rollout.server import Arguments, End, Near, Server, Span
from tuner.rollout.words import Found, UnreadableError, filled, read_flags, split, vllm_in
from tuner.system import yaml_strict

Node = yaml.Node
Find = Callable[[PurePath, str, Near], list[Server]]

_COMMANDS = ("entrypoint", "command", "args")
_DOCKER = {"services", "containerdefinitions"}
"""What is in these hands ``command`` to the image's own program; Kubernetes replaces that."""

_MAY_BE = re.compile(r"vllm['\",\s\\-]+serve\b|vllm\.entrypoints")
_FLAGS = re.compile(r"(?i)(?:args|arguments|flags|options)$")
STACK = {
    *("dtype", "enable_chunked_prefill", "enable_prefix_caching", "gpu_memory_utilization"),
    *("max_loras", "max_model_len", "max_num_seqs", "tensor_parallel_size"),
}
"""Arguments for which vLLM's production stack has keys of its own."""


# Nodes


def items(node: Node | None) -> list[Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def end_of(node: Node) -> int:
    """Return where a node's last text ends: the mark of a block is past all comments."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return end_of(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def span(node: Node) -> Span:
    return int(node.start_mark.index), end_of(node)


def end(node: Node) -> End:
    """Return how arguments are added to a list, a mapping, or a text."""
    if isinstance(node, yaml.ScalarNode):
        return End("text", span(node))
    is_flow = bool(getattr(node, "flow_style", False))
    return End("keys" if isinstance(node, yaml.MappingNode) else "list", span(node), is_flow)


def outline(node: Node, without: dict[int, int]) -> object:
    """Return what a document says beside these nodes. Each is left out once: in a second place,
    behind an anchor, it would be seen to change."""
    if without.get(id(node), 0):
        without[id(node)] -= 1
        return None
    if isinstance(node, yaml.MappingNode):
        return [(outline(key, {}), outline(value, without)) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [outline(each, without) for each in node.value]
    return node.tag, node.value


def plain(node: Node) -> ArgumentValue:
    """Return the value behind a key, as vLLM is given it."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [plain(each) for each in node.value]
    kind = node.tag.rpartition(":")[2]
    if kind == "bool":
        return node.value.lower() in {"true", "yes", "on"}
    return None if kind == "null" else typed(node.value)


def scalars(node: Node, path: Sequence[str] = ()) -> Iterator[tuple[Sequence[str], str]]:
    """Yield every text, with the keys that lead to it."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from scalars(value, [*path, str(key.value)])
    for each in items(node):
        yield from scalars(each, path)
    if node.tag.endswith(":str") and node.value:
        yield path, str(node.value)


def argument_of(key: str) -> tuple[str, bool]:
    """Return the argument that a key names, in snake, kebab or camel case.

    >>> argument_of("maxNumSeqs"), argument_of("no-enable-prefix-caching")
    (('max_num_seqs', False), ('enable_prefix_caching', True))
    """
    return canonical(re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower())


def proof_in(text: str) -> str:
    """Return a flag in a text that is nobody's but vLLM's, or nothing."""
    return known.proof({canonical(flag)[0] for flag in re.findall(r"--([a-z][\w-]*)", text)})


@dataclass(frozen=True)
class _Place:
    """Where a mapping is, and what is said around it."""

    path: str = ""
    key: str = ""
    name: str = ""
    workload: str = ""
    image: str = ""
    model: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    is_docker: bool = False

    @property
    def full_name(self) -> str:
        return "/".join(part for part in (self.workload, self.name) if part)


def in_yaml(text: str, near: Near, at: str, find: Find, *, source: str) -> list[Server]:
    """Return the servers of a text. ``at``: the path of one that somebody says is vLLM's.

    Raises TargetError for what is no YAML.
    """
    roots = yaml_strict.compose_all(text, source=source, error=TargetError)
    reader = _Reader(text, roots, near, at, find)
    for root in roots:
        reader.document(root)
    return reader.found


class _Reader:
    """Reads the documents of one text."""

    def __init__(self, text: str, roots: Sequence[Node], near: Near, at: str, find: Find) -> None:
        self.text, self.roots, self.near, self.at, self.find = text, roots, near, at, find
        self.found: list[Server] = []
        self.bases: dict[int, Node] = {}
        self.env: dict[str, str] = {}

    def raw(self, *nodes: Node) -> str:
        return " ".join(self.text[slice(*span(each))] for each in nodes)

    def pairs(self, node: Node | None) -> Iterator[tuple[str, Node]]:
        """Yield a mapping's keys: its own, those merged in (``<<``), those of what it extends."""
        inherited: list[Node] = []
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.tag.endswith(":merge"):
                inherited += items(value) or [value]
            else:
                yield str(key.value), value
        for each in (*inherited, *filter(None, [self.bases.get(id(node))])):
            yield from self.pairs(each)

    def get(self, node: Node | None, *path: str) -> Node | None:
        """Return what is behind keys, in whatever case."""
        for part in path:
            behind = (value for key, value in self.pairs(node) if key.lower() == part.lower())
            node = next(behind, None)
        return node

    def scalar(self, node: Node | None, *path: str) -> str:
        value = self.get(node, *path)
        return filled(value.value, self.env) if isinstance(value, yaml.ScalarNode) else ""

    # Documents

    def document(self, root: Node) -> None:
        """Find the servers of one document."""
        services = self.get(root, "services")
        if self.get(root, "kind") is None and isinstance(services, yaml.MappingNode):
            self.env = _dotenv(self.near(".env") or "")
            self.compose(services)
        else:
            self.walk(root, _Place())

    def compose(self, services: Node) -> None:
        """Find the servers of a Compose file; a service may extend another one."""
        of_name, extended = dict(self.pairs(services)), set()
        for service in of_name.values():
            base = self.scalar(service, "extends", "service") or self.scalar(service, "extends")
            file = self.scalar(service, "extends", "file")
            if base and file:
                # without its command, which cannot be edited here
                content = self.near(file) or ""
                roots = yaml_strict.compose_all(content, source=file, error=TargetError)
                kept = self.get(roots[0], "services", base) if roots else None
                pairs = [p for p in getattr(kept, "value", ()) if p[0].value not in _COMMANDS]
                self.bases[id(service)] = yaml.MappingNode("tag:yaml.org,2002:map", pairs)
            elif base in of_name:
                self.bases[id(service)] = of_name[base]
                extended.add(base)
        for name, service in of_name.items():
            if name not in extended or self.get(service, "profiles") is None:  # nothing starts it
                self.mapping(service, _Place(path=f"services.{name}", name=name, is_docker=True))

    def walk(self, node: Node, place: _Place) -> None:
        if place.path == self.at != "":
            if isinstance(node, yaml.MappingNode):
                self.keyed(node, place, "--at", is_chart=True)
            else:
                self.command(node, [node], place, "--at")
        elif isinstance(node, yaml.MappingNode):
            self.mapping(node, place)
        for n, each in enumerate(items(node)):
            name = self.scalar(each, "name") or str(n)
            self.walk(each, replace(place, path=f"{place.path}[{n}]", name=name))

    def mapping(self, node: Node, place: _Place) -> None:
        place = replace(
            place,
            workload=self.scalar(node, "metadata", "name") or place.workload,
            name=self.scalar(node, "name") or place.name,
            image=self.image_of(node) or place.image,
            model=self.model_in(node) or place.model,
            env={**place.env, **self.variables_of(node)[0]},
        )
        self.container(node, place)
        self.by_keys(node, place)
        for key, value in self.pairs(node):
            if key.lower() == "initcontainers" or id(node) in self.bases:
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
            self.listed(node, value, replace(place, key=key), is_stack=place.key == "vllmConfig")
            self.walk(value, inner)

    def image_of(self, node: Node) -> str:
        image = self.get(node, "image")
        if isinstance(image, yaml.ScalarNode):
            return filled(image.value, self.env)
        where = image if self.get(image, "repository") is not None else node
        parts = [self.scalar(where, key) for key in ("registry", "repository", "tag")]
        path = "/".join(part for part in parts[:2] if part)
        return f"{path}:{parts[2]}" if path and parts[2] else path

    def model_in(self, node: Node) -> str:
        """Return the model that a mapping names beside vLLM's own words."""
        for path in known.FACTS["model_paths"]:
            where = self.get(node, *path[:-1])
            if name := self.scalar(where, path[-1]):
                own = self.scalar(where, "name")
                return re.sub(r"\{\{.*?\}\}", own.replace("\\", ""), name).removeprefix("hf://")
        return ""

    def model_anywhere(self) -> str:
        """Return the model that the values of a chart name somewhere."""
        every = [each for root in self.roots for each in scalars(root)]
        for key in known.FACTS["model_keys"]:
            for path, value in every:
                if path[-1:] == [key] and (key != "name" or "model" in path):
                    return value
        return ""

    def variables_of(self, node: Node) -> tuple[dict[str, str], dict[str, Node]]:
        """Return the variables that a container sets: their values, and where these stand."""
        values, nodes = dict[str, str](), dict[str, Node]()
        listed = self.get(node, "environment") or self.get(node, "env")
        pairs = list(self.pairs(listed))
        for each in items(listed):
            if isinstance(each, yaml.ScalarNode):
                name, _, value = each.value.partition("=")
                values[name], nodes[name] = filled(value, self.env), each
            elif (value_node := self.get(each, "value")) is not None:
                pairs.append((self.scalar(each, "name"), value_node))
        for name, value_node in pairs:
            if isinstance(value_node, yaml.ScalarNode):
                values[name], nodes[name] = filled(value_node.value, self.env), value_node
        return values, nodes

    # Commands

    def container(self, node: Node, place: _Place) -> None:
        """Look for a command line in a mapping."""
        parts = {key: each for key in _COMMANDS if (each := self.get(node, key)) is not None}
        patched = self.scalar(node, "path").rpartition("/")[2]
        if self.get(node, "op") is not None and patched in _COMMANDS:
            value = self.get(node, "value")
            parts = {} if value is None else {patched: value}
        more = self.variables_of(node)[1].get("VLLM_ADDITIONAL_ARGS")
        nodes = [each for each in parts.values() if not isinstance(each, yaml.MappingNode)]
        if more is not None:
            self.command(node, [more], place, "VLLM_ADDITIONAL_ARGS")
        elif nodes:
            has_program = "entrypoint" in parts or ("command" in parts and not place.is_docker)
            why = self.proof_beside(node, nodes, place)
            self.command(node, nodes, place, why, has_program=has_program)

    def proof_beside(self, node: Node, nodes: Sequence[Node], place: _Place) -> str:
        """Return what of a mapping beside its command says that it starts vLLM."""
        format_ = self.scalar(node, "modelFormat", "name").lower()
        if format_ in {"vllm", "huggingface"} and "--backend" not in self.raw(*nodes):
            return f"modelFormat {format_}"
        command = self.scalar(node, "modelCommand")
        if command == "vllmServe" and known.may_have_vllm(place.image):
            return "modelCommand vllmServe"
        is_patch = self.get(node, "image") is None and self.get(node, "command") is None
        if is_patch and ("containers[" in place.path or self.get(node, "op") is not None):
            flag = proof_in(self.raw(*nodes))
            return flag and f"its flag {flag}"
        return ""

    def listed(self, node: Node, value: Node, place: _Place, *, is_stack: bool) -> None:
        """Look for flags behind a key of a chart's own, such as ``extraArgs``."""
        is_ours = place.key.lower() not in _COMMANDS and _FLAGS.search(place.key) and not is_stack
        if not is_ours or isinstance(value, yaml.MappingNode):
            return
        if known.starts_vllm(place.image) and proof_in(self.raw(value)):
            model = place.model or self.model_anywhere()
            self.command(node, [value], replace(place, model=model), f"its {place.key}")

    def command(
        self,
        node: Node,
        nodes: Sequence[Node],
        place: _Place,
        why: str,
        *,
        has_program: bool = False,
    ) -> None:
        """Keep the server that a command line starts, or why it cannot be read."""
        raw, last = self.raw(*nodes), nodes[-1]
        mentioned = {
            name: each
            for name, each in self.variables_of(node)[1].items()
            if re.search(rf"\$[({{]?{re.escape(name)}\b", raw)
        }
        own = [*reversed(nodes), *mentioned.values()]
        server = Server(
            name=place.full_name,
            spans=[span(each) for each in own],
            variables={name: span(each) for name, each in mentioned.items()},
            image=place.image,
        )
        image = "" if has_program else place.image
        is_script = _is_script(nodes)
        try:
            words = [w for each in nodes for w in self.words(each, place, why, is_script=is_script)]
            if has_program and words and words[0].startswith("-"):
                image = place.image
            found = vllm_in(words, place.env, image) or (Found(words, why) if why else None)
            if found is None:
                begin = next((n for n, one in enumerate(words) if one[:1] == "-"), len(words))
                found = Found(words[begin:], "", tuple(words[:begin]))
            arguments = read_flags(found.words)
        except UnreadableError as problem:
            if why or known.starts_vllm(image) or _MAY_BE.search(raw):
                unread = replace(server, proof=why or "vllm", problem=str(problem))
                self.add(replace(unread, near=problem.near), own, place)
            return
        ends = [End("text", each) for each in server.spans] if is_script else [end(last)]
        server = replace(
            server,
            arguments=arguments,
            proof=found.proof,
            words=found.words,
            image=found.image or place.image,
            ends=ends,
        )
        if found.proof or known.proof(arguments):
            self.add(server, own, place, found.rest)

    def words(self, node: Node, place: _Place, why: str, *, is_script: bool) -> list[str]:
        """Return the words of one part of a command line, its variables filled in."""
        texts = [each.value for each in items(node) if isinstance(each, yaml.ScalarNode)]
        if len(texts) < len(items(node)):
            raise UnreadableError("an argument is no text")
        if isinstance(node, yaml.ScalarNode) and not (place.is_docker or why):
            raise UnreadableError("its arguments are no list")
        if isinstance(node, yaml.ScalarNode):
            is_joined = re.search(r"\\[ \t]*\n", node.value) and node.style == "|"
            if place.is_docker and is_joined:
                raise UnreadableError("Compose joins no lines at a backslash", "\\")
            one_line = node.value.replace("\n", " ").replace("$$", "\0")
            return [word.replace("\0", "$") for word in split(filled(one_line, self.env), {})]
        if place.is_docker:
            return [filled(each.replace("$$", "\0"), self.env).replace("\0", "$") for each in texts]
        if is_script:
            return texts
        return [re.sub(r"\$\((\w+)\)", lambda m: place.env.get(m[1], m[0]), each) for each in texts]

    def add(self, server: Server, own: Sequence[Node], place: _Place, rest: object = ()) -> None:
        """Keep a server, with all that the file says beside its own nodes."""
        arguments = dict(server.arguments)
        if place.model:
            arguments.setdefault("model", place.model)
        at = (*place.path.split(".")[:1], "parallelism", "tensor")
        if tensor := next(filter(None, (self.scalar(root, *at) for root in self.roots)), ""):
            arguments.setdefault("tensor_parallel_size", typed(tensor))
        beside = partial(_beside, self.roots, own, rest)
        self.found.append(replace(server, arguments=arguments, rest=beside))

    # Keys

    def by_keys(self, node: Node, place: _Place) -> None:
        """Look for vLLM's arguments as the keys of a mapping."""
        names = {argument_of(key)[0] for key, _ in self.pairs(node)}
        flag, image = known.proof(names), known.starts_vllm(place.image)
        if place.key == "vllmConfig":
            if known.may_have_vllm(place.image) or image:
                self.keyed(node, place, "vllmConfig", is_chart=True)
        elif place.key == "engine_kwargs":
            applications = [each for r in self.roots for each in items(self.get(r, "applications"))]
            path = self.scalar(applications[0], "import_path") if applications else ""
            if re.match(r"ray\.(serve\.)?llm[.:]", path):
                self.keyed(node, place, "engine_kwargs")
        elif flag and image:
            self.keyed(node, place, f"its key {flag} beside {image}", is_chart=True)
        elif flag and not place.path and self.get(node, "kind") is None:
            odd = sorted(names - known.NAMES)
            doubt = f": {odd[0][:40]} is no argument of vllm serve" if odd else ""
            self.keyed(node, place, "" if odd else f"its key {flag}", doubt=doubt)

    def keyed(
        self, node: Node, place: _Place, why: str, *, is_chart: bool = False, doubt: str = ""
    ) -> None:
        """Keep the server whose arguments are the keys of a mapping."""
        arguments, dropped, extra = dict[str, ArgumentValue](), list[object](), None
        keys = end(node)
        for key_node, value_node in node.value:
            key, value = str(key_node.value), plain(value_node)
            if is_chart and key in {"extraArgs", "extra_args"} and items(value_node):
                extra = value_node
            elif not is_chart and not place.key and (value is False or value is None):
                dropped.append((key, value))  # vllm serve --config leaves these out
            else:
                name, is_off = argument_of(key)
                arguments[name] = value is not True if is_off else value
                if is_chart and not keys.is_flow:  # new keys go before extraArgs
                    keys = End("keys", (keys.span[0], end_of(value_node)))
        ends = ([keys] if arguments else []) + ([] if extra is None else [end(extra)])
        problem, words = "", [str(each.value) for each in items(extra)]
        if is_chart:
            try:
                arguments, problem = self.of_chart(arguments, read_flags(words), place)
            except UnreadableError as error:
                problem = str(error)
        server = Server(
            name=place.full_name or "config",
            arguments=arguments,
            proof=why,
            spans=[span(node)],
            ends=ends,
            words=words,
            image=place.image,
            is_chart=is_chart,
            problem=problem,
            doubt=doubt,
        )
        self.add(server, [node], place, dropped)

    def of_chart(
        self, keys: dict[str, ArgumentValue], flags: Arguments, place: _Place
    ) -> tuple[dict[str, ArgumentValue], str]:
        """Return what a chart makes of its keys, and why that cannot be edited."""
        both = sorted(flags.keys() & keys.keys())
        if place.key == "vllmConfig":
            keys = {"enable_prefix_caching": False} | keys
        elif not place.model and (model := self.model_anywhere()):
            keys.setdefault("model", model)
        problem = f"{both[0]} is also among its extraArgs, which win" if both else ""
        return {**keys, **flags}, problem

    # Files within the file

    def within(self, node: Node, place: _Place) -> None:
        """Look into a block that is a file of its own."""
        is_file = PurePath(place.key).suffix in known.FACTS["nested_suffixes"]
        if not is_file and place.key not in known.FACTS["nested_keys"]:
            return
        if not isinstance(node, yaml.ScalarNode) or node.style != "|":
            return
        begin = self.text.index("\n", node.start_mark.index) + 1
        raw = self.text[begin : node.end_mark.index]
        margin = re.match(r"(?:[ \t]*\r?\n)*([ ]*)", raw)
        indent = margin[1] if margin else ""
        path = PurePath(place.key if is_file else "values.yaml")
        for each in self.find(path, re.sub(rf"(?m)^{indent}", "", raw), self.near):
            block = (begin, node.end_mark.index)
            name = "/".join(filter(None, (place.workload, each.name)))
            outer = replace(each, name=name, spans=[block], inner=(block, indent, each))
            self.add(outer, [node], place)


def _beside(roots: Sequence[Node], own: Sequence[Node], rest: object) -> object:
    """Return all that a file says beside a server's own nodes."""
    without = {id(node): 1 for node in own}
    return [outline(root, without) for root in roots], rest


def _is_script(nodes: Sequence[Node]) -> bool:
    """Whether a command line hands a text to a shell."""
    first = (items(nodes[0]) or nodes)[0]
    word = first.value if isinstance(first, yaml.ScalarNode) else ""
    return word.split(" ")[0].rpartition("/")[2] in known.FACTS["shells"]


def _dotenv(text: str) -> dict[str, str]:
    lines = re.finditer(r"(?m)^[ \t]*(?:export[ \t]+)?(\w+)=(['\"]?)(.*?)\2[ \t]*\r?$", text)
    return {each[1]: each[3] for each in lines}
