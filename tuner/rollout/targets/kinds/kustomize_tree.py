"""Kustomize's files beside one: the base of a patch, and the patches of a base. Pure.

A kustomization names what it is made of by paths. All of these are read from where the edited file
is; what is not there, such as a base in another repository, is not known.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from tuner.errors import TargetError
from tuner.rollout.targets.kinds import workloads
from tuner.rollout.targets.kinds.container_command import command_line
from tuner.rollout.targets.kinds.containers import KUBERNETES, Container
from tuner.rollout.targets.seam import Asked, Overruled, Stated
from tuner.rollout.targets.yaml.file import YamlFile, parse
from tuner.rollout.targets.yaml.nodes import get, items, line_of, text_at

_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_ABOVE = (".", "..", "../..")
"""Folders whose kustomization may well be the one that is applied."""

_NEAR = ("", "../", "../../", "../*/", "../../*/", "../*/*/", "*/", "*/*/")
AS_ARGS = KUBERNETES.with_keys(command="", args="value", environment="")
"""A JSON 6902 operation, taken for a container."""

_MOST_STEPS = 8
"""From an overlay to the base of its base."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch, and where a kustomization has it."""

    path: str
    """Of the file that it stands in."""

    file: YamlFile
    first_line: int
    """Of the patch within that file, counted from 0."""

    target: yaml.Node | None
    """Which workloads a list of operations changes."""

    folder: str
    """Of the kustomization."""


def kustomizations(asked: Asked) -> Iterator[tuple[str, YamlFile]]:
    """Yield the folders of the kustomizations near the file, and these; each folder once."""
    seen = set[str]()
    for pattern in _NEAR:
        for name in _NAMES:
            for path in asked.beside.names(pattern + name):
                folder = asked.beside.shortest(posixpath.dirname(path))
                if folder not in seen and (found := _read(path, asked)) is not None:
                    seen.add(folder)
                    yield folder, found


def _read(path: str, asked: Asked) -> YamlFile | None:
    text = asked.beside.text(path)
    return None if text is None else _parsed(text, where(path, asked))


