"""The kinds of a cluster's nodes: one curve is of one kind."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tuner
from tuner.engines import devices, provenance
from tuner.engines.seam import ArgumentValue
from tuner.runs.cluster.session import RaySession
from tuner.runs.cluster.share import Node


@dataclass(frozen=True, slots=True)
class Description:
    """What a node is."""

    device: Mapping[str, ArgumentValue]
    versions: Mapping[str, str]
    code: str
    """Digest of tuner's own modules there: versions of a checkout are all called alike."""

    @property
    def kind(self) -> tuple[object, ...]:
        """What nodes of one kind have in common: of GPUs an engine takes as many as it needs."""
        device = {key: str(value) for key, value in self.device.items() if key != "count"}
        return (*sorted(device.items()), *sorted(self.versions.items()))


def describe_node() -> Description:
    """Return what this node is. Called on it, in a process of its own."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides all from who takes none
    return Description(devices.device_facts(), provenance.versions(), _code())


@cache
def _code() -> str:
    folder, digest = Path(tuner.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def described(
    session: RaySession, nodes: Sequence[Node]
) -> tuple[dict[str, Description], dict[str, str]]:
    """Return what nodes are, and why others are not used; by id."""
    result, left_out = dict[str, Description](), dict[str, str]()
    for node, reply in session.ask(describe_node, nodes).items():
        if not isinstance(reply, Description):
            left_out[node] = f"tuner does not run there: {reply}"
        elif reply.code != _code():
            left_out[node] = "the modules of tuner differ from those here"
        else:
            result[node] = reply
    return result, left_out


def named(descriptions: Mapping[str, Description]) -> dict[str, list[str]]:
    """Return kinds by short names of their devices: those of one device that differ in something
    else get numbers.

    >>> one = Description({"name": "NVIDIA H100 80GB HBM3"}, {}, "")
    >>> named({"a": one, "b": one})
    {'nvidia-h100-80gb-hbm3': ['a', 'b']}
    """
    names: dict[tuple[object, ...], str] = {}
    kinds, counts = dict[str, list[str]](), Counter[str]()
    for node, each in descriptions.items():
        slug = re.sub(r"[^a-z0-9]+", "-", str(each.device.get("name")).lower()).strip("-")
        if each.kind not in names:
            counts[slug] += 1
            names[each.kind] = slug if counts[slug] == 1 else f"{slug}-{counts[slug]}"
        kinds.setdefault(names[each.kind], []).append(node)
    return kinds


def lines_of(nodes: Sequence[Node], left_out: Mapping[str, str]) -> Iterator[str]:
    """Yield why which nodes are not used, a line a reason."""
    for why in sorted(set(left_out.values())):
        names = [node.name for node in nodes if left_out.get(node.id) == why]
        yield f"left out: {', '.join(names)}: {why}"
