"""The share of a node that one engine takes. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def usable(nodes: Sequence[Node], share: Share) -> list[Node]:
    """Return the nodes that an engine can be on, if nobody else is there."""
    wanted = {"CPU": share.cpus, "GPU": share.gpus}
    return [n for n in nodes if all(n.resources.get(k, 0.0) >= v for k, v in wanted.items())]
