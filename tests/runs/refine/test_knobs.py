"""What a refinement may change: read, built, and refused before anything starts."""

from dataclasses import replace

import pytest

from tuner.engines.seam import ArgumentValue
from tuner.errors import UsageError
from tuner.runs.refine.space import (
    CAP,
    TOKENS,
    TrafficNeeds,
    build_space,
    frees,
    parse_search,
    smallest,
)

ENGINE: dict[str, ArgumentValue] = {
    CAP: 16, TOKENS: 2048, "block_size": 16, "model": "m", "max_model_len": 4096,
}  # fmt: skip
PLAIN = TrafficNeeds(
    shares_prefixes=False, kv_peak=0.1, caps=(1, 2, 4, 8, 16, 32),
    requests=100, on_gpu=False,
)  # fmt: skip
FULL = replace(PLAIN, shares_prefixes=True, kv_peak=0.99, caps=(8, 16))


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


def test_the_profiles_own_value_is_always_among_those_that_are_named() -> None:
    space = build_space(ENGINE, PLAIN, {CAP: (20, 12), TOKENS: (2048,)}, takes_all)
    values = {knob.name: knob.values for knob in space.knobs}
    assert values[CAP] == (12, 16, 20)
    assert TOKENS not in values  # one value is nothing to search


def test_less_memory_is_tried_by_default_where_a_gpu_is_shared_out_by_it() -> None:
    gpu = {**ENGINE, "gpu_memory_utilization": 0.92}
    space = build_space(gpu, replace(PLAIN, on_gpu=True), {}, takes_all)
    values = {knob.name: knob.values for knob in space.knobs}
    assert values["gpu_memory_utilization"] == (0.31, 0.46, 0.69, 0.92)
    # of a cache that may be 80 % full 40 % are used: half of it would do, if it were nothing else
    fuller = build_space(gpu, replace(PLAIN, on_gpu=True, kv_peak=0.4), {}, takes_all)
    values = {knob.name: knob.values for knob in fuller.knobs}
    assert values["gpu_memory_utilization"] == (0.46, 0.69, 0.92)
    full = build_space(gpu, replace(FULL, on_gpu=True), {}, takes_all)
    assert "gpu_memory_utilization: at most 99% of the KV cache was used" in full.left_out


def test_the_least_memory_comes_first_and_a_fifth_less_is_worth_a_restart() -> None:
    large = {CAP: 8, TOKENS: 512, "kv_cache_memory_bytes": 1000}
    small = {**large, CAP: 16, "kv_cache_memory_bytes": 800}
    assert min((large, small), key=smallest) == small
    assert frees(small, large)
    assert not frees({**large, "kv_cache_memory_bytes": 900}, large)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("block_size=16,32", ["16", "32"]),
        ("max-num-seqs=8:12:2", ["8", "10", "12"]),
        ("max_num_batched_tokens=256:65536:log", [str(2**n) for n in range(8, 17)]),
        ("gpu_memory_utilization=0.3:0.9:0.2", ["0.3", "0.5", "0.7", "0.9"]),
        ('a_config={"b": "x,}", "c": [1, 2]},{"b": 3}', ['{"b": "x,}", "c": [1, 2]}', '{"b": 3}']),
        ("sizes=[1,2],[4]", ["[1,2]", "[4]"]),
        ('a_config=default,{"b": 3}', ["default", '{"b": 3}']),
        ('a_config= {"b": 1}', ['{"b": 1}']),
        ("max_num_seqs=0:16", ["0", "2", "4", "6", "8", "10", "12", "14", "16"]),
    ],
)
def test_values_and_ranges_are_read(text: str, values: list[str]) -> None:
    assert list(parse_search([text]).values()) == [values]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["block_size"], "is not KEY=VALUES"),
        (["block_size="], "is not KEY=VALUES"),
        (["block_size=16,,32"], "has an empty value"),
        (["a=1", "a=2"], "is there twice"),
        *(
            ([f"a={each}"], "is no range of at most 64 numbers")
            for each in ("9:1", "nan:1", "one:two", "0:9:log", "1:9:0", "1:1000000:1", "1:2:3:4")
        ),
        (["a_config.mode=0,2"], "one key of a_config is not searched"),
    ],
)
def test_what_is_no_search_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_search(texts)


@pytest.mark.parametrize("named", [{CAP: (101,)}, {TOKENS: (10**12,)}, {CAP: (0,)}], ids=str)
def test_what_no_traffic_could_fill_is_refused(named: dict[str, tuple[ArgumentValue, ...]]) -> None:
    with pytest.raises(UsageError, match="can matter for 100 requests"):
        build_space(ENGINE, PLAIN, named, takes_all)
