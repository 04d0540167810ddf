"""Servers in YAML and JSON: any mapping with a command or arguments, or with vLLM's names as keys.

Whatever the document: a Compose file, a manifest of any controller, a patch, the values of a chart,
alone or within another object.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import yaml

from tuner.engines.arguments import ArgumentValue
from tuner.engines.vllm.flags import canonical
from tuner.engines.vllm.values import typed
from tuner.errors import TargetError
from tuner.rollout import known
from tuner.rollout.server import Item, Near, Server, Span
from tuner.rollout.words import Found, Told, UnreadableError, filled, split, told, vllm_in
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


class _Rest:
    """All that a file says beside a server's own words; made only where it is compared."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, roots: Sequence[Node], own: Sequence[Node], inner: object) -> None:
        self.roots, self.own, self.inner = roots, own, inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rest) and self.said() == other.said()

    def said(self) -> object:
        without = {id(node): 1 for node in self.own}
        return [outline(root, without) for root in self.roots], self.inner


def plain(node: Node) -> ArgumentValue:
    """Return the value behind a key, as vLLM is told it."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [plain(each) for each in node.value]
    kind = node.tag.rpartition(":")[2]
    if kind == "bool":
        return node.value.lower() in {"true", "yes", "on"}
    return None if kind == "null" else typed(node.value)


@dataclass(frozen=True)
class _Place:
    """Where a mapping is, and what is said around it."""

    path: str = ""
    name: str = ""
    workload: str = ""
    image: str = ""
    model: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    is_docker: bool = False
    key: str = ""

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

    # Nodes

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
            node = next(
                (value for key, value in self.pairs(node) if key.lower() == part.lower()), None
            )
        return node

    def scalar(self, node: Node | None, *path: str) -> str:
        found = self.get(node, *path)
        return filled(found.value, self.env) if isinstance(found, yaml.ScalarNode) else ""

    # Documents

    def document(self, root: Node) -> None:
        """Find the servers of one document."""
        services = self.get(root, "services")
        place = _Place()
        if self.get(root, "kind") is None and isinstance(services, yaml.MappingNode):
            self.env = _dotenv(self.near(".env") or "")
            self.compose(services, replace(place, path="services", is_docker=True))
            return
        self.walk(root, place)

    def compose(self, services: Node, place: _Place) -> None:
        """Find the servers of a Compose file; a service may extend another one."""
        of_name = dict(self.pairs(services))
        extended = set()
        for service in of_name.values():
            base = self.scalar(service, "extends", "service") or self.scalar(service, "extends")
            file = self.scalar(service, "extends", "file")
            if base and file:
                self.bases[id(service)] = self.elsewhere(file, base)
            elif base in of_name:
                self.bases[id(service)] = of_name[base]
                extended.add(base)
        for name, service in of_name.items():
            if name in extended and self.get(service, "profiles") is not None:
                continue  # a template that nothing starts
            self.mapping(service, replace(place, path=f"services.{name}", name=name))

    def elsewhere(self, file: str, name: str) -> Node:
        """Return the service of another file, without its command: that cannot be edited here."""
        text = self.near(file) or ""
        roots = yaml_strict.compose_all(text, source=file, error=TargetError)
        service = self.get(roots[0], "services", name) if roots else None
        pairs = getattr(service, "value", ())
        kept = [(key, value) for key, value in pairs if key.value not in _COMMANDS]
        return yaml.MappingNode("tag:yaml.org,2002:map", kept)

    def walk(self, node: Node, place: _Place) -> None:
        if place.path == self.at != "":
            self.pointed_at(node, place)
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
                name=place.name if is_own or isinstance(value, yaml.SequenceNode) else key,
                is_docker=place.is_docker or key.lower() in _DOCKER,
                key=key,
            )
            self.within(value, inner)
            self.listed(node, key, value, place)
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
        for where, keys in (
            (node, ("modelURL",)),
            (self.get(node, "model_loading_config"), ("model_source",)),
            (self.get(node, "modelArtifacts"), ("uri",)),
            (self.get(node, "spec", "model"), ("uri",)),
            (self.get(node, "predictor", "model"), ("storageUri",)),
        ):
            if name := self.scalar(where, *keys):
                own = self.scalar(where, "name")
                return re.sub(r"\{\{.*?\}\}", lambda _: own, name).removeprefix("hf://")  # noqa: B023
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
        nodes = [found for key in _COMMANDS if (found := self.get(node, key)) is not None]
        nodes = [each for each in nodes if not isinstance(each, yaml.MappingNode)]
        has_program = self.get(node, "entrypoint") is not None
        has_program |= self.get(node, "command") is not None and not place.is_docker
        patched = self.scalar(node, "path").rpartition("/")[2]
        if self.get(node, "op") is not None and patched in _COMMANDS:
            nodes = [each for each in [self.get(node, "value")] if each is not None]
            has_program = patched == "command"
        env_nodes = self.variables_of(node)[1]
        if (more := env_nodes.get("VLLM_ADDITIONAL_ARGS")) is not None:
            self.command(node, [more], place, False, "VLLM_ADDITIONAL_ARGS")
        elif nodes:
            self.command(node, nodes, place, has_program, self.said_by_kind(node, nodes, place))
        elif self.image_of(node) and known.starts_vllm(place.image):
            problem = "its container has no arguments here"
            server = Server(name=place.full_name, proof=place.image, problem=problem)
            if place.is_docker or "ontainers" in place.path:
                self.add(server, [], place)

    def said_by_kind(self, node: Node, nodes: Sequence[Node], place: _Place) -> str:
        """Return what of a mapping beside its command says that it starts vLLM."""
        format_ = self.scalar(node, "modelFormat", "name").lower()
        raw = "".join(self.text[slice(*span(each))] for each in nodes)
        if format_ in {"vllm", "huggingface"} and "--backend" not in raw:
            return f"modelFormat {format_}"
        command = self.scalar(node, "modelCommand")
        if command == "vllmServe" and known.may_have_vllm(place.image):
            return "modelCommand vllmServe"
        is_patch = self.get(node, "image") is None and self.get(node, "command") is None
        if is_patch and ("containers[" in place.path or self.get(node, "op") is not None):
            flags = {canonical(one)[0] for one in re.findall(r"--([a-z][\w-]*)", raw)}
            return f"its flag {flag}" if (flag := known.proof(flags)) else ""
        return ""

    def command(
        self, node: Node, nodes: Sequence[Node], place: _Place, has_program: bool, why: str
    ) -> None:
        """Keep the server that a command line starts, or why it cannot be read."""
        raw = " ".join(self.text[slice(*span(each))] for each in nodes)
        last = nodes[-1]
        mentioned = {
            name: each
            for name, each in self.variables_of(node)[1].items()
            if re.search(rf"\$[({{]?{re.escape(name)}\b", raw)
        }
        server = Server(
            name=place.full_name,
            spans=[span(last), *map(span, nodes[:-1]), *map(span, mentioned.values())],
            variables={name: span(each) for name, each in mentioned.items()},
            image=place.image,
        )
        image = "" if has_program else place.image
        try:
            words = [word for each in nodes for word in self.words(each, place, why)]
            if has_program and words and words[0].startswith("-"):
                image = place.image
            found = vllm_in(words, place.env, image)
            if found is None and why:
                found = Found(words, why)
            is_proven = found is not None
            if found is None:
                begin = next((n for n, one in enumerate(words) if one[:1] == "-"), len(words))
                found = Found(words[begin:], "", tuple(words[:begin]))
            said = told(found.words)
        except UnreadableError as problem:
            if why or known.starts_vllm(image) or _MAY_BE.search(raw):
                unread = replace(server, proof=why or "vllm", problem=str(problem))
                self.add(replace(unread, near=problem.near), nodes, place)
            return
        listed = isinstance(last, yaml.SequenceNode) and not _has_script(nodes)
        server = replace(
            server,
            told=said,
            proof=found.proof if is_proven else "",
            words=found.words,
            rest=found.rest,
            image=found.image or place.image,
            form="list" if listed else "text",
            items=[self.item(each) for each in items(last)] if listed else (),
            is_flow=listed and bool(getattr(last, "flow_style", False)),
        )
        if is_proven or known.proof(said):
            self.add(server, [*nodes, *mentioned.values()], place)

    def words(self, node: Node, place: _Place, why: str) -> list[str]:
        """Return the words of one part of a command line, its variables filled in."""
        if isinstance(node, yaml.SequenceNode):
            texts = [each.value for each in node.value if isinstance(each, yaml.ScalarNode)]
            if len(texts) < len(node.value):
                raise UnreadableError("an argument is no text")
        elif place.is_docker or why:
            is_joined = re.search(r"\\[ \t]*\n", node.value) and getattr(node, "style", "") == "|"
            if place.is_docker and is_joined:
                raise UnreadableError("Compose joins no lines at a backslash", "\\")
            filled_in = filled(node.value.replace("\n", " ").replace("$$", "\0"), self.env)
            return [word.replace("\0", "$") for word in split(filled_in, {})]
        else:
            raise UnreadableError("its arguments are no list")
        if place.is_docker:
            return [filled(each.replace("$$", "\0"), self.env).replace("\0", "$") for each in texts]
        if _has_script([node]):
            return texts
        return [re.sub(r"\$\((\w+)\)", lambda m: place.env.get(m[1], m[0]), each) for each in texts]

    def item(self, node: Node, key: Node | None = None) -> Item:
        style = getattr(node, "style", None) or ""
        name = str(key.value) if key is not None else ""
        return Item(span(node), style if style in "'\"" else "", name, span(key) if key else (0, 0))

    def add(self, server: Server, nodes: Sequence[Node], place: _Place) -> None:
        """Keep a server, with all that the file says beside its own words."""
        said = dict(server.told)
        if place.model and "model" not in said:
            said["model"] = place.model
        at = (*place.path.split(".")[:1], "parallelism", "tensor")
        if tensor := next(filter(None, (self.scalar(root, *at) for root in self.roots)), ""):
            said.setdefault("tensor_parallel_size", typed(tensor))
        self.found.append(replace(server, told=said, rest=_Rest(self.roots, nodes, server.rest)))

    # Keys

    def by_keys(self, node: Node, place: _Place) -> None:
        """Look for vLLM's arguments as the keys of a mapping."""
        names = {argument_of(key)[0] for key, _ in self.pairs(node)}
        flag = known.proof(names)
        image = known.starts_vllm(place.image)
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
        said: Told = {}
        dropped, own, extra = list[object](), list[Item](), None
        for key_node, value in node.value:
            key = str(key_node.value)
            if is_chart and key in {"extraArgs", "extra_args"} and items(value):
                extra = value
                continue
            name, is_off = argument_of(key)
            found = plain(value)
            if not is_chart and not place.key and (found is False or found is None):
                dropped.append((key, found))  # vllm serve --config leaves these out
                continue
            said[name] = found is not True if is_off else found
            own.append(self.item(value, key_node))
        said, problem = self.of_chart(said, extra, place) if is_chart else (said, "")
        inner = None
        if extra is not None:
            listed = [self.item(each) for each in items(extra)]
            inner = Server(
                name="",
                form="list",
                items=listed,
                is_flow=bool(getattr(extra, "flow_style", False)),
                spans=[span(extra)],
                words=[str(e.value) for e in items(extra)],
            )
        server = Server(
            name=place.full_name or "config",
            told=said,
            proof=why,
            spans=[span(node)],
            rest=dropped,
            form="keys",
            items=own,
            is_flow=bool(getattr(node, "flow_style", False)),
            extra=inner,
            image=place.image,
            is_chart=is_chart,
            problem=problem,
            doubt=doubt,
        )
        self.add(server, [node], place)

    def of_chart(self, said: Told, extra: Node | None, place: _Place) -> tuple[Told, str]:
        """Return what a chart makes of its keys, and why that cannot be edited."""
        more: Told = {}
        try:
            more = told([str(each.value) for each in items(extra)])
        except UnreadableError as problem:
            return said, str(problem)
        both = sorted(more.keys() & said.keys())
        if place.key == "vllmConfig":
            said = {"enable_prefix_caching": False} | said
        elif "model" not in said and not place.model:
            said |= self.model_anywhere()
        return said | more, f"{both[0]} is also among its extraArgs, which win" if both else ""

    def model_anywhere(self) -> Told:
        """Return the model that the values of a chart name somewhere."""
        for key in known.FACTS["model_keys"]:
            for root in self.roots:
                for path, value in _scalars(root):
                    if path[-1:] == [key] and (key != "name" or "model" in path):
                        return {"model": value}
        return {}

    def listed(self, node: Node, key: str, value: Node, place: _Place) -> None:
        """Look for flags behind a key of a chart's own, such as ``extraArgs``."""
        is_ours = key.lower() not in _COMMANDS and place.key != "vllmConfig"
        if not is_ours or not _FLAGS.search(key) or not known.starts_vllm(place.image):
            return
        raw = self.text[slice(*span(value))]
        flags = {canonical(one)[0] for one in re.findall(r"--([a-z][\w-]*)", raw)}
        if known.proof(flags) and not isinstance(value, yaml.MappingNode):
            model = place.model or str(self.model_anywhere().get("model", ""))
            self.command(node, [value], replace(place, model=model), False, f"its {key}")

    def pointed_at(self, node: Node, place: _Place) -> None:
        """Take somebody's word that this is vLLM's."""
        if isinstance(node, yaml.MappingNode):
            self.keyed(node, place, "--at", is_chart=True)
        else:
            self.command(node, [node], place, False, "--at")

    def within(self, node: Node, place: _Place) -> None:
        """Look into a block that is a file of its own."""
        suffix = PurePath(place.key).suffix
        is_file = suffix in known.FACTS["nested_suffixes"]
        if not is_file and place.key not in known.FACTS["nested_keys"]:
            return
        if not isinstance(node, yaml.ScalarNode) or node.style != "|":
            return
        begin = self.text.index("\n", node.start_mark.index) + 1
        raw = self.text[begin : node.end_mark.index]
        indent = re.match(r"(?:[ \t]*\r?\n)*([ ]*)", raw)[1]  # type: ignore[index]
        inner = re.sub(rf"(?m)^{indent}", "", raw)
        path = PurePath(place.key if is_file else "values.yaml")
        for each in self.find(path, inner, self.near):
            whole = replace(
                each,
                spans=[(begin, node.end_mark.index)],
                items=(),
                variables={},
                extra=None,
                inner=((begin, node.end_mark.index), indent, each),
                name="/".join(filter(None, (place.workload, each.name))),
            )
            self.add(whole, [node], place)


def argument_of(key: str) -> tuple[str, bool]:
    """Return the argument that a key names, in snake, kebab or camel case.

    >>> argument_of("maxNumSeqs"), argument_of("no-enable-prefix-caching")
    (('max_num_seqs', False), ('enable_prefix_caching', True))
    """
    return canonical(re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower())


def _has_script(nodes: Sequence[Node]) -> bool:
    """Whether a command line hands a text to a shell."""
    first = nodes[0].value if nodes else ""
    word = first if isinstance(first, str) else first[0].value if first else ""
    return isinstance(word, str) and word.split(" ")[0].rpartition("/")[2] in known.FACTS["shells"]


def _scalars(node: Node, path: Sequence[str] = ()) -> Iterator[tuple[list[str], str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, [*path, str(key.value)])
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _scalars(each, path)
    elif node.tag.endswith(":str") and node.value:
        yield list(path), str(node.value)


def _dotenv(text: str) -> dict[str, str]:
    found = re.finditer(r"(?m)^[ \t]*(?:export[ \t]+)?(\w+)=(['\"]?)(.*?)\2[ \t]*\r?$", text)
    return {each[1]: each[3] for each in found}
