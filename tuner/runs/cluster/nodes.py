"""The nodes of a cluster: what an engine takes of one, which are of one kind, and their prices."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

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


class Node(NamedTuple):
    """A node of a cluster that is alive."""

    id: str
    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


class Share(NamedTuple):
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
    ranks = 1
    for name in RANKS:
        if (size := arguments.get(name)) is None:
            continue
        if type(size) is not int or size < 1:
            raise UsageError(f"{name} is {size!r}", hint="Give a whole number of at least 1.")
        ranks *= size
    return Share(1.0, ranks) if on_gpus else Share(ranks)


class Description(NamedTuple):
    """What a node is."""

    device: Mapping[str, ArgumentValue]
    versions: Mapping[str, str]
    tuner: str


def describe_node() -> Description:
    """Return what this node is. A Ray task."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides all from who takes none
    return Description(devices.device_facts(), provenance.versions(), version("tuner"))


def why_not(reply: object) -> str | None:
    """Say why a node that replied this when it was asked what it is cannot be used."""
    if not isinstance(reply, Description):
        return f"tuner does not run there: {reply}"
    here = version("tuner")
    return None if reply.tuner == here else f"its tuner is {reply.tuner}, here it is {here}"


def named(descriptions: Mapping[str, Description]) -> dict[str, list[str]]:
    """Return the nodes of each kind, by short names of their devices: those of one device that
    differ in something else get numbers. Of GPUs an engine takes as many as it needs.

    >>> here = Description({"name": "NVIDIA H100 80GB HBM3"}, {}, "")
    >>> named({"a": here, "b": here})
    {'nvidia-h100-80gb-hbm3': ['a', 'b']}
    """
    alike, result = dict[str, list[str]](), dict[str, list[str]]()
    for node, each in descriptions.items():
        alike.setdefault(str([{**each.device, "count": 0}, each.versions]), []).append(node)
    for nodes in alike.values():
        device = str(descriptions[nodes[0]].device.get("name")).lower()
        slug = re.sub(r"[^a-z0-9]+", "-", device).strip("-")
        result[f"{slug}-{len(result) + 1}" if slug in result else slug] = nodes
    return result


def lines_of(nodes: Sequence[Node], left_out: Mapping[str, str]) -> list[str]:
    """Return why which nodes are not used, a line a reason."""
    return [
        f"left out: {', '.join(node.name for node in nodes if left_out.get(node.id) == why)}: {why}"
        for why in sorted(set(left_out.values()))
    ]


# Prices

PRICE = r"([^=,]+)=([0-9]+(?:\.[0-9]+)?)"


def parse_prices(text: str) -> dict[str, float]:
    """Return part of a device's name → price per hour. Raises UsageError for what is no price.

    >>> parse_prices("h100=4.1,a100=2.2")
    {'h100': 4.1, 'a100': 2.2}
    """
    text = text.lower().replace(" ", "")
    pairs = re.findall(PRICE, text)
    if not re.fullmatch(f"{PRICE}(,{PRICE})*", text) or len(dict(pairs)) < len(pairs):
        raise UsageError(
            f"--prices {text!r}: is no price, or a second one",
            hint="As in --prices h100=4.1,a100=2.2: per GPU and hour, in any one currency.",
        )
    return {name: float(price) for name, price in pairs}


def price_of(prices: Mapping[str, float], kind: str) -> float | None:
    """Return the price of a kind: that of the longest name which is part of its own.

    >>> price_of({"a100": 2.2, "a100-80gb": 2.9}, "nvidia-a100-80gb-pcie")
    2.9
    """
    fitting = [name for name in prices if name in kind.lower()]
    return prices[max(fitting, key=len)] if fitting else None


def per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float:
    """Return what a million tokens cost at this rate; infinite where there are none.

    >>> per_million_tokens(3.6, 1000)
    1.0
    """
    return price_per_hour / 3600 / tokens_per_s * 1e6 if tokens_per_s > 0 else math.inf
