"""Ray Serve's LLM configs: ``engine_kwargs`` of an ``LLMConfig``. Pure.

In a file for ``serve deploy`` (``applications``), in one of its own, which such a file names, or in
the ``serveConfigV2`` of a RayService. Ray 2.44 to 2.55: docs.ray.io/en/latest/serve/llm.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from tuner.engines.vllm.flags import OF_SERVER
from tuner.engines.vllm.values import same
from tuner.errors import NotVllmError, TargetError, UsageError
from tuner.rollout.targets.command_line.flags import comparable
from tuner.rollout.targets.kinds.argument_mapping import ArgumentMapping
from tuner.rollout.targets.seam import Arguments, Asked, Rollout, Stated, Statements
from tuner.rollout.targets.server import Server, check_there
from tuner.rollout.targets.yaml.file import YamlFile, outline, parse
from tuner.rollout.targets.yaml.nested import Nested, nested
from tuner.rollout.targets.yaml.nodes import entries, get, items, line_of, text_at

NAME = "ray-serve"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
ON_THIS_MACHINE = False

_CONFIG = "serveConfigV2"
_ARGUMENTS = "engine_kwargs"
_LOADING = "model_loading_config"
_BUILDERS = re.compile(r"ray\.(serve\.)?llm[.:]")
"""Beginning of ``import_path`` in an application of Ray's own."""


@dataclass(frozen=True, slots=True)
class _Model:
    """One LLMConfig of a file."""

    name: str
    node: yaml.MappingNode
    file: YamlFile
    """What it stands in: the file itself, or a text in it."""

    within: Nested | None


@dataclass(frozen=True, slots=True)
class RayServer(Server):
    """The server of an LLMConfig."""

    text: str
    asked: Asked
    whole: YamlFile
    model: _Model

    @property
    def evidence(self) -> str:
        return "an LLMConfig of Ray Serve, whose engine is vLLM"

    @property
    def _mapping(self) -> ArgumentMapping:
        return ArgumentMapping(self.model.file, self.model.node, _ARGUMENTS)

    @property
    def stated(self) -> dict[str, Stated]:
        found = self._mapping.stated()
        loading = get(self.model.node, _LOADING)
        named = get(loading, "model_source") or get(loading, "model_id")
        if named is not None:
            line = line_of(named)
            if isinstance(named, yaml.ScalarNode):
                found["model"] = Stated(named.value, line)
            else:
                bucket = text_at(named, "bucket_uri") or "model_source"
                found["model"] = Stated(bucket, line, "is copied from a bucket")
        return found

    @property
    def rollout(self) -> Rollout:
        if self.model.within is not None:
            return Rollout("kubectl apply -f {file}")
        return Rollout("serve deploy {file}")

    def edited(self, arguments: Arguments) -> str:
        """Return the text with these arguments in ``engine_kwargs``. Raises TargetError."""
        for name in sorted(OF_SERVER & arguments.keys()):
            raise TargetError(
                f"{self.asked.source}: {_ARGUMENTS} is of the engine, and {name} of vllm serve",
                hint=f"Sweep without {name}: Ray Serve has replicas of its own in its place.",
            )
        self._mapping.ask(arguments)
        if self.model.within is not None:
            self.model.within.hand_on()
            self.model.file.edits.changes.clear()
        return self.whole.edits.taken()

    def reopened(self, text: str) -> "RayServer":
        return opened(text, self.asked)

    def faults(self, before: Statements, after: Statements, arguments: Arguments) -> list[str]:
        """Return the arguments that are not what was asked for; False is a value here."""
        wanted = {name: one.value for name, one in before.items()} | dict(arguments)
        found = {name: one.value for name, one in after.items()}
        return sorted(
            name
            for name in wanted.keys() | found.keys()
            if not same(comparable(found.get(name), wanted.get(name)), wanted.get(name))
        )

    def rest(self) -> list[object]:
        inner = outline(self.model.file, {id(self.model.node): {_ARGUMENTS}})
        if self.model.within is None:
            return inner
        return [inner, *outline(self.whole, {id(self.model.within.parent): {_CONFIG}})]


def is_one(document: yaml.Node) -> bool:
    """Whether a document is for Ray Serve and may hold an LLMConfig."""
    if text_at(document, "kind") == "RayService":
        return True
    return any(True for _ in _configs(document, is_trusted=True))


def opened(text: str, asked: Asked) -> RayServer:
    """Return the LLMConfig that is meant. Raises TargetError and UsageError."""
    check_there(text, source=asked.source)
    whole = parse(text, source=asked.source)
    found = list(_models(whole, is_trusted=asked.trusted))
    if not found:
        raise NotVllmError(
            f"{asked.source}: holds no LLMConfig of Ray Serve",
            hint="Known: llm_configs of an application whose import_path is of ray.serve.llm, "
            "model_loading_config with engine_kwargs, serveConfigV2 of a RayService. If a program "
            "of your own hands them to vLLM: --container NAME --force, on record.",
        )
    names = ", ".join(one.name for one in found)
    chosen = [one for one in found if asked.container in (None, one.name)]
    if len(chosen) != 1:
        problem = "which model?" if asked.container is None else f"no model {asked.container!r}"
        raise UsageError(f"{asked.source}: {problem}", hint=f"--container NAME, of {names}.")
    return RayServer(text, asked, whole, chosen[0])


def _models(whole: YamlFile, *, is_trusted: bool) -> Iterator[_Model]:
    for document in whole.roots:
        if text_at(document, "kind") == "RayService":
            spec = get(document, "spec")
            node = get(spec, _CONFIG)
            if isinstance(node, yaml.ScalarNode) and isinstance(spec, yaml.MappingNode):
                within = nested(whole, spec, node)
                for root in within.file.roots:
                    yield from _named(root, within.file, within, is_trusted=is_trusted)
        else:
            yield from _named(document, whole, None, is_trusted=is_trusted)


def _named(
    document: yaml.Node, file: YamlFile, within: Nested | None, *, is_trusted: bool
) -> Iterator[_Model]:
    for number, config in enumerate(_configs(document, is_trusted=is_trusted), start=1):
        if isinstance(config, yaml.ScalarNode):
            raise file.refuse(
                config,
                f"its LLMConfig is in the file {config.value[:80]}",
                hint=f"Apply the profile to that file: tuner apply PROFILE {config.value[:80]}",
            )
        if isinstance(config, yaml.MappingNode) and _is_vllm(config):
            name = text_at(config, _LOADING, "model_id") or str(number)
            yield _Model(name, config, file, within)


def _configs(document: yaml.Node, *, is_trusted: bool) -> Iterator[yaml.Node]:
    """Yield the LLMConfigs of a document for Ray Serve.

    Another program than Ray's may start anything with them, unless somebody says that it is vLLM.
    """
    if isinstance(get(document, _LOADING), yaml.MappingNode):
        yield document
    yield from items(get(document, "llm_configs"))
    for application in items(get(document, "applications")):
        if is_trusted or _BUILDERS.match(text_at(application, "import_path") or ""):
            yield from items(get(application, "args", "llm_configs"))


def _is_vllm(config: yaml.MappingNode) -> bool:
    engine = text_at(config, "llm_engine") or "vLLM"
    return engine.lower() == "vllm" and isinstance(entries(config).get(_LOADING), yaml.MappingNode)
