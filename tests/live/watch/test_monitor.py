"""A measure alarms rarely while it is as it should be, and soon when it is not."""

import math

import numpy as np
import pytest

from tuner.live.watch.monitor import KEPT, Limits, Monitor

LIMITS = Limits(0.9, 1.1)


def of(values: list[float], limits: Limits = LIMITS) -> Monitor:
    monitor = Monitor(limits, 0.05)
    for value in values:
        monitor.add(value)
    return monitor


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ([], "unknown"),
        ([1.0], "unknown"),
        ([2.0, 2.0], "unknown"),
        ([1.0] * 5, "within"),
        ([1.3] * 5, "above"),
        ([0.7] * 5, "below"),
        ([1.0] * KEPT + [1.4] * 5, "above"),
        ([1.4] * 5 + [1.0] * (KEPT + 5), "within"),
        ([1e300] * 5, "above"),
    ],
)
def test_the_state_follows_from_the_batches(values: list[float], state: str) -> None:
    assert of(values).state == state


def test_the_interval_holds_the_mean() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        interval = of(rng.normal(1.0, 0.05, 10).tolist()).interval()
        assert interval is not None
        held += interval.low <= 1.0 <= interval.high
    assert held >= 0.92 * 300


def test_looking_after_every_batch_alarms_rarely_just_at_the_limit() -> None:
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(200):
        monitor = Monitor(Limits(-math.inf, 1.0), 0.05)
        for value in rng.normal(1.0, 0.05, 30).tolist():
            monitor.add(value)
            if monitor.is_beyond:
                alarms += 1
                break
    assert alarms <= 6
