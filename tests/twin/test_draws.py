"""Draws against runs of the scheduler model under a known law: what they say must be kept."""

import numpy as np
import pytest

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.traffic.slo import Slo
from tuner.twin.believed import Beliefs
from tuner.twin.draws import (
    FINE_S,
    FINER,
    UNKNOWN,
    MachineHistory,
    PredictedRanges,
    draws_of,
    flicker_of,
    promised,
    slowdown_of,
)
from tuner.twin.load import another_day
from tuner.twin.simulation import EngineShape, Slowdown, Traffic, TwinReplay, attainment, simulate

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
LAW = StepLaw(np.linspace(0.020, 0.028, 9), 1e-4, 0.0, 0.0, 0.0)
SLO = Slo(ttft_s=1.0)
SURE = Beliefs(start_sd=0.0, ttft_sd=0.0, tpot_sd=0.0)


def steady() -> Traffic:
    arrivals = np.linspace(0, 60, 100, endpoint=False).tolist()
    return Traffic.of((at_s, 100, 20) for at_s in arrivals)


def stalled(every_s: float, *, for_s: float) -> TwinReplay:
    """Return what an engine did that stood still for a moment, over and over."""
    cells = np.arange(round(70 / FINE_S))
    still = cells % round(every_s / FINE_S) < round(for_s / FINE_S)
    slow = Slowdown(np.where(still, 500.0, 1.0), 0.0, FINE_S)
    return simulate(steady(), LAW, SHAPE, max_num_seqs=8, slowdown=slow, log=True)


def late(machine: MachineHistory) -> Floats:
    """Return the p95 of TPOT in each of some draws."""
    draws = draws_of([LAW] * 20, machine, [steady()], believed=SURE)
    replays = [one.replay(steady(), SHAPE, max_num_seqs=8) for one in draws]
    return np.array([np.quantile(one.tpot_s, 0.95) for one in replays])


def test_a_stall_is_as_long_for_a_request_in_the_draws_as_it_was() -> None:
    """Requests of half a second, one in eight of which stands still for 0.3 s in the middle."""
    seen = stalled(5.0, for_s=0.3)
    slowdown = slowdown_of(seen.iterations, LAW)
    assert slowdown is not None
    measured = np.quantile(seen.tpot_s, 0.95)
    coarse = late(MachineHistory(slowdown.factors))
    fine = late(MachineHistory(slowdown.factors, flicker=flicker_of([seen.iterations], LAW)))
    assert np.median(fine) == pytest.approx(measured, rel=0.1)
    assert np.median(coarse) < 0.8 * measured


def test_what_flickers_makes_nothing_slower_in_the_long_run() -> None:
    """As much is done in every 2.5 s with it as without."""
    found = flicker_of([stalled(5.0, for_s=0.3).iterations], LAW).reshape(-1, FINER)
    done = (1 / found).mean(axis=1)
    assert done[2:-2] == pytest.approx(1.0, abs=0.05)
    assert found.max() > 10


def test_an_engine_that_goes_by_its_law_does_not_flicker() -> None:
    log = simulate(steady(), LAW, SHAPE, max_num_seqs=8, log=True).iterations
    assert flicker_of([log], LAW) == pytest.approx(1.0)
    assert not len(flicker_of([], LAW))


def day(number: int) -> Traffic:
    """Return twenty minutes of a busy service, as every day has them."""
    rng = np.random.default_rng((5, number))
    arrivals = np.sort(rng.uniform(0, 1200, rng.poisson(4800))).tolist()
    return Traffic.of((at_s, 100, int(rng.integers(20, 100))) for at_s in arrivals)


def numbers(traffic: Traffic) -> dict[str, float]:
    replay = simulate(traffic, LAW, SHAPE, max_num_seqs=8)
    return {
        "attainment": attainment(traffic, replay, SLO),
        "ttft_p95_s": float(np.quantile(replay.ttft_s, 0.95)),
        "e2el_p95_s": float(np.quantile(replay.e2el_s, 0.95)),
    }


def test_other_days_are_within_what_one_day_says_of_them() -> None:
    """Of eight pairs of days on a machine that is always the same, the second by what the first
    says; what it says of the same traffic again does not speak for other days."""
    kept = {"another day": 0, "again": 0}
    for pair in range(8):
        one, other = day(2 * pair), numbers(day(2 * pair + 1))
        days = [another_day(one, 1200.0, np.random.default_rng(number)) for number in range(40)]
        for name, traffics in (("another day", days), ("again", [one])):
            said = said_of([each for each in traffics if each is not None])
            kept[name] += sum(low <= other[key] <= high for key, (low, high) in said.ranges.items()
                              if key in other)  # fmt: skip
    assert kept["another day"] >= 0.9 * 24
    assert kept["again"] < 0.75 * 24


def said_of(traffics: list[Traffic]) -> PredictedRanges:
    draws = draws_of([LAW] * 40, UNKNOWN, traffics, believed=SURE)
    return promised(traffics, draws, SHAPE, SLO, max_num_seqs=8)
