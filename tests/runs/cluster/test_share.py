"""What an engine takes of a node, kinds of nodes and prices."""

import msgspec
import pytest

from tests.support.profiles import profile, resealed
from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError
from tuner.profile.profile import ServingProfile
from tuner.runs.cluster.nodes import Node, Share, parse_prices, share_of
from tuner.traffic.requirements import RequirementCheck
from tuner.views.profile import several_page


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
    assert [node.id for node in nodes if Share(1, 2).fits(node)] == ["2", "4"]
    assert str(Share(1, 2)) == "1 CPU and 2 GPU"


@pytest.mark.parametrize("size", [0, -1, True, "two"])
def test_sizes_that_are_none_are_refused(size: ArgumentValue) -> None:
    with pytest.raises(UsageError, match="tensor_parallel_size is"):
        share_of({"tensor_parallel_size": size}, on_gpus=True)


@pytest.mark.parametrize("text", ["", "h100", "h100=", "h100=no", "h100=-1", "a=1,A=2"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--prices"):
        parse_prices(text)


def test_what_breaks_a_requirement_is_not_the_best_however_cheap() -> None:
    def required(*, kept: bool) -> ServingProfile:
        each = RequirementCheck(text="p95 ttft <= 1s", at_worst=2.0, measured=None, kept=kept)
        item = profile()
        decision = msgspec.structs.replace(item.decision, requirements=[each])
        return resealed(item, evidence=b"", decision=decision)

    profiles = {"cheap": required(kept=False), "dear": required(kept=True)}
    page = several_page(profiles, {"cheap": 1.0, "dear": 4.0}, subject="")
    assert page.tables[0].chosen == 1
    assert page.warnings == ["cheap breaks p95 ttft <= 1s"]
