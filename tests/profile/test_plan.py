"""The stored twin, asked about other loads and fleets."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.profile import plan
from tuner.profile.evidence import StoredTwin
from tuner.profile.plan import Fleet, FleetRouter
from tuner.traffic.constants import DRAWS, START_SD, TTFT_SD
from tuner.traffic.routing import least_in_flight
from tuner.traffic.slo import Slo
from tuner.twin.front_end import FrontEnd
from tuner.twin.samples import Machine
from tuner.twin.simulation import EngineShape, Traffic

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
LAW = StepLaw(np.full(9, 0.010), 0.0, 0.0, 0.0, 0.0)
"""10 ms an iteration, whatever the batch: 8 slots of 100 tokens serve 8 requests a second."""

SLO = Slo(ttft_s=0.5)


def twin(rate_rps: float = 6.0, length_s: float = 200.0) -> StoredTwin:
    rng = np.random.default_rng(1)
    arrivals = np.sort(rng.uniform(0, length_s, int(rate_rps * length_s)))
    return StoredTwin(
        law=LAW,
        shape=SHAPE,
        extrapolated_from=8,
        laws=(LAW,) * 40,
        machine=Machine(),
        traffic=Traffic.of((at_s, 10, 100) for at_s in arrivals.tolist()),
        length_s=length_s,
    )


def fleet(load: float, router: FleetRouter = "least") -> Fleet:
    return Fleet(twin(), SLO, load, router)


@pytest.mark.parametrize("router", get_args(FleetRouter))
def test_replicas_share_the_load_evenly(router: FleetRouter) -> None:
    parts = fleet(10.0, router).parts(20)
    assert len(parts) == 4
    for part in parts:
        assert len(part) == pytest.approx(600, rel=0.15)
        assert (np.diff(part.arrival_s) >= 0).all()
        assert part.arrival_s[-1] <= 200.0


def test_a_front_end_takes_what_it_adds_from_the_limit() -> None:
    slow = replace(twin(), machine=Machine(front_end=FrontEnd(delivery_s=1.0)))
    before = fleet(0.3).ask((8,), replicas=1)
    behind = replace(fleet(0.3), twin=slow).ask((8,), replicas=1)
    assert before.middle("attainment", 8) == 1.0
    assert behind.middle("attainment", 8) == 0.0
    # the draws scale what is before the first token, by a median of 1 within its standard error
    later_s = behind.middle("e2el_p99_s", 8) - before.middle("e2el_p99_s", 8)
    assert later_s == pytest.approx(1.0, abs=2 * 1.25 * TTFT_SD / math.sqrt(DRAWS))


def needed(load: float, router: FleetRouter) -> int:
    result = fleet(load, router).replicas_for(8, attainment=0.95)
    assert result is not None
    return result


def test_the_replicas_that_a_load_needs_follow_from_what_one_serves() -> None:
    # 60 requests a second; a server that serves 8 must not be quite full, however slow it starts.
    fewest = 60 / 8 * math.exp(1.96 * START_SD)
    by_load = needed(10.0, "least")
    assert fewest < by_load < 1.5 * fewest
    assert by_load < needed(10.0, "random") < 2 * fewest


def test_a_large_fleet_needs_as_many_more_as_it_gets_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_ROUTED", 50_000)  # 40 times the traffic is a little less
    monkeypatch.setattr(plan, "DRAWS", 20)
    assert needed(400.0, "least") == pytest.approx(10 * needed(40.0, "least"), rel=0.05)


def test_an_slo_that_nothing_meets_needs_more_than_there_are() -> None:
    impossible = replace(fleet(1.0, "random"), slo=Slo(ttft_s=0.001))
    assert impossible.replicas_for(8, attainment=0.9) is None


def test_a_request_goes_to_the_replica_with_the_fewest_in_flight_in_turn_among_equals() -> None:
    arrival_s = np.array([0.0, 1.0, 2.0, 3.0, 10.0])
    lasting_s = np.array([9.0, 1.5, 9.0, 9.0, 1.0])
    # 0 and 1 in turn; 2 is the third; at 3 s the second one is free again; at 10 s the first.
    assert least_in_flight(arrival_s, lasting_s, 3).tolist() == [0, 1, 2, 1, 0]
