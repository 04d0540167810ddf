"""What an engine takes of a cluster, which nodes are alike, and what tokens cost: by arithmetic."""

from pathlib import Path

import pytest

from tuner.commands.sweep.kinds import LABEL, of_worlds
from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError
from tuner.runs.cluster.kinds import Description, named
from tuner.runs.cluster.prices import parse_prices
from tuner.runs.cluster.share import Node, room, share_of, usable

H100, A100 = (
    Description({"kind": "gpu", "name": name, "count": 8}, {"vllm": "0.32.0"}, "2.60.0", "c0de")
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
)


def node(name: str, **resources: float) -> Node:
    return Node(name, name, resources, {})


@pytest.mark.parametrize(
    ("arguments", "takes", "engines"),
    [
        ({}, "1 CPU and 1 GPU", 8),
        ({"tensor_parallel_size": 4}, "1 CPU and 4 GPU", 2),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "1 CPU and 4 GPU", 2),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, "1 CPU and 4 GPU", 2),
        ({"tensor_parallel_size": 3}, "1 CPU and 3 GPU", 2),
        ({"tensor_parallel_size": 8}, "1 CPU and 8 GPU", 0),
        ({"tensor_parallel_size": None}, "1 CPU and 1 GPU", 8),
    ],
)
def test_an_engine_takes_a_gpu_a_rank_on_one_node_and_no_gpu_is_given_twice(
    arguments: dict[str, int], takes: str, engines: int
) -> None:
    share = share_of(arguments, on_gpus=True)
    assert str(share) == takes
    assert room([node("a", CPU=16, GPU=4), node("b", CPU=16, GPU=4)], share) == engines


def test_ranks_of_vllms_own_ray_executor_may_lie_on_several_nodes() -> None:
    arguments: dict[str, ArgumentValue] = {
        "tensor_parallel_size": 8,
        "distributed_executor_backend": "ray",
    }
    share = share_of(arguments, on_gpus=True)
    assert share.is_spread
    assert (len(share.bundles), share.gpus) == (8, 8)
    both = [node("a", CPU=16, GPU=4), node("b", CPU=16, GPU=4)]
    assert room(both, share) == 1
    assert usable(both, share) == both
    assert usable(both[:1], share) == []


def test_an_engine_that_is_on_one_node_is_on_those_that_hold_it_whole() -> None:
    share = share_of({"tensor_parallel_size": 4}, on_gpus=True)
    small, large = node("a", CPU=16, GPU=2), node("b", CPU=16, GPU=4)
    assert usable([small, small, large], share) == [large]


@pytest.mark.parametrize("size", [0, -1, "two", True, 1.5])
def test_a_parallel_size_that_is_none_is_refused(size: ArgumentValue) -> None:
    with pytest.raises(UsageError, match="tensor_parallel_size"):
        share_of({"tensor_parallel_size": size}, on_gpus=True)


def test_a_world_that_no_node_is_of_is_refused_with_the_kinds_that_there_are() -> None:
    nodes = {name: Node(name, name, {}, {LABEL: kind}) for name, kind in (("a", "x"), ("b", "y"))}
    worlds = {name: Path(f"{name}.yaml") for name in ("x", "nope")}
    with pytest.raises(UsageError, match=r"nope=nope\.yaml: no node .* the kinds there are: x, y$"):
        of_worlds(worlds, nodes, {"a": H100, "b": H100}, {})
    with pytest.raises(UsageError, match=r"the kinds there are: none$"):
        of_worlds(worlds, {"c": node("c")}, {"c": H100}, {})


@pytest.mark.parametrize(
    "text", ["", "h100", "h100=", "=4", "h100=free", "h100=-1", "h100=nan", "h100=1,H100=2", "a=1,"]
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--prices"):
        parse_prices(text)


def test_nodes_of_several_kinds_are_never_one_group() -> None:
    fewer = Description({**H100.device, "count": 4}, H100.versions, H100.ray, H100.code)
    patched = Description(H100.device, {"vllm": "0.32.1"}, H100.ray, H100.code)
    assert named({"a": H100, "b": A100, "c": fewer, "d": patched}) == {
        "nvidia-h100-80gb-hbm3": ["a", "c"],
        "nvidia-a100-sxm4-80gb": ["b"],
        "nvidia-h100-80gb-hbm3-2": ["d"],
    }
