"""A Kubernetes manifest: Deployments, StatefulSets and whatever else has a pod template. Pure."""

from collections.abc import Iterator, Sequence

import yaml

from tuner.rollout.targets.kinds.container_target import ContainerFile
from tuner.rollout.targets.kinds.containers import Container
from tuner.rollout.targets.yaml.file import YamlFile
from tuner.rollout.targets.yaml.nodes import get, items, text_at

NAME = "kubernetes"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
START = "kubectl apply -f {file}"
ON_THIS_MACHINE = False

_TEMPLATED = ("DaemonSet", "Deployment", "Job", "ReplicaSet", "Rollout", "StatefulSet")
_PODS: dict[str, Sequence[tuple[str, ...]]] = {
    **{kind: [("template", "spec")] for kind in _TEMPLATED},
    "CronJob": [("jobTemplate", "spec", "template", "spec")],
    "LeaderWorkerSet": [
        ("leaderWorkerTemplate", f"{role}Template", "spec") for role in ("leader", "worker")
    ],
    "Pod": [()],
}
"""Where each kind of workload has its pods; Rollout is Argo's."""

KINDS = frozenset(_PODS)


def containers(file: YamlFile) -> Iterator[Container]:
    """Yield the containers of all workloads; init containers serve nothing."""
    for document in file.roots:
        yield from of_document(document)


def of_document(document: yaml.Node) -> Iterator[Container]:
    kind = text_at(document, "kind")
    if kind == "List":
        for item in items(get(document, "items")):
            yield from of_document(item)
    name = text_at(document, "metadata", "name") or kind or ""
    for path in _PODS.get(kind or "", ()):
        yield from of_pod(get(document, "spec", *path), name)


def of_pod(pod: yaml.Node | None, workload: str) -> Iterator[Container]:
    for number, node in enumerate(items(get(pod, "containers")), start=1):
        if isinstance(node, yaml.MappingNode):
            yield Container(workload, text_at(node, "name") or str(number), node, pod)


_FILE = ContainerFile(containers)
read, platform, write = _FILE.read, _FILE.platform, _FILE.write
