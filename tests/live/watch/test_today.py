"""Requests like today's: as many and as long as the server counted."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.live_sim import LENGTHS, poisson, simulated
from tuner.engines.sim.world import World, WorldStep
from tuner.live.prometheus import Histogram
from tuner.live.watch.today import MOST_REQUESTS, arrivals, lengths_like, traffic_like
from tuner.live.watch.windows import ScrapeStep, WindowMaker, total
from tuner.twin.simulation import Traffic

WORLD = World(step=WorldStep(a=0.02, b=0.0005, c=1e-5))
STORED = poisson(2.0, 600.0, seed=1)


def counted(lengths: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Histogram:
    counts = tuple(float((lengths <= bound).sum()) for bound in LENGTHS)
    return Histogram(LENGTHS, counts, float(lengths.sum()))


def steps_of(rate_rps: float, cap: int = 16) -> tuple[tuple[ScrapeStep, ...], int]:
    """Return the steps of a minute, and how many requests arrived in it."""
    traffic = poisson(rate_rps, 120.0, seed=2)
    server = simulated(WORLD, traffic, cap=cap, until_s=120.0)
    maker = WindowMaker(60.0, 2.0, 0.0)
    found = [maker.add(at_s, {"0": server.scrape(at_s)}) for at_s in map(float, range(0, 122, 2))]
    window = [one for one in found if one is not None][1]
    inside = (traffic.arrival_s > window.begin_s) & (traffic.arrival_s <= window.end_s)
    return window.steps["0"], int(inside.sum())


@pytest.mark.parametrize("cap", [16, 2], ids=["nothing queues", "much queues"])
def test_as_many_arrive_as_arrived(cap: int) -> None:
    steps, arrived = steps_of(3.0, cap)
    assert int(arrivals(steps).sum()) == pytest.approx(arrived, abs=2)


def test_lengths_have_todays_mean_and_todays_share_in_every_bucket() -> None:
    today = poisson(2.0, 600.0, seed=3, output=200)
    inputs, outputs = lengths_like(
        counted(today.input_length), counted(today.output_length), STORED, count=1000, seed=0
    )
    for ours, theirs in ((inputs, today.input_length), (outputs, today.output_length)):
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.02)
        for bound in LENGTHS[:-1]:
            assert np.mean(ours <= bound) == pytest.approx(np.mean(theirs <= bound), abs=0.01)


def test_which_output_goes_with_which_prompt_is_as_in_the_profile() -> None:
    inputs = np.array([30, 150] * 200)
    outputs = np.where(inputs == 30, 15, 300)
    stored = Traffic(np.arange(400) * np.float64(1), inputs, outputs, np.zeros(400, np.int64))
    ours = lengths_like(counted(inputs), counted(outputs), stored, count=400, seed=0)
    together = [np.mean((ours[1] > 100) == (ours[0] > 100))]
    assert together[0] > 0.95


def test_those_in_flight_at_the_begin_arrive_before_it() -> None:
    steps, _ = steps_of(6.0, 2)
    assert steps[0].in_flight > 20
    traffic = traffic_like(steps, STORED, seed=0)
    assert (traffic.arrival_s < steps[0].begin_s).sum() == round(steps[0].in_flight)
    assert (np.diff(traffic.arrival_s) >= 0).all()


def test_more_in_flight_than_can_be_is_no_error() -> None:
    steps, _ = steps_of(6.0, 2)
    endless = (replace(steps[0], in_flight=float("inf")), *steps[1:])
    assert len(traffic_like(endless, STORED, seed=0).arrival_s) >= MOST_REQUESTS


def test_without_a_finished_request_the_stored_ones_stand_for_themselves() -> None:
    none = Histogram(LENGTHS, (0.0,) * len(LENGTHS), 0.0)
    inputs, outputs = lengths_like(none, None, STORED, count=50, seed=0)
    assert set(inputs) <= set(STORED.input_length)
    assert set(outputs) <= set(STORED.output_length)


def test_the_same_seed_gives_the_same_requests() -> None:
    steps, _ = steps_of(3.0)
    one, other = (traffic_like(steps, STORED, seed=5) for _ in range(2))
    assert np.array_equal(one.arrival_s, other.arrival_s)
    assert np.array_equal(one.output_length, other.output_length)
    lengths = total(steps, "output_length")
    assert lengths is not None
