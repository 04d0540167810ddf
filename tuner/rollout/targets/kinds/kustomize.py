"""A Kustomize patch: a strategic merge patch or a JSON 6902 patch. Pure.

Either replaces a container's whole list of arguments; so one that has no list yet gets none.
"""

import json
import posixpath
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

import yaml

from tuner.errors import ByHandError, TargetError
from tuner.rollout.targets import images
from tuner.rollout.targets.command_line.flags import find
from tuner.rollout.targets.command_line.names import proof
from tuner.rollout.targets.command_line.process import server
from tuner.rollout.targets.kinds import kubernetes, kustomize_tree
from tuner.rollout.targets.kinds.container_command import command_line
from tuner.rollout.targets.kinds.container_target import ContainerFile, ContainerServer
from tuner.rollout.targets.kinds.containers import KUBERNETES, Container, environment, lists
from tuner.rollout.targets.seam import Asked, Rollout
from tuner.rollout.targets.yaml.file import YamlFile
from tuner.rollout.targets.yaml.nodes import get, items, text_at

NAME = "kustomize"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml", ".json")
ON_THIS_MACHINE = False

_AS_COMMAND = KUBERNETES.with_keys(command="value", args="", environment="")
_LISTS = ("patches", "patchesStrategicMerge", "patchesJson6902", "resources", "bases", "components")


def is_kustomization(document: yaml.Node) -> bool:
    """Whether a document names what a set of manifests is made of."""
    if text_at(document, "kind") in ("Kustomization", "Component"):
        return True
    named = [get(document, key) for key in _LISTS]
    return get(document, "kind") is None and any(
        isinstance(one, yaml.SequenceNode) and _is_of_kustomize(one) for one in named
    )


def _is_of_kustomize(listed: yaml.SequenceNode) -> bool:
    """Whether a list is one of paths, or of patches; other files have ``resources:``, too."""
    return all(
        isinstance(item, yaml.ScalarNode) or get(item, "path") or get(item, "patch")
        for item in listed.value
    )


def containers(file: YamlFile, asked: Asked) -> Iterator[Container]:
    """Yield the containers of a patch. Raises TargetError for a kustomization, which has none."""
    for document in file.roots:
        if is_kustomization(document):
            paths = [text_at(one, "path") for one in items(get(document, "patches"))]
            named = ", ".join(path for path in paths if path)
            raise TargetError(
                f"{file.place(document)}: is a kustomization, and the arguments are in its patches",
                hint=f"Apply the profile to the patch: {named or 'give it a file of its own'}.",
            )
        for operation in items(document):
            yield from _of_operation(file, operation, asked)
    for one in kubernetes.containers(file, asked):
        base = _base_of(one, asked)
        yield _with_evidence(file, replace(one, replaces=True), base)


def _of_operation(file: YamlFile, operation: yaml.Node, asked: Asked) -> Iterator[Container]:
    path = text_at(operation, "path") or ""
    if not isinstance(operation, yaml.MappingNode) or "/containers/" not in path:
        return
    name, _, key = path.rpartition("/")
    if key in ("args", "command") and text_at(operation, "op") in ("add", "replace"):
        spelling = kustomize_tree.AS_ARGS if key == "args" else _AS_COMMAND
        found = Container("", name.rpartition("/spec/")[2], operation, spelling=spelling)
        yield _with_evidence(file, found, _base_of(found, asked))
    elif "/args" in path or "/command" in path:
        raise ByHandError(
            f"{file.place(operation)}: {path} changes a single argument",
            hint="Write one operation that replaces the whole list, or add behind it:",
            paste=lambda words: _operations(
                name.partition("/args")[0].partition("/command")[0], words
            ),
        )


def _operations(container: str, words: Sequence[str]) -> str:
    """Return the JSON 6902 operations that add flags behind a container's arguments."""
    added = [{"op": "add", "path": f"{container}/args/-", "value": word} for word in words]
    return json.dumps(added)


def _base_of(one: Container, asked: Asked) -> Container | None:
    """Return the container that the patch is put into, where the base is beside it."""
    name = posixpath.basename(asked.source)
    for patch, base in kustomize_tree.bases(name, asked):
        if get(one.node, "op") is not None:
            wanted = text_at(patch.target, "kind"), text_at(patch.target, "name")
            kind, called = text_at(base.document, "kind"), base.workload
            path = text_at(one.node, "path") or ""
            if wanted in {(kind, called), (kind, None), (None, called)} and kustomize_tree.index_in(
                path
            ) == kustomize_tree.index(base):
                return base
        elif (
            text_at(base.document, "kind") == text_at(one.document, "kind")
            and base.name == one.name
            and one.workload in (base.workload, text_at(one.document, "kind"))
        ):
            return base
    return None


def _with_evidence(file: YamlFile, one: Container, base: Container | None) -> Container:
    """Return the container with what its base and its words say of whether it is vLLM."""
    _refuse_without_list(file, one, base)
    tokens = [token for part in lists(file, one, environment(file, one)) for token in part.tokens]
    if server([token.text for token in tokens]) is not None or _has_command(one):
        return one
    if one.image and (base is None or not _has_command(base)):
        return replace(one, evidence=images.entrypoint(one.image) or "")
    if base is None:
        named = [flag.argument for flag in find(tokens)]
        return replace(one, evidence=f"its flag {why}" if (why := proof(named)) else "")
    try:
        inner = YamlFile(file.edits, [])  # the base is only read
        line = command_line(inner, base)
    except TargetError:
        return one
    stated = line.stated()
    elsewhere = {"model": stated["model"]} if "model" in stated and _has_command(base) else {}
    return replace(one, evidence=f"{line.evidence} in the base", elsewhere=elsewhere)


def _has_command(one: Container) -> bool:
    key = one.spelling.command
    return bool(key) and get(one.node, key) is not None


def _refuse_without_list(file: YamlFile, one: Container, base: Container | None) -> None:
    """Refuse a patch that has no list for its container. Raises ByHandError."""
    if get(one.node, "op") is not None or get(one.node, "args") or get(one.node, "command"):
        return
    if (
        base is None
        and not images.entrypoint(one.image)
        and len(items(get(one.pod, "containers"))) > 1
    ):
        return
    number = None if base is None else kustomize_tree.index(base)
    path = f"/spec/template/spec/containers/{number or 0}"
    whole = " (--to kubernetes, if it is no patch but a whole workload)" if one.image else ""
    raise ByHandError(
        f"{file.place(one.node)}: {one.full_name} has no args here, and a list written here "
        "replaces the whole one of the base",
        hint=f"Add to that one by a JSON 6902 patch in the kustomization{whole}:",
        paste=lambda words: _operations(path, words),
    )


def _rollout(server: ContainerServer) -> Rollout:
    folder = kustomize_tree.folder_that_patches_with(server.asked)
    place = "FOLDER" if folder is None else shlex.quote(folder)
    return Rollout(f"kubectl apply -k {place}", kubernetes.undo(server))


_FILE = ContainerFile(containers, _rollout)
opened = _FILE.opened
