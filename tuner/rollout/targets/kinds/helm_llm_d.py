"""Values of llm-d's Helm chart llm-d-modelservice (0.4). Pure.

The chart writes model, port, served name and sizes of parallelism itself, in front of ``args``.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import yaml

from tuner.rollout.targets import images
from tuner.rollout.targets.kinds.container_target import ContainerFile
from tuner.rollout.targets.kinds.containers import KUBERNETES, Container
from tuner.rollout.targets.kinds.workloads import of_pod
from tuner.rollout.targets.seam import Asked, Rollout, Stated
from tuner.rollout.targets.yaml.file import YamlFile
from tuner.rollout.targets.yaml.nodes import entries, get, line_of, text_at

NAME = "helm-llm-d"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
ON_THIS_MACHINE = False

ROLES = ("decode", "prefill")
_OF_CHART = KUBERNETES.with_keys(command="", args="args", environment="env")
"""Where ``modelCommand`` is vllmServe or imageDefault, the chart does not look at ``command``."""

_NAME = re.compile(r"\"?\{\{-?\s*\.Values\.modelArtifacts\.name\s*-?\}\}\"?")


def containers(file: YamlFile, asked: Asked) -> Iterator[Container]:
    del asked
    for document in file.roots:
        for values in (document, *entries(document).values()):  # of the chart, or of one around it
            for role in ROLES:
                yield from _of_role(values, role)


def _of_role(values: yaml.Node, role: str) -> Iterator[Container]:
    section = get(values, role)
    for one in of_pod(section, role):
        mode = text_at(one.node, "modelCommand") or "custom"
        if mode == "custom":
            yield one
        else:
            is_vllm = mode == "vllmServe" and images.may_have_vllm(one.image)
            known = "modelCommand vllmServe" if is_vllm else None
            yield replace(
                one,
                spelling=_OF_CHART,
                elsewhere=_model(values) | _parallelism(section, one.node),
                evidence=known or images.entrypoint(one.image) or "",
            )


def _model(values: yaml.Node) -> dict[str, Stated]:
    name, uri = get(values, "modelArtifacts", "name"), get(values, "modelArtifacts", "uri")
    if not isinstance(uri, yaml.ScalarNode):
        return {}
    named = name.value if isinstance(name, yaml.ScalarNode) else ""
    model = _NAME.sub(lambda _: named, uri.value)
    return {"model": Stated(model.removeprefix("hf://"), line_of(uri))}


def _parallelism(section: yaml.Node | None, near: yaml.Node) -> dict[str, Stated]:
    size = get(section, "parallelism", "tensor")
    if isinstance(size, yaml.ScalarNode) and size.value.isdecimal():
        return {"tensor_parallel_size": Stated(int(size.value), line_of(size))}
    return {"tensor_parallel_size": Stated(1, line_of(near))}


_FILE = ContainerFile(
    containers,
    lambda _: Rollout(
        "helm upgrade RELEASE llm-d-modelservice/llm-d-modelservice -f {file}",
        "helm rollback RELEASE",
    ),
)
opened = _FILE.opened
