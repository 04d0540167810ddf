"""What the public slices say, against numbers that were found with other code."""

import pytest

from tests.support.traces import SLICES, needs_slices
from tuner.trace.columns import Columns, columns_of
from tuner.trace.trace import load
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.concurrency import levels
from tuner.traffic.routing import S_PER_OUTPUT_TOKEN, S_PER_PROMPT_TOKEN, Router, assign
from tuner.traffic.summary import TrafficSummary, describe

pytestmark = needs_slices

NAMES = {
    "azure2023_code": "csv",
    "azure2023_conv": "csv",
    "mooncake_conversation": "jsonl",
    "mooncake_synthetic": "jsonl",
}


@pytest.fixture(scope="module", params=NAMES)
def slice_(request: pytest.FixtureRequest) -> tuple[str, Columns, TrafficSummary]:
    trace = load(SLICES / f"{request.param}.{NAMES[request.param]}")
    assert trace.warnings == ()
    columns = columns_of(trace.requests, block_size=trace.header.block_size)
    return request.param, columns, describe(columns)


def test_counts_rates_and_burstiness(slice_: tuple[str, Columns, TrafficSummary]) -> None:
    name, _, found = slice_
    expected = {
        "azure2023_code": (4409, 1422.1, 3.1, 14.1),
        "azure2023_conv": (9683, 1743.4, 5.554, 1.07),
        "mooncake_conversation": (5550, 1749.0, 3.173, 2.92),
        "mooncake_synthetic": (1996, 532.5, 3.747, 1.0),
    }
    assert found.arrival_rate_rps is not None
    assert found.interarrival_cv is not None
    assert (
        found.requests,
        round(found.duration_s, 1),
        round(found.arrival_rate_rps, 3),
        round(found.interarrival_cv, 2),
    ) == expected[name]


def test_the_grid_of_mooncake_is_found_and_no_other(
    slice_: tuple[str, Columns, TrafficSummary],
) -> None:
    name, _, found = slice_
    assert found.tick_ms == (3000 if name == "mooncake_conversation" else None)


def test_lengths(slice_: tuple[str, Columns, TrafficSummary]) -> None:
    name, _, found = slice_
    expected = {
        "azure2023_code": ((1454, 7325, 7436, 7437), (13, 85, 247, 1899)),
        "azure2023_conv": ((1035, 4086, 4122, 14050), (141, 463, 612, 1000)),
        "mooncake_conversation": ((7626, 41961, 91448, 123192), (356, 705, 1096, 2000)),
        "mooncake_synthetic": ((4063, 41969, 56635, 134773), (153, 574, 776, 842)),
    }
    for lengths, numbers in zip(
        (found.input_tokens, found.output_tokens), expected[name], strict=True
    ):
        assert lengths is not None
        values = (lengths.p50, lengths.p95, lengths.p99, lengths.max)
        assert tuple(map(int, values)) == numbers


@pytest.mark.parametrize(
    ("s_per_prompt_token", "expected"),
    [
        (
            0.0,
            {
                "azure2023_code": (1.70, 0, 8, 16, 44),
                "azure2023_conv": (24.62, 25, 36, 40, 47),
                "mooncake_conversation": (21.82, 21, 33, 37, 47),
                "mooncake_synthetic": (14.30, 14, 21, 24, 28),
            },
        ),
        (
            0.0002,
            {
                "azure2023_code": (2.96, 0, 14, 28, 70),
                "azure2023_conv": (25.99, 26, 37, 42, 48),
                "mooncake_conversation": (29.96, 29, 42, 47, 57),
                "mooncake_synthetic": (23.49, 24, 31, 34, 39),
            },
        ),
    ],
)
def test_concurrency_over_time(
    slice_: tuple[str, Columns, TrafficSummary],
    s_per_prompt_token: float,
    expected: dict[str, tuple[float, ...]],
) -> None:
    name, columns, _ = slice_
    lasts_s = columns.output_length * 0.020 + columns.input_length * s_per_prompt_token
    start_s, end_s = columns.arrival_s[[0, -1]].tolist()
    found = levels(columns, lasts_s, start_s=start_s, end_s=end_s)
    assert found is not None
    held = found.held()
    quantiles = held.quantiles(0.50, 0.95, 0.99)
    assert (round(held.mean(), 2), *quantiles, held.max()) == expected[name]


@pytest.mark.parametrize(("router", "worst"), [("least", 12), ("rr", 15), ("random", 19)])
def test_random_routing_needs_a_third_more_than_the_least_loaded(
    router: Router, worst: int
) -> None:
    trace = load(SLICES / "azure2023_conv.csv")
    columns = columns_of(trace.requests, block_size=16)
    lasts_s = columns.output_length * S_PER_OUTPUT_TOKEN + columns.input_length * S_PER_PROMPT_TOKEN
    chosen = assign(columns, replicas=4, router=router, seed=1)
    found = []
    for replica in range(4):
        part = columns.take(chosen == replica)
        one = levels(part, lasts_s[chosen == replica], start_s=0.0, end_s=1743.4)
        assert one is not None
        found.append(one.held().max())
    assert max(found) == pytest.approx(worst, abs=2)


def test_the_busiest_ten_seconds_of_azure_code_have_415_requests() -> None:
    trace = load(SLICES / "azure2023_code.csv")
    found = describe(columns_of(trace.requests, block_size=16))
    assert found.peak_arrivals[10.0] == 415
    start_s, end_s = busiest_window(trace.requests, 10.0)
    assert sum(start_s <= one.arrival_s < end_s for one in trace.requests) > 400


def test_mooncake_shares_a_third_of_its_prompts(
    slice_: tuple[str, Columns, TrafficSummary],
) -> None:
    name, _, found = slice_
    expected = {"mooncake_conversation": 0.346, "mooncake_synthetic": 0.337}
    assert found.prefix_share == (
        pytest.approx(expected[name], abs=0.001) if name in expected else None
    )
