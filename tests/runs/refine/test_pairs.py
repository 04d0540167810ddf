"""The windows in which knee and refined are compared in turns."""

from itertools import pairwise

import numpy as np
import pytest

from tests.support.builders import request
from tuner.runs.pairs import spread_windows
from tuner.traffic.window import Window

OWN = Window(10.0, 30.0, 7.5)


def spread(count: int, *arrivals_s: float, length_s: float = 1000.0) -> tuple[Window, ...]:
    traffic = [request(row, arrival_s=at_s) for row, at_s in enumerate(arrivals_s)]
    return spread_windows(traffic, Window(0.0, length_s), OWN, count)


@pytest.mark.parametrize("pairs", [4, 8])
def test_each_pair_has_a_window_of_its_own_spread_over_the_part(pairs: int) -> None:
    result = spread(pairs, *np.arange(0.0, 1000.0))
    assert [(each.length_s, each.run_in_s) for each in result] == [(30.0, 7.5)] * pairs
    assert all(each.run_in_s <= each.start_s <= 1000.0 - each.length_s for each in result)
    for first, second in pairwise(result):
        assert first.start_s + first.length_s <= second.start_s + 1e-6
    assert result[-1].start_s - result[0].start_s > 700


def test_no_window_is_empty_and_without_room_each_pair_has_the_searchs() -> None:
    assert spread(4, *np.arange(0.0, 60.0), length_s=70.0) == (OWN,) * 4
    arrivals_s = [*np.arange(0.0, 100.0), *np.arange(900.0, 1000.0)]
    for each in spread(2, *arrivals_s):
        assert any(each.start_s <= at_s < each.start_s + each.length_s for at_s in arrivals_s)
