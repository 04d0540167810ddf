import pytest

from tests.support.traces import request
from tuner.trace.columns import Columns, columns_of
from tuner.trace.trace import TraceRequest
from tuner.traffic.likeness import Likeness, likeness


def columns(*requests: TraceRequest) -> Columns:
    return columns_of(requests, block_size=16)


def steady(count: int = 101, **fields: int) -> list[TraceRequest]:
    """Return a request of 15 tokens every second."""
    return [request(i, float(i), **fields) for i in range(count)]


def part(table: Columns, start_s: float, length_s: float) -> Likeness:
    found = likeness(table, start_s=start_s, length_s=length_s)
    assert found is not None
    return found


def test_a_part_of_steady_traffic_is_like_the_whole() -> None:
    found = part(columns(*steady()), 20.0, 10.0)
    assert found.requests == 10
    assert found.load == pytest.approx(1.0, rel=0.02)
    assert found.input_distance == found.output_distance == 0.0
    assert found.is_like


def test_the_rank_says_how_many_parts_of_that_length_ask_for_less() -> None:
    rising = [request(i, float(i), input_length=1 + i) for i in range(101)]
    table = columns(*rising)
    assert part(table, 0.0, 10.0).rank == 0.0
    assert part(table, 45.5, 10.0).rank == pytest.approx(0.5, abs=0.05)
    assert part(table, 90.5, 10.0).rank > 0.95


def test_other_lengths_show_as_a_distance_between_distributions() -> None:
    short = steady(100)
    long = [request(100 + i, 100.0 + i, output_length=500) for i in range(100)]
    found = part(columns(*short, *long), 100.0, 100.0)
    assert found.output_distance == 0.5
    assert found.input_distance == 0.0
    assert not found.is_like


def test_few_requests_may_differ_by_chance() -> None:
    mixed = [request(i, float(i), output_length=1 + i % 10) for i in range(1000)]
    found = part(columns(*mixed), 0.0, 5.0)
    assert found.output_distance == 0.5
    assert found.distance_by_chance == pytest.approx(1.36 / 5**0.5, rel=0.01)
    assert found.is_like
