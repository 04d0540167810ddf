from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.traffic.description import concurrency

INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=25
)


def arrays(intervals: list[tuple[int, int, int]]) -> tuple[Any, Any, Any]:
    begins_s = np.array([float(begin) for begin, _, _ in intervals])
    ends_s = begins_s + [lasted for _, lasted, _ in intervals]
    return begins_s, ends_s, np.array([n for _, _, n in intervals], np.int64)


@settings(max_examples=50)
@given(intervals=INTERVALS)
def test_what_holds_is_what_is_counted_at_every_moment(
    intervals: list[tuple[int, int, int]],
) -> None:
    counted = [
        sum(n for begin, lasted, n in intervals if begin <= second + 0.5 < begin + lasted)
        for second in range(5, 40)
    ]

    begins_s, ends_s, n = arrays(intervals)
    seen = concurrency(begins_s.repeat(n), ends_s.repeat(n), start_s=5.0, end_s=40.0)
    assert seen is not None
    assert seen.mean == pytest.approx(np.mean(counted))
    assert [seen.p50, seen.p90, seen.max] == [sorted(counted)[at] for at in (17, 31, 34)]


@pytest.mark.parametrize("end_s", [1.0, np.nextafter(1.0, 2.0)])
def test_what_begins_at_the_end_holds_for_no_time(end_s: float) -> None:
    begins_s, ends_s = np.array([0.0, end_s]), np.array([9.0, 9.0])
    result = concurrency(begins_s, ends_s, start_s=0.0, end_s=end_s)
    assert result is not None
    assert (result.mean, result.max) == (1.0, 1)
