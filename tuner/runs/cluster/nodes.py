"""The nodes of a cluster: what an engine takes of one, and which are of one kind."""

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import tuner
from tuner.engines import devices, provenance
from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError

RANKS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)
"""vLLM's parallel sizes: their product is the number of devices of one engine."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster that is alive."""

    id: str
    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Share:
    """The CPUs and GPUs that one engine takes, all on one node."""

    cpus: float
    gpus: float = 0.0

    def fits(self, node: Node) -> bool:
        """Whether an engine can be on a node, if nobody else is there."""
        here = node.resources
        return here.get("CPU", 0.0) >= self.cpus and here.get("GPU", 0.0) >= self.gpus

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


def share_of(arguments: Mapping[str, ArgumentValue], *, on_gpus: bool) -> Share:
    """Return what an engine with these arguments takes: on GPUs one for each rank and one CPU,
    without any a CPU for each rank. Raises UsageError for sizes that are none."""
    sizes = {name: arguments[name] for name in RANKS if arguments.get(name) is not None}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise UsageError(f"{name} is {size!r}", hint="Give a whole number of at least 1.")
    ranks = float(math.prod(int(str(size)) for size in sizes.values()))
    return Share(1.0, ranks) if on_gpus else Share(ranks)


@cache
def code_digest() -> str:
    folder, digest = Path(tuner.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Description:
    """What a node is, as it says in a process of its own."""

    device: Mapping[str, ArgumentValue] = field(default_factory=devices.device_facts)
    versions: Mapping[str, str] = field(default_factory=provenance.versions)
    code: str = field(default_factory=code_digest)
    """Of tuner's own modules there: versions of a checkout are all called alike."""

    @property
    def kind(self) -> tuple[object, ...]:
        """What nodes of one kind have in common: of GPUs an engine takes as many as it needs."""
        device = {key: str(value) for key, value in self.device.items() if key != "count"}
        return (*sorted(device.items()), *sorted(self.versions.items()))


def describe_node() -> Description:
    """Return what this node is. A Ray task."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides all from who takes none
    return Description()


def why_not(reply: object) -> str | None:
    """Say why a node that replied this when it was asked what it is cannot be used."""
    if not isinstance(reply, Description):
        return f"tuner does not run there: {reply}"
    if reply.code != code_digest():
        return "the modules of tuner differ from those here"
    return None


def named(descriptions: Mapping[str, Description]) -> dict[str, list[str]]:
    """Return kinds by short names of their devices: those of one device that differ in something
    else get numbers.

    >>> here = Description({"name": "NVIDIA H100 80GB HBM3"}, {}, "")
    >>> named({"a": here, "b": here})
    {'nvidia-h100-80gb-hbm3': ['a', 'b']}
    """
    kinds: dict[tuple[object, ...], list[str]] = {}
    for node, each in descriptions.items():
        kinds.setdefault(each.kind, []).append(node)
    result = dict[str, list[str]]()
    for nodes in kinds.values():
        device = str(descriptions[nodes[0]].device.get("name")).lower()
        slug = re.sub(r"[^a-z0-9]+", "-", device).strip("-")
        count = sum(name == slug or name.startswith(f"{slug}-") for name in result)
        result[f"{slug}-{count + 1}" if count else slug] = nodes
    return result


def lines_of(nodes: Sequence[Node], left_out: Mapping[str, str]) -> list[str]:
    """Return why which nodes are not used, a line a reason."""
    return [
        f"left out: {', '.join(node.name for node in nodes if left_out.get(node.id) == why)}: {why}"
        for why in sorted(set(left_out.values()))
    ]
