"""Values of the vLLM production stack's Helm chart. Pure.

The chart starts ``vllm serve`` itself, knows some arguments by keys of ``vllmConfig`` and takes the
rest from ``extraArgs``, which come last. Where ``vllmConfig`` has no ``enablePrefixCaching`` it
turns prefix caching off.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.values import typed
from tuner.errors import TargetError
from tuner.rollout.targets import images
from tuner.rollout.targets.command_line import flags
from tuner.rollout.targets.command_line.command_line import CommandLine
from tuner.rollout.targets.kinds import container_target
from tuner.rollout.targets.kinds.container_command import command_line
from tuner.rollout.targets.kinds.containers import KUBERNETES, Container
from tuner.rollout.targets.seam import Arguments, Asked, Platform, Rollout, Stated, Statements
from tuner.rollout.targets.server import Server, check_there, platform_of
from tuner.rollout.targets.yaml.file import YamlFile, outline, parse
from tuner.rollout.targets.yaml.nodes import entries, get, items, line_of, refuse_filled_in, text_at
from tuner.system import yaml_strict

NAME = "helm-production-stack"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
ON_THIS_MACHINE = False

KEYS = {
    "dtype": "dtype",
    "enable_chunked_prefill": "enableChunkedPrefill",
    "enable_prefix_caching": "enablePrefixCaching",
    "gpu_memory_utilization": "gpuMemoryUtilization",
    "max_loras": "maxLoras",
    "max_model_len": "maxModelLen",
    "max_num_seqs": "maxNumSeqs",
    "tensor_parallel_size": "tensorParallelSize",
}
_ONLY_IF_THERE = frozenset({"tensor_parallel_size"})
"""The chart also mounts shared memory where this key is."""

_MOST = 1_000_000
"""Helm writes greater numbers with an exponent, which vLLM does not read."""

_EVIDENCE = "modelSpec of the vLLM production stack"
_SPELLING = KUBERNETES.with_keys(command="", args="extraArgs", environment="")
_MODEL = KUBERNETES.with_keys(command="", args="", environment="")


@dataclass(frozen=True, slots=True)
class StackServer(Server):
    """The server of a model of the chart."""

    text: str
    asked: Asked
    file: YamlFile
    spec: yaml.MappingNode
    """An item of ``modelSpec``."""

    config: yaml.MappingNode | None
    line: CommandLine | None

    @property
    def evidence(self) -> str:
        return _evidence(self.spec)

    @property
    def stated(self) -> dict[str, Stated]:
        found = {} if self.line is None else self.line.stated()
        if self.config is not None:
            off = Stated(value=False, line=line_of(self.config))
            found.setdefault("enable_prefix_caching", off)
        for argument, key in KEYS.items():
            node = get(self.config, key)
            if node is not None and (argument not in found or found[argument].value is False):
                value = yaml_strict.construct(node, source=self.file.source, error=TargetError)
                found[argument] = Stated(_plain(value), line_of(node))
        url = get(self.spec, "modelURL")
        if isinstance(url, yaml.ScalarNode):
            found["model"] = Stated(url.value, line_of(url))
        return found

    @property
    def platform(self) -> Platform:
        tag = get(self.spec, "tag")
        image = f"{text_at(self.spec, 'repository') or ''}:{text_at(tag) or ''}".strip(":")
        return platform_of(image, line_of(tag))

    @property
    def rollout(self) -> Rollout:
        return Rollout("helm upgrade RELEASE vllm/vllm-stack -f {file}", "helm rollback RELEASE")

    def edited(self, arguments: Arguments) -> str:
        if self.config is None:
            keys: dict[str, object] = {
                KEYS[name]: value for name, value in arguments.items() if _fits(name, value)
            }
            extra = {name: value for name, value in arguments.items() if not _fits(name, value)}
            added = flags.added((), extra, source=self.asked.source)
            words = [word for group in added for word in group]
            keys |= {"extraArgs": words} if words else {}
            self.file.add_key(self.spec, "vllmConfig", keys)
        else:
            _write(self, self.config, arguments)
        return self.file.edits.taken()

    def reopened(self, text: str) -> "StackServer":
        return opened(text, self.asked)

    def rest(self) -> list[object]:
        """Return all beside ``vllmConfig``, and of that what is not an argument."""
        outer = outline(self.file, {id(self.spec): {"vllmConfig"}})
        if self.config is None:
            return [outer]
        inner = YamlFile(self.file.edits, [self.config])
        kept = outline(inner, {id(self.config): {*KEYS.values(), "extraArgs"}})
        return [outer, *(part for part in kept if part)]

    def faults(self, before: Statements, after: Statements, arguments: Arguments) -> list[str]:
        """See Server. A new vllmConfig states enable_prefix_caching, too, which is no fault."""
        found = Server.faults(self, before, after, arguments)
        begins = {"enable_prefix_caching"} if self.config is None else set[str]()
        return [name for name in found if name not in begins]


def _evidence(spec: yaml.MappingNode) -> str:
    return _EVIDENCE if images.may_have_vllm(text_at(spec, "repository") or "") else ""


def containers(file: YamlFile) -> Iterator[Container]:
    """Yield the models; the node is what ``modelSpec`` holds."""
    for document in file.roots:
        for values in (document, *entries(document).values()):  # of the chart, or of one around it
            specs = get(values, "servingEngineSpec", "modelSpec")
            for number, spec in enumerate(items(specs), start=1):
                if isinstance(spec, yaml.MappingNode):
                    name = text_at(spec, "name") or str(number)
                    why = _evidence(spec)
                    yield Container("", name, spec, spec, spelling=_MODEL, evidence=why)


def opened(text: str, asked: Asked) -> StackServer:
    """Return the model that is meant. Raises TargetError and UsageError."""
    check_there(text, source=asked.source)
    file = parse(text, source=asked.source, tabs=True)
    chosen, _ = container_target.choose(file, list(containers(file)), asked)
    spec = chosen.node
    config = get(spec, "vllmConfig")
    if config is not None and not isinstance(config, yaml.MappingNode):
        raise file.refuse(config, "vllmConfig is no mapping", hint="Write its keys below it.")
    line = None
    if config is not None:
        model = Container("", chosen.name, config, spelling=_SPELLING, evidence=_EVIDENCE)
        line = command_line(file, model)
    return StackServer(text, asked, file, spec, config, line)


def _write(values: StackServer, config: yaml.MappingNode, arguments: Arguments) -> None:
    in_args = {} if values.line is None else values.line.stated()
    rest: dict[str, ArgumentValue] = {}
    keys: dict[str, ArgumentValue] = {}
    for name, value in arguments.items():
        key = KEYS.get(name, "")
        node = get(config, key)
        if node is not None and name in in_args:
            raise values.file.refuse(
                node, f"{key} is also among extraArgs, which win", hint="Remove one of the two."
            )
        if node is not None and value is None:
            values.file.remove_key(config, key)
        elif node is not None:
            _set(values.file, node, name, value)
        elif name not in in_args and _fits(name, value):
            keys[key] = value
        else:
            rest[name] = value
    if arguments.get("enable_prefix_caching", True) is None:
        raise values.file.refuse(
            config, "the chart turns prefix caching on or off", hint="Set it in the profile."
        )
    if rest and values.line is not None:
        values.line.write(rest)
    for key, value in keys.items():  # behind the list, which may be what the mapping ends in
        values.file.add_key(config, key, value)


def _fits(name: str, value: ArgumentValue) -> bool:
    """Whether a key that is not there yet is the place for it."""
    is_big = isinstance(value, int) and value >= _MOST
    return name in KEYS and name not in _ONLY_IF_THERE and value is not None and not is_big


def _set(file: YamlFile, node: yaml.Node, argument: str, value: ArgumentValue) -> None:
    found = yaml_strict.construct(node, source=file.source, error=TargetError)
    if str(found) != str(value):
        refuse_filled_in(node, argument, source=file.source)
        file.set(node, value)


def _plain(value: object) -> ArgumentValue:
    if isinstance(value, str):
        return typed(value)  # quoted numbers are numbers to the chart
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)
