"""The kind of a file, as far as name and content tell. Pure."""

from pathlib import PurePath

import yaml

from tuner.errors import TargetError, UsageError
from tuner.rollout.targets.kinds import (
    compose,
    env,
    helm_llm_d,
    helm_production_stack,
    kserve,
    kubernetes,
    kustomize,
    systemd,
    vllm_config,
)
from tuner.rollout.targets.seam import Target
from tuner.rollout.targets.yaml.file import parse
from tuner.rollout.targets.yaml.nodes import entries, get, items, text_at


def detect(name: PurePath, text: str, *, source: str) -> Target:
    """Return the target for a file; a new YAML file is a config of vLLM's.

    Raises UsageError where it may be several, TargetError for a YAML file that cannot be read.
    """
    if name.suffix == ".service" or (name.suffix == ".conf" and name.parent.suffix == ".d"):
        return systemd
    if name.suffix == ".env" or name.name == ".env" or name.name.startswith(".env."):
        return env
    if not text or name.suffix not in vllm_config.SUFFIXES:
        return vllm_config
    documents = parse(text, source=source).roots
    found = [_of(document) for document in documents]
    kinds = {target.NAME: target for target in found if target is not None}
    if len(kinds) > 1 and kserve.NAME in kinds and kubernetes.NAME in kinds:
        del kinds[kubernetes.NAME]
    if len(kinds) > 1:
        raise UsageError(
            f"{source}: is of several kinds: {', '.join(sorted(kinds))}",
            hint="Say which one with --to.",
        )
    if not kinds and (len(found) > 1 or any(map(_is_not_vllms, documents))):
        several = f"holds {len(found)} documents" if len(found) > 1 else "is"
        raise TargetError(
            f"{source}: {several} of no known kind",
            hint="Say what it is with --to, or name another file.",
        )
    return next(iter(kinds.values()), vllm_config)


def _of(document: yaml.Node) -> Target | None:
    kind, version = text_at(document, "kind"), text_at(document, "apiVersion") or ""
    if isinstance(document, yaml.SequenceNode) or kustomize.is_kustomization(document):
        return kustomize
    if version.startswith("serving.kserve.io/"):
        return kserve if kind in kserve.KINDS else None
    if kind in kubernetes.KINDS or kind == "List":
        return kubernetes if _has_images(document) else kustomize
    return compose if get(document, "services") is not None else _of_values(document)


def _is_not_vllms(document: yaml.Node) -> bool:
    """Whether it says that it is something else: a manifest, or a file of Prometheus."""
    return any(get(document, key) is not None for key in ("apiVersion", "kind", "groups"))


def _of_values(document: yaml.Node) -> Target | None:
    for values in (document, *entries(document).values()):
        if get(values, "servingEngineSpec") is not None:
            return helm_production_stack
        if any(items(get(values, role, "containers")) for role in helm_llm_d.ROLES):
            return helm_llm_d
    return None


def _has_images(document: yaml.Node) -> bool:
    """Whether it is a whole workload: a patch for one says nothing of the image."""
    containers = list(kubernetes.of_document(document))
    whole = [one for one in containers if get(one.node, "image") is not None]
    return bool(whole) or not containers
