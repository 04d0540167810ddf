"""Engine arguments as the keys of a mapping, with YAML's own types. Pure."""

from dataclasses import dataclass

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.flags import canonical
from tuner.engines.vllm.values import same, typed
from tuner.errors import TargetError
from tuner.rollout.targets.command_line.flags import comparable
from tuner.rollout.targets.seam import Arguments, Stated
from tuner.rollout.targets.yaml.file import YamlFile
from tuner.rollout.targets.yaml.nodes import entries, line_of, refuse_filled_in
from tuner.system import yaml_strict


@dataclass(frozen=True, slots=True)
class ArgumentMapping:
    """The mapping ``key`` of ``parent``; there may be none yet."""

    file: YamlFile
    parent: yaml.MappingNode
    key: str

    @property
    def node(self) -> yaml.MappingNode | None:
        """The mapping's node; None: there is none yet. Raises TargetError for anything else."""
        found = entries(self.parent).get(self.key)
        if found is None or isinstance(found, yaml.MappingNode):
            return found
        raise self.file.refuse(
            found, f"{self.key} is no mapping", hint="Write its keys below it, or remove it."
        )

    def stated(self) -> dict[str, Stated]:
        """Return the arguments by vLLM's names. Raises TargetError."""
        found: dict[str, Stated] = {}
        for name, node in entries(self.node).items():
            value = yaml_strict.construct(node, source=self.file.source, error=TargetError)
            argument, negated = canonical(name)
            if value is not None and not negated:
                found[argument] = Stated(_plain(value), line_of(node))
        return found

    def ask(self, arguments: Arguments) -> None:
        """Ask for the edits. Raises TargetError."""
        node = self.node
        if node is None or not node.value:
            wanted: dict[str, object] = {
                name: value for name, value in arguments.items() if value is not None
            }
            if node is None:
                self.file.add_key(self.parent, self.key, wanted)
                return
            for name, one in wanted.items():
                self.file.add_key(node, name, one)
            return
        present = {canonical(key.value)[0]: (key, value) for key, value in node.value}
        stated = self.stated()
        hyphens = any("-" in key.value for key, _ in node.value)
        for name, value in arguments.items():
            if name not in present:
                if value is not None:
                    self.file.add_key(node, name.replace("_", "-") if hyphens else name, value)
                continue
            key, there = present[name]
            found = stated[name].value if name in stated else None
            if same(comparable(found, value), value):
                continue
            refuse_filled_in(there, name, source=self.file.source)
            if value is None:
                self.file.remove_key(node, key.value)
            else:
                self.file.set(there, value, key=key)


def _plain(value: object) -> ArgumentValue:
    if isinstance(value, str):
        return typed(value)
    if isinstance(value, bool | int | float | list | dict):
        return value
    return str(value)
