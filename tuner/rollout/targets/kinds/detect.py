"""The kind of a file, as far as name and content tell. Pure."""

from collections.abc import Callable
from pathlib import PurePath

import yaml

from tuner.errors import NotVllmError, UsageError
from tuner.rollout.targets.kinds import (
    by_hand,
    compose,
    configmap,
    env,
    helm_llm_d,
    helm_production_stack,
    helm_values,
    kserve,
    kubernetes,
    kustomize,
    kustomize_tree,
    quadlet,
    ray_serve,
    systemd,
    vllm_config,
    workloads,
)
from tuner.rollout.targets.seam import Asked
from tuner.rollout.targets.server import Server, Target
from tuner.rollout.targets.yaml.file import YamlFile, parse
from tuner.rollout.targets.yaml.nodes import entries, get, items, text_at

_YAML = (".yaml", ".yml", ".json")


def detect(name: PurePath, text: str, asked: Asked) -> Target:
    """Return the target for a file; a new YAML file is a config of vLLM's.

    Raises UsageError where it may be several, ByHandError for what starts vLLM and is not edited,
    TargetError for a YAML file that cannot be read.
    """
    if (found := _by_name(name)) is not None:
        return found
    if by_hand.is_script(name, text):
        by_hand.refuse_script(text, source=asked.source)
    if asked.at is not None:
        return helm_values
    if name.suffix not in _YAML:
        if not text:
            return vllm_config
        raise by_hand.refuse_name(name, source=asked.source)
    if not text:
        return vllm_config
    return _of_yaml(parse(text, source=asked.source, tabs=True), asked)


def _by_name(name: PurePath) -> Target | None:
    if name.suffix == ".service" or (name.suffix == ".conf" and name.parent.suffix == ".d"):
        return systemd
    if name.suffix == ".container":
        return quadlet
    if name.suffix == ".env" or name.name == ".env" or name.name.startswith(".env."):
        return env
    return None


def _of_yaml(file: YamlFile, asked: Asked) -> Target:
    found = [_of(document, file, asked) for document in file.roots]
    kinds = {target.NAME: target for target in found if target is not None}
    if kserve.NAME in kinds:
        kinds.pop(kubernetes.NAME, None)
    if configmap.NAME in kinds and kubernetes.NAME in kinds:
        del kinds[configmap.NAME if _has_own_flags(file, asked) else kubernetes.NAME]
    if len(kinds) > 1:
        raise UsageError(
            f"{file.source}: is of several kinds: {', '.join(sorted(kinds))}",
            hint="Say which one with --to.",
        )
    if kinds:
        return next(iter(kinds.values()))
    for document in file.roots:
        by_hand.refuse_product(document, place=file.place(document))
    _refuse_other(file)
    return vllm_config


def _of(  # noqa: PLR0911 - one a kind
    document: yaml.Node, file: YamlFile, asked: Asked
) -> Target | None:
    kind, version = text_at(document, "kind"), text_at(document, "apiVersion") or ""
    if _is_operations(document) or kustomize.is_kustomization(document):
        return kustomize
    if version.startswith("serving.kserve.io/"):
        return kserve if kind in kserve.KINDS else None
    if ray_serve.is_one(document):
        return ray_serve
    if kind == "ConfigMap" and configmap.holds_config(YamlFile(file.edits, [document])):
        return configmap
    if workloads.is_workload(document) or (kind == "List" and items(get(document, "items"))):
        is_part = workloads.is_patch(document) and not kustomize_tree.is_resource(asked)
        return kustomize if is_part else kubernetes
    if isinstance(get(document, "services"), yaml.MappingNode) and not version:
        return compose
    return None if version else _of_values(document)


def _is_operations(document: yaml.Node) -> bool:
    listed = document.value if isinstance(document, yaml.SequenceNode) else []
    return bool(listed) and all(get(one, "op") is not None for one in listed)


def _of_values(document: yaml.Node) -> Target | None:
    for values in (document, *entries(document).values()):
        if get(values, "servingEngineSpec") is not None:
            return helm_production_stack
        if any(items(get(values, role, "containers")) for role in helm_llm_d.ROLES):
            return helm_llm_d
    return helm_values if helm_values.is_of_vllms_chart(document) else None


def _has_own_flags(file: YamlFile, asked: Asked) -> bool:
    """Whether a workload beside a ConfigMap has the flags itself, and no ``--config``."""
    server = _opened(lambda: kubernetes.opened(file.edits.text, asked))
    return server is not None and "config" not in server.stated


def _opened(open_: Callable[[], Server]) -> Server | None:
    try:
        return open_()
    except (NotVllmError, UsageError):
        return None


def _refuse_other(file: YamlFile) -> None:
    """Refuse what says of itself that it is something else. Raises NotVllmError."""
    for document in file.roots:
        kind, version = text_at(document, "kind"), text_at(document, "apiVersion")
        if version is not None or kind is not None:
            what = f"a {kind or 'document'} of {version or 'nothing known'}"
            raise NotVllmError(
                f"{file.place(document)}: is {what[:120]}, which starts no vLLM that is known",
                hint="Name the file with the server's command, or what it is with --to.",
            )
        if isinstance(document, yaml.MappingNode):
            paths = helm_values.paths_with_arguments(document)
            own = entries(document)
            if paths and not any(path in own for path in paths):
                raise NotVllmError(
                    f"{file.source}: is of no known kind, and holds vLLM's arguments at {paths[0]}",
                    hint="If these are the values of a chart, say where: --at "
                    + " or --at ".join(paths[:5]),
                )
    if len(file.roots) > 1:
        raise NotVllmError(
            f"{file.source}: holds {len(file.roots)} documents of no known kind",
            hint="Say what it is with --to, or name another file.",
        )
