import numpy as np

from tuner.twin.load import Loads, loads_of, scaled
from tuner.twin.simulation import Traffic

EVERY_SECOND = Traffic.of((float(second), second + 1, 10) for second in range(100))


def test_a_quarter_more_load_is_25_copies_of_100_requests() -> None:
    found = scaled(EVERY_SECOND, 1.25, np.random.default_rng(0))
    assert len(found) == 125
    lengths, counts = np.unique(found.input_length, return_counts=True)
    assert lengths.tolist() == list(range(1, 101))
    assert sorted(counts.tolist()) == [1] * 75 + [2] * 25


def test_copies_come_within_two_seconds_and_within_the_time_of_the_traffic() -> None:
    found = scaled(EVERY_SECOND, 3.0, np.random.default_rng(0))
    off_s = found.arrival_s - (found.input_length - 1)
    assert np.abs(off_s).max() <= 2
    assert (found.arrival_s.min(), found.arrival_s.max()) == (0, 99)
    assert (np.diff(found.arrival_s) >= 0).all()


def test_the_headroom_is_asked_with_five_copies_in_turn() -> None:
    loads = loads_of(EVERY_SECOND, 1.25, seed=0)
    assert len(loads.raised) == 5
    assert loads.drawn(7) is loads.raised[2]
    assert not np.array_equal(loads.raised[0].arrival_s, loads.raised[1].arrival_s)
    assert loads.today is EVERY_SECOND


def test_without_headroom_today_alone_is_asked() -> None:
    assert loads_of(EVERY_SECOND, 1.0, seed=0) == Loads(EVERY_SECOND)
