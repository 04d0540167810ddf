"""Rollout targets: one module each, and this registry.

A target is a module that offers what ``server.Target`` asks for. To add one, write its file, name
it in TARGETS, of which the first is the default, and let ``detect`` recognise it.
"""

from collections.abc import Sequence

from tuner.errors import UsageError
from tuner.rollout.targets.kinds import (
    compose,
    configmap,
    env,
    helm_llm_d,
    helm_production_stack,
    helm_values,
    kserve,
    kubernetes,
    kustomize,
    quadlet,
    ray_serve,
    systemd,
    vllm_config,
)
from tuner.rollout.targets.server import Target

TARGETS: tuple[Target, ...] = (
    vllm_config,
    compose,
    kubernetes,
    kustomize,
    kserve,
    ray_serve,
    configmap,
    helm_production_stack,
    helm_llm_d,
    helm_values,
    systemd,
    quadlet,
    env,
)


def named(name: str, *, also: Sequence[str] = ()) -> Target:
    """Return the target of this name. Raises UsageError with all names, and those of ``also``."""
    for target in TARGETS:
        if name == target.NAME:
            return target
    raise UsageError(
        f"no rollout target {name!r}",
        hint=f"Known: {', '.join([*(target.NAME for target in TARGETS), *also])}.",
    )
