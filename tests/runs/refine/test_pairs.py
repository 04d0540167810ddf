"""The windows in which knee and refined are compared in turns."""

from itertools import pairwise

import numpy as np
import pytest

from tests.support.builders import request
from tuner.runs.refine.refine import windows_of_pairs
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import Workload, workload_of

OWN = Window(10.0, 30.0, 7.5)


def workload(*arrivals_s: float, length_s: float = 1000.0) -> Workload:
    traffic = [request(row, arrival_s=at_s) for row, at_s in enumerate(arrivals_s)]
    part, unloaded = Part(0.0, length_s), Unloaded(0.1, 0.01, 0.1)
    return workload_of(traffic, Slo(ttft_s=1.5), unloaded, part, [OWN], 60.0)


@pytest.mark.parametrize("pairs", [4, 8])
def test_each_pair_has_a_window_of_its_own_spread_over_the_part(pairs: int) -> None:
    result = windows_of_pairs(workload(*np.arange(0.0, 1000.0)), pairs)
    assert [(each.length_s, each.run_in_s) for each in result] == [(30.0, 7.5)] * pairs
    assert all(each.run_in_s <= each.start_s <= 1000.0 - each.length_s for each in result)
    for first, second in pairwise(result):
        assert first.start_s + first.length_s <= second.start_s + 1e-6
    assert result[-1].start_s - result[0].start_s > 700


def test_no_window_is_empty_and_without_room_each_pair_has_the_searchs() -> None:
    assert windows_of_pairs(workload(*np.arange(0.0, 60.0), length_s=70.0), 4) == (OWN,) * 4
    arrivals_s = [*np.arange(0.0, 100.0), *np.arange(900.0, 1000.0)]
    for each in windows_of_pairs(workload(*arrivals_s), 2):
        assert any(each.start_s <= at_s < each.start_s + each.length_s for at_s in arrivals_s)
