"""Workloads of Kubernetes, and the containers in their pods. Pure."""

from collections.abc import Iterator, Sequence

import yaml

from tuner.rollout.targets.kinds.containers import Container
from tuner.rollout.targets.yaml.nodes import get, items, text_at

_SELECTING = ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
"""Of the API group apps: without a selector it is no whole one, and the server refuses it."""

_TEMPLATED = (*_SELECTING, "CloneSet", "Job", "Rollout", "Service")
_PODS: dict[str, Sequence[tuple[str, ...]]] = {
    **{kind: [("template", "spec")] for kind in _TEMPLATED},
    "CronJob": [("jobTemplate", "spec", "template", "spec")],
    "LeaderWorkerSet": [
        ("leaderWorkerTemplate", f"{role}Template", "spec") for role in ("leader", "worker")
    ],
    "Pod": [()],
}
"""Kind of workload → the places of its pods: Rollout is Argo's, Service Knative's, CloneSet of
OpenKruise."""


def is_workload(document: yaml.Node) -> bool:
    """Whether a document is of a kind that has pods."""
    kind, version = text_at(document, "kind") or "", text_at(document, "apiVersion") or ""
    return kind in _PODS and (kind != "Service" or version.startswith("serving.knative.dev/"))


def is_patch(document: yaml.Node) -> bool:
    """Whether it is a part of a workload, for Kustomize to put into a whole one."""
    kind, version = text_at(document, "kind") or "", text_at(document, "apiVersion") or "apps/v1"
    containers = list(of_document(document))
    no_image = bool(containers) and not any(get(one.node, "image") for one in containers)
    selects = kind in _SELECTING and version.startswith("apps/")
    return no_image or (selects and get(document, "spec", "selector") is None)


def of_document(document: yaml.Node) -> Iterator[Container]:
    kind = text_at(document, "kind")
    if kind == "List":
        for item in items(get(document, "items")):
            yield from of_document(item)
    if is_workload(document):
        name = text_at(document, "metadata", "name") or kind or ""
        for path in _PODS.get(kind or "", ()):
            yield from of_pod(get(document, "spec", *path), name, document)


def of_pod(
    pod: yaml.Node | None, workload: str, document: yaml.Node | None = None
) -> Iterator[Container]:
    for number, node in enumerate(items(get(pod, "containers")), start=1):
        if isinstance(node, yaml.MappingNode):
            name = text_at(node, "name") or str(number)
            yield Container(workload, name, node, pod, document=document)
