"""The share of a cluster that one engine takes, and how many engines there is room for. Pure."""

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

EXECUTOR = "distributed_executor_backend"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster that is alive."""

    id: str
    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Share:
    """The share that one engine takes: bundles, each whole on one node."""

    bundles: tuple[Mapping[str, float], ...]

    is_spread: bool = False
    """Whether its ranks may lie on several nodes: then they are Ray's to place, by vLLM."""

    @property
    def gpus(self) -> float:
        return sum(bundle.get("GPU", 0.0) for bundle in self.bundles)

    def __str__(self) -> str:
        total: dict[str, float] = {}
        for bundle in self.bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return " and ".join(f"{amount:g} {name}" for name, amount in sorted(total.items()))


def share_of(arguments: Mapping[str, ArgumentValue], *, on_gpus: bool) -> Share:
    """Return what an engine with these arguments takes.

    On GPUs one for each rank and one CPU; without any a CPU for each rank. Ranks of vLLM's own Ray
    executor are placed one by one, all others on one node. Raises UsageError for sizes that are
    none.
    """
    ranks = 1
    for name in RANKS:
        size = 1 if arguments.get(name) is None else arguments[name]
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"{name} is {size!r}", hint="Give a whole number of at least 1.")
        ranks *= size
    if not on_gpus:
        return Share(({"CPU": float(ranks)},))
    first = {"CPU": 1.0, "GPU": 1.0}
    if arguments.get(EXECUTOR) == "ray":
        others: list[Mapping[str, float]] = [{"GPU": 1.0}] * (ranks - 1)
        return Share((first, *others), is_spread=True)
    return Share(({**first, "GPU": float(ranks)},))


def room(nodes: Sequence[Node], share: Share) -> int:
    """Return how many engines these nodes have room for, if nobody else is there."""
    free = [dict(node.resources) for node in nodes]
    found = 0
    while all(_put(bundle, free) for bundle in share.bundles):
        found += 1
    return found


def usable(nodes: Sequence[Node], share: Share) -> list[Node]:
    """Return the nodes of one kind that an engine can be on, by itself or with others of them."""
    if share.is_spread:
        return list(nodes) if room(nodes, share) else []
    return [node for node in nodes if room([node], share)]


def _put(bundle: Mapping[str, float], free: Sequence[dict[str, float]]) -> bool:
    """Take a bundle of the first node that has it."""
    for node in free:
        if all(node.get(name, 0.0) >= amount for name, amount in bundle.items()):
            for name, amount in bundle.items():
                node[name] -= amount
            return True
    return False
