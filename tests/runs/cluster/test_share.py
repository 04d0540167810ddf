"""What an engine takes of a node, kinds of nodes and prices."""

import pytest

from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError
from tuner.runs.cluster.prices import parse_prices
from tuner.runs.cluster.share import Node, Share, share_of, usable


@pytest.mark.parametrize(
    ("arguments", "on_gpus", "share"),
    [({}, False, Share(1)), ({"tensor_parallel_size": 2}, False, Share(2)),
     ({}, True, Share(1, 1)), ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, True,
                               Share(1, 8))],
)  # fmt: skip
def test_an_engine_takes_a_device_for_each_rank(
    arguments: dict[str, ArgumentValue], on_gpus: bool, share: Share
) -> None:
    assert share_of(arguments, on_gpus=on_gpus) == share


def test_only_nodes_with_room_for_all_ranks_are_usable() -> None:
    nodes = [Node(str(n), str(n), {"CPU": 8.0, "GPU": float(n)}, {}) for n in (0, 2, 4)]
    assert [node.id for node in usable(nodes, Share(1, 2))] == ["2", "4"]
    assert str(Share(1, 2)) == "1 CPU and 2 GPU"


@pytest.mark.parametrize("size", [0, -1, True, "two"])
def test_sizes_that_are_none_are_refused(size: ArgumentValue) -> None:
    with pytest.raises(UsageError, match="tensor_parallel_size is"):
        share_of({"tensor_parallel_size": size}, on_gpus=True)


@pytest.mark.parametrize("text", ["", "h100", "h100=", "h100=no", "h100=-1", "a=1,A=2"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--prices"):
        parse_prices(text)
