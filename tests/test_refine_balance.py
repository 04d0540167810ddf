"""Which windows the pairs replay: such as gain by the twin what all of the traffic gains."""

from collections.abc import Iterable

import numpy as np
import pytest

from tests.builders import request
from tuner.refine.balance import Windows, balanced
from tuner.refine.knobs import CAP, TOKENS, Configuration
from tuner.refine.objective import GOODPUT, TAIL, Objective
from tuner.refine.screen import Screen
from tuner.scheduler.state import StepLaw
from tuner.slo import Slo, Unloaded
from tuner.twin.simulation import EngineShape, Traffic, met, simulate
from tuner.window import Part, Window
from tuner.workload import Workload, workload_of

SLO = Slo(ttft_s=1.5)
LAW = StepLaw(np.array([0.0, *[0.1] * 4]), 0.01, 0.0, 0.0, 0.0)
SHAPE = EngineShape(max_num_batched_tokens=64, block_size=16, kv_blocks=100, max_model_len=100)
KNEE: Configuration = {CAP: 1, TOKENS: 64}
OTHER: Configuration = {CAP: 4, TOKENS: 64}

Requests = list[tuple[float, int, int]]


def requests(arrival_s: Iterable[float], *, prompt: int = 10) -> Requests:
    """Return requests of 1 s each; a prompt of 95 is longer than the engine takes."""
    return [(float(at_s), prompt, 10) for at_s in arrival_s]


CALM = requests(np.arange(0.0, 600.0, 2.0))
LOST = requests(np.arange(600.0, 800.0, 4.0)) + requests(np.arange(602.0, 800.0, 4.0), prompt=95)
BUSY = requests(np.arange(800.0, 1000.0, 6.0).repeat(3))
"""Where three arrive at once the third is late with one slot."""

DAY = CALM + LOST + BUSY


def screen_of(traffic: Requests) -> Screen:
    return Screen(
        laws=(LAW, LAW),
        shape=SHAPE,
        slo=SLO,
        traffic=Traffic.of(traffic),
        objectives=[GOODPUT],
        knee=KNEE,
    )


def workload(*windows: Window) -> Workload:
    part, unloaded = Part(0.0, 1000.0), Unloaded(0.1, 0.01, 0.1)
    return workload_of([request()], SLO, unloaded, part, windows, 60.0)


TWO = workload(Window(810.0, 30.0, 7.5), Window(860.0, 10.0, 2.5))
"""As of a search that looks at the busiest alone."""


def attained(pair: Windows, cap: int) -> float:
    """Return the share of the requests of some windows of the day that are served in time."""
    good = list[np.bool_]()
    for window in pair:
        begin_s, end_s = window.start_s - window.run_in_s, window.start_s + window.length_s
        traffic = Traffic.of([one for one in DAY if begin_s <= one[0] < end_s])
        replay = simulate(traffic, LAW, SHAPE, max_num_seqs=cap)
        good += met(traffic, replay, SLO)[traffic.arrival_s >= window.start_s].tolist()
    return float(np.mean(good))


@pytest.mark.parametrize("pairs", [4, 8])
def test_what_is_gained_in_the_windows_is_what_is_gained_of_all(pairs: int) -> None:
    screen = screen_of(DAY)
    knee, other = (screen.measurement(0, one).attainment for one in (KNEE, OTHER))
    assert [knee, other] == pytest.approx([0.83, 0.90], abs=0.01)
    assert attained(TWO.windows, 4) - attained(TWO.windows, 1) == pytest.approx(1 / 3, abs=0.02)
    found = balanced(TWO, screen, OTHER, GOODPUT, pairs=pairs)
    gains = [attained(pair, 4) / other - attained(pair, 1) / knee for pair in found]
    assert np.mean(gains) == pytest.approx(0.0, abs=0.01)


def test_each_pair_has_windows_of_its_own_as_long_as_the_searchs() -> None:
    found = balanced(TWO, screen_of(DAY), OTHER, GOODPUT, pairs=8)
    windows = [window for pair in found for window in pair]
    assert [len(pair) for pair in found] == [2] * 8
    assert {window.length_s for window in windows} == {20.0}
    assert {(window.run_in_s, window.weight) for window in windows} == {(5.0, 1.0)}
    assert len({window.start_s for window in windows}) == 16
    assert all(5.0 <= window.start_s <= DAY[-1][0] - 20.0 for window in windows)
    assert all(pair == tuple(sorted(pair, key=lambda one: one.start_s)) for pair in found)
    assert balanced(TWO, screen_of(DAY), OTHER, GOODPUT, pairs=8) == found


def test_where_there_are_few_windows_pairs_share_them() -> None:
    minute = requests(np.arange(0.0, 60.0, 0.6))
    found = balanced(TWO, screen_of(minute), OTHER, GOODPUT, pairs=4)
    starts_s = {window.start_s for pair in found for window in pair}
    assert found != (TWO.windows,) * 4
    assert 2 < len(starts_s) < 8
    assert all(5.0 <= start_s <= minute[-1][0] - 20.0 for start_s in starts_s)


@pytest.mark.parametrize("objective", [GOODPUT, TAIL], ids=lambda one: one.name)
def test_where_all_is_served_in_time_the_tail_decides(objective: Objective) -> None:
    """Two at a time are in time with one slot as well, and the p99 is theirs."""
    screen = screen_of(CALM + requests(np.arange(800.0, 1000.0, 4.0).repeat(2)))
    assert screen.measurement(0, KNEE).attainment == 1.0
    found = balanced(TWO, screen, OTHER, objective, pairs=4)
    assert all(any(window.start_s > 790.0 for window in pair) for pair in found)


def test_the_searchs_windows_stay_where_there_is_nothing_to_choose() -> None:
    same = (TWO.windows,) * 4
    unknown = {**OTHER, "block_size": 32}
    assert balanced(TWO, None, OTHER, GOODPUT, pairs=4) == same
    assert balanced(TWO, screen_of(DAY), unknown, GOODPUT, pairs=4) == same
    assert balanced(TWO, screen_of(BUSY[:12]), OTHER, GOODPUT, pairs=4) == same
    assert balanced(TWO, screen_of(requests(np.zeros(9))), OTHER, GOODPUT, pairs=4) == same
