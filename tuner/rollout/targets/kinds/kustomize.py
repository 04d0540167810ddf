"""A Kustomize patch: a strategic merge patch or a JSON 6902 patch. Pure.

Either replaces a container's whole list of arguments; so one that has no list yet gets none.
"""

from collections.abc import Iterator
from dataclasses import replace

import yaml

from tuner.errors import TargetError
from tuner.rollout.targets.kinds import kubernetes
from tuner.rollout.targets.kinds.container_target import ContainerFile
from tuner.rollout.targets.kinds.containers import KUBERNETES, Container
from tuner.rollout.targets.yaml.file import YamlFile
from tuner.rollout.targets.yaml.nodes import get, items, text_at

NAME = "kustomize"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
START = "kubectl apply -k DIRECTORY"
ON_THIS_MACHINE = False

_AS_ARGS = KUBERNETES.with_keys(command="", args="value", environment="")
_AS_COMMAND = KUBERNETES.with_keys(command="value", args="", environment="")


def is_kustomization(document: yaml.Node) -> bool:
    keys = ("patches", "patchesStrategicMerge", "patchesJson6902", "resources")
    is_one = text_at(document, "kind") == "Kustomization"
    return is_one or (get(document, "kind") is None and any(get(document, key) for key in keys))


def containers(file: YamlFile) -> Iterator[Container]:
    for document in file.roots:
        if is_kustomization(document):
            paths = [text_at(one, "path") for one in items(get(document, "patches"))]
            named = ", ".join(path for path in paths if path)
            raise TargetError(
                f"{file.place(document)}: is a kustomization, and the arguments are in its patches",
                hint=f"Apply the profile to the patch: {named or 'give it a file of its own'}.",
            )
        for operation in items(document):
            yield from _of_operation(file, operation)
    for one in kubernetes.containers(file):
        yield replace(one, replaces=True)


def _of_operation(file: YamlFile, operation: yaml.Node) -> Iterator[Container]:
    path = text_at(operation, "path") or ""
    if not isinstance(operation, yaml.MappingNode) or "/containers/" not in path:
        return
    name, _, key = path.rpartition("/")
    if key in ("args", "command") and text_at(operation, "op") in ("add", "replace"):
        spelling = _AS_ARGS if key == "args" else _AS_COMMAND
        yield Container("", name.rpartition("/spec/")[2], operation, spelling=spelling)
    elif "/args" in path or "/command" in path:
        raise TargetError(
            f"{file.place(operation)}: {path} changes a single argument",
            hint="Write one operation that replaces the whole list.",
        )


_FILE = ContainerFile(containers)
read, platform, write = _FILE.read, _FILE.platform, _FILE.write
