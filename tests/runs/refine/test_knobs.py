"""What a refinement may change: read, built, and refused before anything starts."""

import re
from typing import Any

import pytest

from tests.support.profiles import ENGINE, profile, step
from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError
from tuner.runs.refine.space import CAP, TOKENS, Space, build_space, parse_search


def space(
    named: dict[str, tuple[ArgumentValue, ...]] | None = None,
    refused: str = "",
    kind: str = "cpu",
    **engine: ArgumentValue,
) -> Space:
    """Return the space around a knee at 16 for 100 requests, on an engine that refuses one
    argument."""
    own: dict[str, Any] = {**ENGINE, TOKENS: 2048, "max_model_len": 4096, **engine}
    curve = tuple(step(cap) for cap in (1, 2, 4, 8, 16, 32))
    item = profile(engine=own, curve=curve, device={"kind": kind, "name": "any"})
    return build_space(
        item,
        named or {},
        lambda name, _: "not on this machine" if name == refused else None,
        requests=100,
        shares_prefixes=False,
    )


def values(item: Space) -> dict[str, tuple[ArgumentValue, ...]]:
    return {knob.name: knob.values for knob in item.knobs}


def test_the_default_space_is_the_knee_between_its_doublings_and_the_budget_around_its_own() -> (
    None
):
    item = space(enforce_eager=True)
    assert values(item)[CAP] == (8, 10, 12, 14, 16, 20, 24, 28, 32)
    assert values(item)[TOKENS] == (512, 1024, 2048, 4096)
    assert item.knee[CAP] == 16


def test_on_a_gpu_values_in_between_are_those_of_cuda_graphs_and_the_knee_stays() -> None:
    """Batches of 9 to 16 take as long: of 10, 12 and 14 slots none is worth a replay."""
    assert values(space(kind="gpu"))[CAP] == (8, 16, 24, 32)
    assert values(space(kind="gpu", max_num_seqs=12))[CAP] == (8, 12, 16, 24)
    eager = space(kind="gpu", enforce_eager=True)
    assert values(eager)[CAP] == (8, 10, 12, 14, 16, 20, 24, 28, 32)


def test_what_the_engine_does_not_take_is_left_out_by_default_and_refused_when_named() -> None:
    assert "async_scheduling" in values(space())
    assert "async_scheduling" not in values(space(refused="async_scheduling"))
    with pytest.raises(UsageError, match="--search async_scheduling=True: not on this machine"):
        space({"async_scheduling": (True,)}, refused="async_scheduling")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("block_size=16,32", (16, 32)),
        ("--block-size=16,32", (16, 32)),
        ("enforce_eager=true,false", (True, False)),
        ('config={"b": "x,}", "c": [1, 2]},{"b": 3}', ({"b": "x,}", "c": [1, 2]}, {"b": 3})),
        ("sizes=[1,2],[4]", ([1, 2], [4])),
        ('config=auto,{"b": 3}', ("auto", {"b": 3})),
    ],
)
def test_values_are_read(text: str, read: tuple[ArgumentValue, ...]) -> None:
    assert list(parse_search([text]).values()) == [read]


@pytest.mark.parametrize(
    "texts",
    [
        ["block_size"], ["block_size="], ["block_size=16,,32"], ["a=1", "a=2"],
        ["a_config.mode=0,2"], ['a_config={"mode"'], ["max_num_seqs=8,0"], ["max_num_seqs=8.5"],
    ],
)  # fmt: skip
def test_what_is_no_search_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--search {texts[-1]}")):
        parse_search(texts)


def test_what_no_traffic_could_fill_is_refused() -> None:
    with pytest.raises(UsageError, match="can matter for 100 requests"):
        space({CAP: (101,)})
