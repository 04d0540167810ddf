from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.traffic import levels as module
from tuner.traffic.levels import Held, Levels, count_held, count_levels, look_held

INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=25
)


def arrays(found: list[tuple[int, int, int]]) -> tuple[Any, Any, Any]:
    begins_s = np.array([float(begin) for begin, _, _ in found])
    ends_s = begins_s + [lasted for _, lasted, _ in found]
    return begins_s, ends_s, np.array([n for _, _, n in found], np.int32)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=INTERVALS, weighted=st.booleans())
def test_counting_a_part_at_a_time_is_counting_at_every_moment(
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    found: list[tuple[int, int, int]],
    *,
    weighted: bool,
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    counted = [
        sum(
            n if weighted else 1
            for begin, lasted, n in found
            if begin <= second + 0.5 < begin + lasted
        )
        for second in range(5, 40)
    ]

    def of(count: Callable[..., Any]) -> Any:  # noqa: ANN401 - Levels or Held
        begins_s, ends_s, n = arrays(found)
        return count(begins_s, ends_s, n if weighted else None, start_s=5.0, end_s=40.0)

    series: Levels = of(count_levels)
    assert np.repeat(series.level, series.duration_s.astype(int)).tolist() == counted
    for held in (series.held(), of(count_held)):
        assert isinstance(held, Held)
        assert dict(zip(held.level.tolist(), held.seconds.tolist(), strict=True)) == {
            level: counted.count(level) for level in counted
        }
    assert series.longest_above_s(1) == longest(counted, 1)
    edges_s = np.array([0.0, 5.0, 6.0, 13.0, 40.0, 41.0])
    assert series.highest_in(edges_s) == [
        None, counted[0], max(counted[1:8]), max(counted[8:]), None,
    ]  # fmt: skip


def longest(counted: list[int], above: int) -> int:
    runs = "".join("x" if level > above else " " for level in counted).split()
    return max(map(len, runs), default=0)


def test_levels_beyond_counting_in_a_table_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DENSE", 5)
    begins_s, ends_s = np.array([0.0, 1.0]), np.array([4.0, 3.0])
    found = count_held(begins_s, ends_s, np.array([10, 90]), start_s=0.0, end_s=5.0)
    assert found is not None
    assert (found.level.tolist(), found.seconds.tolist()) == ([0, 10, 100], [1.0, 2.0, 2.0])
    assert (found.mean(), found.max(), found.share_above(10)) == (44.0, 100, 0.4)
    assert found.quantiles(0.2, 0.6, 0.61) == (0, 10, 100)


def test_an_empty_time_holds_nothing() -> None:
    begins_s, ends_s = np.array([0.0]), np.array([1.0])
    assert count_levels(begins_s, ends_s, None, start_s=1.0, end_s=1.0) is None
    assert count_held(begins_s, ends_s, None, start_s=1.0, end_s=1.0) is None


@pytest.mark.parametrize("end_s", [1.0, np.nextafter(1.0, 2.0)])
def test_what_begins_at_the_end_holds_for_no_time(end_s: float) -> None:
    begins_s, ends_s = np.array([0.0, end_s]), np.array([9.0, 9.0])
    found = count_held(begins_s, ends_s, None, start_s=0.0, end_s=end_s)
    assert found is not None
    assert found.level.tolist() == [1]


@settings(max_examples=25)  # each looks some thousand times
@given(found=INTERVALS, weighted=st.booleans())
def test_looks_see_what_counting_finds(
    found: list[tuple[int, int, int]], *, weighted: bool
) -> None:
    begins_s, ends_s, n = arrays(sorted(found))
    weight, lasts = n if weighted else None, ends_s - begins_s
    seen = look_held(begins_s, lasts / 2, weight, starts_s={2.0: 5.0, 0.0: 5.0}, end_s=37.0)
    counted = [
        count_held(begins_s.copy(), ends, weight, start_s=max(5.0, begins_s[0]), end_s=37.0)
        for ends in (ends_s, begins_s.copy())
    ]
    for one, other in zip(seen, counted, strict=True):
        assert one is not None
        assert other is not None
        assert one.level.tolist() == other.level.tolist()
        assert one.seconds == pytest.approx(other.seconds, abs=0.01)


def test_no_time_is_not_looked_at() -> None:
    begins_s = np.array([1.0])
    assert look_held(begins_s, begins_s, None, starts_s={1.0: 1.0}, end_s=1.0) == [None]
