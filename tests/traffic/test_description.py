"""What a trace holds, and what is warned of."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.traces import request
from tuner.trace.columns import Columns, columns_of
from tuner.trace.record import TraceHeader
from tuner.trace.trace import TraceRequest
from tuner.traffic.description import concurrency, describe, tick_ms, trace_warnings
from tuner.traffic.window import arrays, busiest, busiest_rows


def columns(*requests: TraceRequest, block_size: int = 16) -> Columns:
    return columns_of(requests, block_size=block_size)


def arrivals(*arrival_s: float) -> list[TraceRequest]:
    return [request(row, at_s) for row, at_s in enumerate(arrival_s)]


# -- columns


def test_tokens_that_came_before_are_counted_in_full_blocks() -> None:
    result = columns(
        request(0, input_length=40, hash_ids=(1, 2, 3)),  # the third block is partial
        request(1, input_length=40, hash_ids=(1, 2, 3)),
        request(2, input_length=40, hash_ids=(1, 9)),
    )
    assert result.reused_tokens == (2 + 1) * 16
    assert describe(result).prefix_share == 48 / 120


# -- arrivals


def test_the_rate_is_one_over_the_mean_gap() -> None:
    result = describe(columns(*arrivals(0, 1, 2, 4)))
    assert result.arrival_rate_rps == 3 / 4
    assert result.interarrival_cv == pytest.approx(math.sqrt(2 / 9) / (4 / 3))
    assert describe(columns(*arrivals(0, 1, 2))).interarrival_cv == 0


def test_the_peak_is_over_any_window_wherever_it_begins() -> None:
    result = describe(columns(*arrivals(0, 0.9, 1.0, 1.1, 1.9, 5))).peak_arrivals
    assert (result[1.0], result[10.0]) == (3, 6)


@pytest.mark.parametrize("tick", [10, 100, 1000, 3000])
def test_a_grid_is_found(tick: int) -> None:
    at_s = [i * tick / 1000 for i in (0, 1, 1, 2, 4, 5, 7, 7, 8, 9, 10, 12, 13, 14, 17)]
    assert tick_ms(columns(*arrivals(*at_s)).arrival_s) == tick


def test_the_busiest_window_has_the_most_tokens_not_the_most_requests() -> None:
    small = [request(i, 10 + i / 10, input_length=1, output_length=1) for i in range(5)]
    large = [request(9, 50.0, input_length=100, output_length=100)]
    end = [request(10, 100.0, input_length=1, output_length=1)]
    assert busiest(*arrays([*small, *large, *end]), 5.0) == 50.0


def test_the_busiest_rows_ask_for_the_most_in_their_time() -> None:
    arrival_s = np.array([0.0, 100.0, 200.0, 201.0, 300.0])
    tokens = np.array([180, 180, 20, 20, 20])
    assert busiest_rows(arrival_s, tokens, 2) == slice(2, 4)
    assert busiest_rows(arrival_s, tokens, 5) == slice(0, 5)


# -- concurrency


def test_the_time_in_which_the_trace_fills_up_does_not_count() -> None:
    requests = [request(i, float(i), e2e_s=3.0) for i in range(101)]
    result = describe(columns(*requests)).recorded
    assert result is not None
    assert result.mean == result.max == 3


def test_where_ends_are_unknown_there_is_a_band_and_no_number() -> None:
    requests = [request(i, i / 10, output_length=100) for i in range(1000)]
    result = describe(columns(*requests))
    assert result.recorded is None
    assert result.band == [pytest.approx(10, rel=0.01), pytest.approx(80, rel=0.01)]


# -- warnings


def warned(*requests: TraceRequest, header: TraceHeader | None = None) -> str:
    table = columns(*requests)
    return "\n".join(trace_warnings(table, describe(table), header or TraceHeader()))


def healthy(count: int = 200, gap_s: float = 0.5) -> list[TraceRequest]:
    rng = np.random.default_rng(0)
    at_s = np.cumsum(rng.exponential(gap_s, count))
    lengths = rng.integers(10, 200, count)
    return [
        request(
            i,
            float(t),
            output_length=int(n),
            e2e_s=1 + int(n) / 100,
            hash_ids=(i,),
            input_length=16,
        )
        for i, (t, n) in enumerate(zip(at_s, lengths, strict=True))
    ]


def test_a_healthy_trace_has_no_warnings() -> None:
    assert warned(*healthy()) == ""


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        (healthy(20), "too few to carry a tuning"),
        (healthy(gap_s=0.0005), "if the stamps are in s, import with --time-unit s"),
        ([request(i, 1.7e6 + i) for i in range(200)], "seconds since 1970"),
        ([request(i, float(i)) for i in range(200)], "grid of 1,000 ms"),
        ([*healthy(), request(999, 1.0, status="error")], "1 request was failed or rejected"),
        ([request(i, i * 0.7) for i in range(200)], "ends are not recorded"),
        ([request(i, i * 0.7) for i in range(200)], "no hash_ids"),
    ],
)
def test_each_fault_has_its_warning(requests: list[TraceRequest], text: str) -> None:
    assert text in warned(*requests)


def test_the_warnings_name_what_the_source_cannot_show() -> None:
    assert "cannot show aborted" in warned(*healthy(), header=TraceHeader(missing=("aborts",)))
    assert "understated" in warned(*healthy(), header=TraceHeader(block_size=512))
    assert "understated" not in warned(*healthy(), header=TraceHeader(block_size=16))


INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=25
)


def edges(intervals: list[tuple[int, int, int]]) -> tuple[Any, Any]:
    begins_s = np.array([float(begin) for begin, _, n in intervals for _ in range(n)])
    ends_s = [float(begin + lasted) for begin, lasted, n in intervals for _ in range(n)]
    return np.sort(begins_s), np.sort(ends_s)


@settings(max_examples=50)
@given(intervals=INTERVALS)
def test_what_holds_is_what_is_counted_at_every_moment(
    intervals: list[tuple[int, int, int]],
) -> None:
    counted = [
        sum(n for begin, lasted, n in intervals if begin <= second + 0.5 < begin + lasted)
        for second in range(5, 40)
    ]

    seen = concurrency(*edges(intervals), start_s=5.0, end_s=40.0)
    assert seen is not None
    assert seen.mean == pytest.approx(np.mean(counted))
    assert [seen.p50, seen.p90, seen.max] == [sorted(counted)[at] for at in (17, 31, 34)]


@pytest.mark.parametrize("end_s", [1.0, np.nextafter(1.0, 2.0)])
def test_what_begins_at_the_end_holds_for_no_time(end_s: float) -> None:
    begins_s, ends_s = np.array([0.0, end_s]), np.array([9.0, 9.0])
    result = concurrency(begins_s, ends_s, start_s=0.0, end_s=end_s)
    assert result is not None
    assert (result.mean, result.max) == (1.0, 1)
