"""Tests that may be looked at all the time: silent while nothing changed, and soon heard after."""

import math

import numpy as np
import pytest

from tuner.live.watch.sequential import ARL, Monitor, MonitorLimits, interval, long_run_variance
from tuner.live.watch.verdict import SPEED_REACH

BAND = MonitorLimits(0.75, 1.25, reach=0.75)
ONE_SIDED = MonitorLimits(-math.inf, 0.1, reach=0.4)


def watched(
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]", limits: MonitorLimits
) -> Monitor:
    monitor = Monitor(limits, 0.1)
    for value in values.tolist():
        monitor.add(value)
    return monitor


def test_a_mean_within_its_limits_is_called_so_and_stays_so() -> None:
    values = np.random.default_rng(0).normal(1.0, 0.2, 2000)
    assert watched(values[:100], BAND).state == "within"
    assert watched(values, BAND).state == "within"


@pytest.mark.parametrize(("mean", "state"), [(2.0, "above"), (0.2, "below")])
def test_a_change_is_noticed_after_a_long_calm_and_dated(mean: float, state: str) -> None:
    rng = np.random.default_rng(1)
    calm, after = rng.normal(1.0, 0.2, 500), rng.normal(mean, 0.2, 100)
    monitor = watched(np.concatenate((calm, after)), BAND)
    assert monitor.state == state
    assert abs(monitor.changed_at - 500) <= 2
    found = monitor.interval()
    assert found is not None
    assert found.low < mean < found.high


def test_what_came_back_is_within_again() -> None:
    rng = np.random.default_rng(2)
    parts = [rng.normal(mean, 0.2, 200) for mean in (1.0, 2.0, 1.0)]
    monitor = watched(np.concatenate(parts), BAND)
    assert monitor.state == "within"
    assert monitor.changed_at >= 400


def test_no_single_window_decides_however_wild() -> None:
    monitor = watched(np.array([1.0] * 50 + [1e12] + [1.0] * 50), BAND)
    assert monitor.state == "within"


def test_a_number_that_cannot_be_squared_leaves_an_interval() -> None:
    monitor = watched(np.array([1.0] * 50 + [1e300] + [1.0] * 50), BAND)
    with np.errstate(all="raise"):
        found = monitor.interval()
    assert found is not None
    assert math.isfinite(found.low)
    assert math.isfinite(found.high)


def test_only_more_is_worse_where_there_is_no_lower_limit() -> None:
    assert watched(np.full(100, -5.0), ONE_SIDED).state == "within"
    assert watched(np.full(100, 0.4), ONE_SIDED).state == "above"


def test_at_the_very_limit_false_alarms_are_as_rare_as_promised() -> None:
    rng = np.random.default_rng(3)
    alarms = sum(
        watched(
            1.25 + rng.choice([-0.5, 0.5], 200), MonitorLimits(-math.inf, 1.25, reach=0.75)
        ).is_beyond
        for _ in range(300)
    )
    assert alarms <= 300 * 200 / ARL + 3


@pytest.mark.parametrize("wild", ["normal", "student"])
def test_windows_that_spread_far_more_than_the_reach_raise_no_more_false_alarms(wild: str) -> None:
    """The mean is just at the limit, where one watch of 50 may alarm within 200 windows."""
    rng = np.random.default_rng(6)
    draws = rng.standard_normal(30_000) if wild == "normal" else rng.standard_t(3, 30_000)
    speed = MonitorLimits(-math.inf, 0.1, SPEED_REACH)
    alarms = sum(watched(one, speed).is_beyond for one in 0.1 + 0.3 * draws.reshape(150, 200))
    assert alarms <= 150 * 200 / ARL + 3


def test_before_any_window_nothing_is_known() -> None:
    monitor = Monitor(BAND, 0.1)
    assert (monitor.state, monitor.interval(), monitor.evidence) == ("unknown", None, 0.0)


def test_intervals_hold_the_mean_at_all_times_at_once() -> None:
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(100):
        values = rng.normal(0.0, 1.0, 150)
        found = [interval(values[:size], prior_sd=1.0) for size in range(2, 150, 4)]
        missed += any(not one.low <= 0.0 <= one.high for one in found)
    assert missed <= 8


def test_windows_that_resemble_their_neighbours_count_for_less() -> None:
    rng = np.random.default_rng(5)
    alone = rng.normal(0.0, 1.0, 800)
    alike = np.repeat(alone[:200], 4)
    assert long_run_variance(alike, prior_sd=1.0) > 2 * long_run_variance(alone, prior_sd=1.0)


def test_memory_is_bounded() -> None:
    monitor = watched(np.full(5000, 1.0), BAND)
    assert len(monitor._values) < 3000
    assert monitor.windows == 5000
