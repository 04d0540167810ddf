"""What a refinement may change: read, built, and refused before anything starts."""

import re
from dataclasses import replace

import pytest

from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError
from tuner.runs.refine.space import (
    CAP,
    TOKENS,
    TrafficNeeds,
    build_space,
    parse_search,
)

ENGINE: dict[str, ArgumentValue] = {
    CAP: 16, TOKENS: 2048, "block_size": 16, "model": "m", "max_model_len": 4096,
}  # fmt: skip
PLAIN = TrafficNeeds(
    shares_prefixes=False, caps=(1, 2, 4, 8, 16, 32), requests=100, on_gpu=False,
)  # fmt: skip


def takes_all(_name: str, _value: ArgumentValue) -> str | None:
    return None


def test_the_default_space_is_the_knee_between_its_doublings_and_the_budget_around_its_own() -> (
    None
):
    space = build_space(ENGINE, PLAIN, {}, takes_all)
    values = {knob.name: knob.values for knob in space.knobs}
    assert values[CAP] == (8, 10, 12, 14, 16, 20, 24, 28, 32)
    assert values[TOKENS] == (512, 1024, 2048, 4096)
    assert space.knee[CAP] == 16


def test_on_a_gpu_values_in_between_are_those_of_cuda_graphs_and_the_knee_stays() -> None:
    """Batches of 9 to 16 take as long: of 10, 12 and 14 slots none is worth a replay."""
    gpu = replace(PLAIN, on_gpu=True)

    def caps(**engine: ArgumentValue) -> tuple[ArgumentValue, ...]:
        space = build_space({**ENGINE, **engine}, gpu, {}, takes_all)
        return {knob.name: knob.values for knob in space.knobs}[CAP]

    assert caps() == (8, 16, 24, 32)
    assert caps(max_num_seqs=12) == (8, 12, 16, 24)
    assert caps(enforce_eager=True) == (8, 10, 12, 14, 16, 20, 24, 28, 32)


def test_what_the_engine_does_not_take_is_left_out_by_default_and_refused_when_named() -> None:
    def refusal(name: str, _value: ArgumentValue) -> str | None:
        return "not on this machine" if name == "async_scheduling" else None

    space = build_space(ENGINE, PLAIN, {}, refusal)
    assert "async_scheduling: not on this machine" in space.left_out
    with pytest.raises(UsageError, match="--search async_scheduling=True: not on this machine"):
        build_space(ENGINE, PLAIN, {"async_scheduling": (True,)}, refusal)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("block_size=16,32", ["16", "32"]),
        ('a_config={"b": "x,}", "c": [1, 2]},{"b": 3}', ['{"b": "x,}", "c": [1, 2]}', '{"b": 3}']),
        ("sizes=[1,2],[4]", ["[1,2]", "[4]"]),
        ('a_config=default,{"b": 3}', ["default", '{"b": 3}']),
        ('a_config= {"b": 1}', ['{"b": 1}']),
    ],
)
def test_values_are_read(text: str, values: list[str]) -> None:
    assert list(parse_search([text]).values()) == [values]


@pytest.mark.parametrize(
    "texts",
    [["block_size"], ["block_size="], ["block_size=16,,32"], ["a=1", "a=2"], ["a_config.mode=0,2"]],
)
def test_what_is_no_search_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--search {texts[-1]}")):
        parse_search(texts)


def test_what_no_traffic_could_fill_is_refused() -> None:
    with pytest.raises(UsageError, match="can matter for 100 requests"):
        build_space(ENGINE, PLAIN, {CAP: (101,)}, takes_all)
