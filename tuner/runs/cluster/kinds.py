"""The kinds of a cluster's nodes: only nodes of one kind are compared with each other."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import tuner
from tuner.engines import devices, provenance
from tuner.engines.models import shipped as models
from tuner.engines.seam import ArgumentValue

PER_NODE = ("count",)
"""Facts in which nodes of one kind may differ: of GPUs an engine takes as many as it needs."""


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a node, or of the share of it that a worker has."""

    device: Mapping[str, ArgumentValue]
    versions: Mapping[str, str]
    ray: str
    code: str
    """Digest of tuner's own modules there: versions of a checkout are all called alike."""

    model_digest: str | None = None
    """Of the files of the model that were asked for; None of one on a hub, and where none was."""


def describe_here() -> Description:
    """Return what this process has of its node."""
    return Description(devices.device_facts(), provenance.versions(), version("ray"), code_digest())


def describe_node(model: str | None = None) -> Description:
    """Return what a node is, and what files of a model are there. Called on it, in a process of its
    own."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides all from who takes none
    found = describe_here()
    if model is None:
        return found
    return replace(found, model_digest=provenance.model_digest(models.model_path(model)))


@cache
def code_digest() -> str:
    """Return a digest of the modules of this tuner."""
    folder = Path(tuner.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def difference(one: Description, other: Description) -> str | None:
    """Return the first thing in which the second is another than the first; None when alike."""
    pairs: list[tuple[str, object, object]] = [("Ray", one.ray, other.ray)]
    for mine, theirs in ((one.versions, other.versions), (one.device, other.device)):
        keys = sorted(mine.keys() | theirs.keys())
        pairs += [(key, mine.get(key), theirs.get(key)) for key in keys]
    pairs.append(("tuner's code", one.code, other.code))
    for name, was, is_ in pairs:
        if was != is_:
            return f"{name} is {is_}, not {was}"
    return None


def node_difference(one: Description, other: Description) -> str | None:
    """Return the first thing in which a node is of another kind."""
    if one.model_digest != other.model_digest:
        return "its files of the model are others"
    return difference(_of_node(one), _of_node(other))


def grouped(said: Mapping[str, Description]) -> list[list[str]]:
    """Return nodes in groups of one kind each, in the order of the first of each."""
    groups: list[list[str]] = []
    for name, one in said.items():
        for group in groups:
            if node_difference(said[group[0]], one) is None:
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def most_common(
    said: Mapping[str, Description], fits: Callable[[Description], str | None]
) -> tuple[list[str], dict[str, str]]:
    """Return the nodes of the most common kind that fits, and why each of the others is left out.

    ``fits`` returns what is wrong with a kind; None where nothing is.
    """
    wrong = {name: why for name, one in said.items() if (why := fits(one)) is not None}
    groups = grouped({name: one for name, one in said.items() if name not in wrong})
    chosen = max(groups, key=len, default=list[str]())
    for name in (name for group in groups if group is not chosen for name in group):
        why = node_difference(said[chosen[0]], said[name])
        assert why is not None
        wrong[name] = why
    return chosen, wrong


def _of_node(one: Description) -> Description:
    device = {key: value for key, value in one.device.items() if key not in PER_NODE}
    return Description(device, dict(sorted(one.versions.items())), one.ray, one.code)
