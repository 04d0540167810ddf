"""The windows in which knee and refined are compared in turns."""

from itertools import combinations

import numpy as np
import pytest

from tests.support.builders import request
from tuner.runs.refine.refine import windows_of_pairs
from tuner.traffic.slo import Slo, Unloaded
from tuner.traffic.window import Part, Window
from tuner.traffic.workload import Workload, workload_of

OWN = (Window(10.0, 30.0, 7.5), Window(60.0, 10.0, 2.5))


def workload(*arrivals_s: float, length_s: float = 1000.0) -> Workload:
    traffic = [request(row, arrival_s=at_s) for row, at_s in enumerate(arrivals_s)]
    part, unloaded = Part(0.0, length_s), Unloaded(0.1, 0.01, 0.1)
    return workload_of(traffic, Slo(ttft_s=1.5), unloaded, part, OWN, 60.0)


@pytest.mark.parametrize("pairs", [4, 8])
def test_each_pair_has_windows_of_its_own_spread_over_the_part(pairs: int) -> None:
    result = windows_of_pairs(workload(*np.arange(0.0, 1000.0)), pairs)
    assert len(result) == pairs
    for pair in result:
        assert [(each.length_s, each.run_in_s) for each in pair] == [(30.0, 7.5), (10.0, 2.5)]
    every = [each for pair in result for each in pair]
    assert all(each.run_in_s <= each.start_s <= 1000.0 - each.length_s for each in every)
    inside = [each for each in every if each.start_s + each.length_s < 1000.0]
    for each_two in combinations(inside, 2):
        first, second = sorted(each_two, key=lambda each: each.start_s)
        assert first.start_s + first.length_s <= second.start_s + 1e-6
    starts = [each.start_s for each in every]
    assert max(starts) - min(starts) > 700


def test_no_window_is_empty_and_without_room_each_pair_has_the_searchs() -> None:
    assert windows_of_pairs(workload(*np.arange(0.0, 100.0), length_s=90.0), 4) == (OWN,) * 4
    arrivals_s = [*np.arange(0.0, 100.0), *np.arange(900.0, 1000.0)]
    for pair in windows_of_pairs(workload(*arrivals_s), 2):
        for each in pair:
            assert any(each.start_s <= at_s < each.start_s + each.length_s for at_s in arrivals_s)