def where(path: str, asked: Asked) -> str:
    """Return a path beside the file as whoever asks would write it."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(asked.source), path))


def members(folder: str, file: YamlFile, asked: Asked, steps: int = _MOST_STEPS) -> Iterator[str]:
    """Yield the files that a kustomization is made of, by their paths from the edited file."""
    for root in file.roots:
        for key in ("resources", "bases", "components"):
            for item in items(get(root, key)):
                if isinstance(item, yaml.ScalarNode) and "://" not in item.value:
                    path = asked.beside.shortest(posixpath.join(folder, item.value))
                    yield from _members_at(path, asked, steps)


def _members_at(path: str, asked: Asked, steps: int) -> Iterator[str]:
    if path.endswith((".yaml", ".yml", ".json")):
        yield path
        return
    for name in _NAMES if steps else ():
        if (inner := _read(posixpath.join(path, name), asked)) is not None:
            yield from members(path, inner, asked, steps - 1)


def patches(folder: str, file: YamlFile, asked: Asked) -> Iterator[Patch]:
    """Yield the patches of a kustomization, from files and written out in it."""
    for root in file.roots:
        for key in ("patches", "patchesStrategicMerge", "patchesJson6902"):
            for item in items(get(root, key)):
                target, inline = get(item, "target"), get(item, "patch")
                path = item.value if isinstance(item, yaml.ScalarNode) else text_at(item, "path")
                if isinstance(inline, yaml.ScalarNode):
                    text, line = inline.value, line_of(inline)
                    written_out = _parsed(text, file.source)
                    if written_out is not None:
                        yield Patch(file.source, written_out, line, target, folder)
                elif path is not None and "\n" not in path:
                    path = asked.beside.shortest(posixpath.join(folder, path))
                    if (found := _read(path, asked)) is not None:
                        yield Patch(found.source, found, 0, target, folder)


def _parsed(text: str, source: str) -> YamlFile | None:
    try:
        return parse(text, source=source, tabs=True)
    except TargetError:
        return None


def targets_of(patch: Patch) -> Iterator[tuple[yaml.Node, yaml.Node, str]]:
    """Yield what a patch puts into containers: what says which, the value, and its key.

    What says which is the container as the patch has it, or the operation.
    """
    for root in patch.file.roots:
        for one in workloads.of_document(root):
            for key in ("command", "args"):
                if (value := get(one.node, key)) is not None:
                    yield one.node, value, key
        for operation in items(root):
            path = text_at(operation, "path") or ""
            for key in ("command", "args"):
                if f"/{key}" in path and (value := get(operation, "value")) is not None:
                    yield operation, value, key


def is_for(patch: Patch, said: yaml.Node, one: Container) -> bool:
    """Whether what a patch says of a container is said of this one."""
    workload = one.document
    kind, name = text_at(workload, "kind"), text_at(workload, "metadata", "name")
    if (path := text_at(said, "path")) is not None and get(said, "op") is not None:
        wanted = text_at(patch.target, "kind"), text_at(patch.target, "name")
        return wanted in {(kind, name), (kind, None), (None, name)} and index_in(path) == index(one)
    for root in patch.file.roots:
        for other in workloads.of_document(root):
            if other.node is said:
                same = text_at(root, "kind") == kind
                names = {text_at(root, "metadata", "name"), text_at(patch.target, "name")}
                return same and name in names and other.name == one.name
    return False


def index_in(path: str) -> int | None:
    """Return the number of the container in a path such as ``/spec/…/containers/0/args``."""
    number = path.partition("/containers/")[2].partition("/")[0]
    return int(number) if number.isdecimal() else None


def index(one: Container) -> int | None:
    """Return the number of a container in its pod."""
    listed = items(get(one.pod, "containers"))
    return next((n for n, node in enumerate(listed) if node is one.node), None)


def folder_that_patches_with(asked: Asked) -> str | None:
    """Return the folder of the first kustomization that names the file as a patch."""
    own = where(posixpath.basename(asked.source), asked)
    for folder, file in kustomizations(asked):
        if any(patch.path == own for patch in patches(folder, file, asked)):
            return where(folder, asked)
    return None


def is_resource(asked: Asked) -> bool:
    """Whether a kustomization near the file names it as a whole manifest."""
    own = posixpath.basename(asked.source)
    return any(own in members(folder, file, asked) for folder, file in kustomizations(asked))


def bases(patch_path: str, asked: Asked) -> Iterator[tuple[Patch, Container]]:
    """Yield the containers that a patch may be put into, by the kustomizations that name it."""
    for folder, file in kustomizations(asked):
        for patch in patches(folder, file, asked):
            if patch.path != where(patch_path, asked):
                continue
            for path in members(folder, file, asked):
                base = _read(path, asked)
                for root in base.roots if base is not None else ():
                    for one in workloads.of_document(root):
                        yield patch, one


def overruled(asked: Asked, one: Container) -> Iterator[Overruled]:
    """Yield the patches that decide after a manifest, of the kustomizations near it."""
    own = posixpath.basename(asked.source)
    for folder, file in kustomizations(asked):
        if own not in members(folder, file, asked):
            continue
        for patch in patches(folder, file, asked):
            for said, value, key in targets_of(patch):
                if is_for(patch, said, one):
                    line = patch.first_line + line_of(value)
                    yield Overruled(
                        patch.path,
                        line,
                        f"replaces {key}",
                        _stated(patch.file, value),
                        always=folder in _ABOVE,
                    )


def _stated(file: YamlFile, value: yaml.Node) -> dict[str, Stated]:
    if not isinstance(value, yaml.SequenceNode):
        return {}
    node = yaml.MappingNode("", [(yaml.ScalarNode("", "value"), value)])
    one = Container("", "", node, spelling=AS_ARGS)
    try:
        return command_line(file, one, is_trusted=True).stated()
    except TargetError:
        return {}
