"""The stored twin, asked about other loads and fleets."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.profiles import ENGINE, profile, resealed, step
from tuner.engines.scheduler.state import StepLaw
from tuner.profile.evidence import StoredTwin
from tuner.profile.plan import Fleet
from tuner.profile.profile import SloSection
from tuner.traffic.constants import START_SD
from tuner.traffic.load import least_in_flight
from tuner.twin.samples import Machine
from tuner.twin.simulation import EngineShape, FrontEnd, Traffic

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
LAW = StepLaw(np.full(9, 0.010), 0.0, 0.0, 0.0, 0.0)
"""10 ms an iteration, whatever the batch: 8 slots of 100 tokens serve 8 requests a second."""

SLO = SloSection(
    ttft_ms=500.0, ttft_ms_per_input_token=None, tpot_ms=None, e2el_ms=None, derived=False
)


ROUTERS = ("least", "rr", "random")


def fleet(
    load: float, router: str = "least", machine: Machine | None = None, given: int | None = None
) -> Fleet:
    rng = np.random.default_rng(1)
    arrivals = np.sort(rng.uniform(0, 200.0, 1200)).tolist()
    twin = StoredTwin(
        law=LAW,
        shape=SHAPE,
        extrapolated_from=8,
        laws=(LAW,) * 40,
        machine=machine or Machine(),
        traffic=Traffic.of((at_s, 10, 100) for at_s in arrivals),
        length_s=200.0,
    )
    plain = profile(engine={**ENGINE, "max_num_seqs": 8}, curve=(step(8),), router=router)
    result = Fleet(
        resealed(plain, decision=replace(plain.decision, slo=SLO)), twin, load, given=given
    )
    result.target = 0.95
    return result


def needed(load: float, router: str) -> int:
    result = fleet(load, router).needed
    assert result is not None
    return result


def test_the_replicas_that_a_load_needs_follow_from_what_one_serves() -> None:
    # 60 requests a second; a server that serves 8 must not be quite full, however slow it starts.
    fewest = 60 / 8 * math.exp(1.96 * START_SD)
    by_load = needed(10.0, "least")
    assert fewest < by_load < 1.5 * fewest
    assert by_load <= needed(10.0, "rr") < 2 * fewest
    assert by_load < needed(10.0, "random") < 2 * fewest
    assert needed(400.0, "least") == pytest.approx(40 * by_load, rel=0.1)


@pytest.mark.parametrize("router", ROUTERS)
def test_replicas_share_the_load_evenly(router: str) -> None:
    samples = fleet(10.0, router, given=25).samples
    assert samples.middle("goodput_rps", 8) == pytest.approx(2.4)
    assert samples.middle("attainment", 8) == 1.0
    assert 4 <= samples.middle("running_peak", 8) <= 8


def test_a_front_end_takes_what_it_adds_from_the_limit() -> None:
    behind = Machine(front_end=FrontEnd(delay_s=1.0))
    for machine, share in ((None, 1.0), (behind, 0.0)):
        item = fleet(0.3, machine=machine, given=1)
        assert item.samples.middle("attainment", 8) == share


def test_an_slo_that_nothing_meets_needs_more_than_there_are() -> None:
    impossible = fleet(1.0, "random", machine=Machine(front_end=FrontEnd(delay_s=1.0)))
    assert (impossible.needed, impossible.needed_by_cap) == (None, {8: None})


def test_a_request_goes_to_the_replica_with_the_fewest_in_flight_in_turn_among_equals() -> None:
    arrival_s = np.array([0.0, 1.0, 2.0, 3.0, 10.0])
    lasting_s = np.array([9.0, 1.5, 9.0, 9.0, 1.0])
    # 0 and 1 in turn; 2 is the third; at 3 s the second one is free again; at 10 s the first.
    assert least_in_flight(arrival_s, lasting_s, 3).tolist() == [0, 1, 2, 1, 0]
