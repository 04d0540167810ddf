"""A ConfigMap that holds a ``vllm serve --config`` file. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import yaml

from tuner.errors import ByHandError, NotVllmError, TargetError, UsageError
from tuner.rollout.targets.kinds import vllm_config
from tuner.rollout.targets.kinds.vllm_config import ConfigServer
from tuner.rollout.targets.seam import Arguments, Asked, Rollout, Stated, Statements
from tuner.rollout.targets.server import Server, check_there
from tuner.rollout.targets.yaml.file import YamlFile, outline, parse
from tuner.rollout.targets.yaml.nested import Nested, nested
from tuner.rollout.targets.yaml.nodes import entries, get, text_at

NAME = "configmap"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
ON_THIS_MACHINE = False


@dataclass(frozen=True, slots=True)
class _Text:
    """One text of a ConfigMap that is a config of vLLM's."""

    name: str
    key: str
    within: Nested
    config: ConfigServer


@dataclass(frozen=True, slots=True)
class ConfigMapServer(Server):
    """The server of a config in a ConfigMap."""

    text: str
    asked: Asked
    whole: YamlFile
    found: _Text

    @property
    def evidence(self) -> str:
        return self.found.config.evidence

    @property
    def stated(self) -> dict[str, Stated]:
        return self.found.config.stated

    @property
    def rollout(self) -> Rollout:
        return Rollout("kubectl apply -f {file} && kubectl rollout restart WORKLOAD")

    @property
    def notes(self) -> Sequence[str]:
        return self.found.config.notes

    def edited(self, arguments: Arguments) -> str:
        """Return the text with these arguments in the config."""
        self.found.config.ask(arguments)
        self.found.within.hand_on()
        self.found.within.file.edits.changes.clear()
        return self.whole.edits.taken()

    def reopened(self, text: str) -> "ConfigMapServer":
        return opened(text, replace(self.asked, container=self.found.name))

    def rest(self) -> list[object]:
        outer = outline(self.whole, {id(self.found.within.parent): {self.found.key}})
        return [outer, self.found.config.rest()]

    def faults(self, before: Statements, after: Statements, arguments: Arguments) -> list[str]:
        return self.found.config.faults(before, after, arguments)


def holds_config(whole: YamlFile) -> bool:
    """Whether a ConfigMap of the file has a text that is proven to be a config of vLLM's."""
    return any(True for _ in _texts(whole, Asked(whole.source)))


def opened(text: str, asked: Asked) -> ConfigMapServer:
    """Return the config that is meant. Raises TargetError and UsageError."""
    check_there(text, source=asked.source)
    whole = parse(text, source=asked.source, tabs=True)
    found = list(_texts(whole, asked))
    names = ", ".join(one.name for one in found)
    chosen = [one for one in found if asked.container in (None, one.name, one.key)]
    if not found:
        raise NotVllmError(
            f"{asked.source}: no ConfigMap in it holds a config that is proven to be vLLM's",
            hint="Such a text has a key that is vLLM's alone, such as max-num-seqs.",
        )
    if len(chosen) != 1:
        problem = "which config?" if asked.container is None else f"no config {asked.container!r}"
        raise UsageError(f"{asked.source}: {problem}", hint=f"--container NAME, of {names}.")
    return ConfigMapServer(text, asked, whole, chosen[0])


def _texts(whole: YamlFile, asked: Asked) -> Iterator[_Text]:
    for document in whole.roots:
        data = get(document, "data")
        if text_at(document, "kind") != "ConfigMap" or not isinstance(data, yaml.MappingNode):
            continue
        name = text_at(document, "metadata", "name") or "ConfigMap"
        for key, node in entries(data).items():
            if isinstance(node, yaml.ScalarNode) and ":" in node.value:
                config = _config(whole, data, node, asked)
                if config is not None:
                    yield _Text(f"{name}/{key}", key, *config)


def _config(
    whole: YamlFile, data: yaml.MappingNode, node: yaml.ScalarNode, asked: Asked
) -> tuple[Nested, ConfigServer] | None:
    """Return the config that a text is; None for another text. Raises ByHandError for KAITO's."""
    try:
        within = nested(whole, data, node)
        root = vllm_config.root_of(within.file)
    except TargetError:
        return None
    if root is None:
        return None
    if isinstance(get(root, "vllm"), yaml.MappingNode):
        raise ByHandError(
            f"{whole.place(node)}: is the inference config of a KAITO Workspace, which is not "
            "edited",
            hint="Put these below its key vllm:",
            paste=lambda words: "; ".join(_as_keys(words)),
        )
    try:
        proof = vllm_config.proof_of(within.file, root)
    except TargetError:
        return None
    return within, ConfigServer(asked, within.view.text, within.file, root, proof)


def _as_keys(words: Sequence[str]) -> Iterator[str]:
    """Yield flags as a config file has them."""
    for word in words:
        flag, _, value = word.removeprefix("--").partition("=")
        yield f"{flag}: {value or 'true'}"
