"""A Kubernetes manifest: Deployments, StatefulSets and whatever else has a pod template. Pure."""

import shlex
from collections.abc import Iterator

from tuner.rollout.targets.kinds import kustomize_tree, workloads
from tuner.rollout.targets.kinds.container_target import ContainerFile, ContainerServer
from tuner.rollout.targets.kinds.containers import Container
from tuner.rollout.targets.seam import Asked, Rollout
from tuner.rollout.targets.yaml.file import YamlFile
from tuner.rollout.targets.yaml.nodes import text_at

NAME = "kubernetes"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml", ".json")
ON_THIS_MACHINE = False

_RESTARTED = {"DaemonSet": "daemonset", "Deployment": "deployment", "StatefulSet": "statefulset"}
"""Kinds of workload that ``kubectl rollout`` knows → its names for them."""


def containers(file: YamlFile, asked: Asked) -> Iterator[Container]:
    """Yield the containers of all workloads; init containers serve nothing."""
    del asked
    for document in file.roots:
        yield from workloads.of_document(document)


def rollout(server: ContainerServer) -> Rollout:
    return Rollout("kubectl apply -f {file}", undo(server))


def undo(server: ContainerServer) -> str:
    """Return what takes a workload back to its last revision; empty where nothing does."""
    document = server.one.document
    kind = _RESTARTED.get(text_at(document, "kind") or "")
    name = text_at(document, "metadata", "name")
    if not kind or not name:
        return ""
    namespace = text_at(document, "metadata", "namespace")
    there = f" -n {shlex.quote(namespace)}" if namespace else ""
    return f"kubectl rollout undo {kind}/{shlex.quote(name)}{there}"


_FILE = ContainerFile(
    containers, rollout, lambda server: [*kustomize_tree.overruled(server.asked, server.one)]
)
opened = _FILE.opened
