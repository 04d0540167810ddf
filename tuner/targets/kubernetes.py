"""A Kubernetes manifest: Deployments, StatefulSets and whatever else has a pod template. Pure."""

from collections.abc import Iterator, Mapping

import yaml

from tuner.engines.seam import ArgumentValue
from tuner.targets import container_target
from tuner.targets.containers import Container
from tuner.targets.seam import Platform, Stated
from tuner.targets.yaml_file import YamlFile
from tuner.targets.yaml_nodes import get, items, text_at

NAME = "kubernetes"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
START = "kubectl apply -f {file}"
ON_THIS_MACHINE = False

KINDS = frozenset({"DaemonSet", "Deployment", "Job", "Pod", "ReplicaSet", "StatefulSet"})


def containers(file: YamlFile) -> Iterator[Container]:
    """Yield the containers of all workloads; init containers serve nothing."""
    for document in file.roots:
        yield from _of(document)


def _of(document: yaml.Node) -> Iterator[Container]:
    kind = text_at(document, "kind")
    if kind == "List":
        for item in items(get(document, "items")):
            yield from _of(item)
    if kind in KINDS:
        pod = get(document, "spec") if kind == "Pod" else get(document, "spec", "template", "spec")
        name = text_at(document, "metadata", "name") or kind
        yield from of_pod(pod, name)


def of_pod(pod: yaml.Node | None, workload: str) -> Iterator[Container]:
    for number, node in enumerate(items(get(pod, "containers")), start=1):
        if isinstance(node, yaml.MappingNode):
            yield Container(workload, text_at(node, "name") or str(number), node, pod)


def read(text: str, *, source: str, container: str | None = None) -> dict[str, Stated]:
    return container_target.read(text, containers, source=source, container=container)


def platform(text: str, *, source: str, container: str | None = None) -> Platform:
    return container_target.platform(text, containers, source=source, container=container)


def write(
    text: str,
    arguments: Mapping[str, ArgumentValue],
    *,
    source: str,
    container: str | None = None,
) -> str:
    return container_target.write(text, arguments, containers, source=source, container=container)
