"""The twin's first look: a mean over the speeds that the machine has at times."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.runs.refine.knobs import CAP, TOKENS, Configuration
from tuner.runs.refine.objective import GOODPUT
from tuner.runs.refine.surrogate import Surrogate, slowdowns_of
from tuner.traffic.slo import Slo
from tuner.twin.simulation import EngineShape, Traffic, simulate

LAW = StepLaw(np.array([0.0, *[0.1] * 4]), 0.01, 0.0, 0.0, 0.0)
SHAPE = EngineShape(max_num_batched_tokens=64, block_size=16, kv_blocks=100, max_model_len=100)
KNEE: Configuration = {CAP: 1, TOKENS: 64}
OTHER: Configuration = {CAP: 4, TOKENS: 64}


def surrogate_of(rows: list[tuple[float, int, int]]) -> Surrogate:
    return Surrogate((LAW, LAW), SHAPE, Slo(ttft_s=1.5), Traffic.of(rows), GOODPUT, KNEE)


TWOS = [(float(at_s), 10, 10) for at_s in np.arange(0.0, 600.0, 10.0).repeat(2)]
"""Two requests at a time, of 1 s each: with one slot the second has its first token after 1.1 s,
of 1.5 s that are allowed."""

SPEED_SD = 0.3
"""The slower speed takes 1.68 times as long: 1.1 s become 1.85 s."""


def surrogate(speed_sd: float) -> Surrogate:
    return replace(surrogate_of(TWOS), slowdowns=slowdowns_of(speed_sd))


def test_what_just_serves_all_at_machine_speed_is_no_match_for_room_to_spare() -> None:
    steady, varying = surrogate(0.0), surrogate(SPEED_SD)
    for cap in (1, 4):
        assert steady.measurement(0, {**KNEE, CAP: cap}).attainment == 1.0
    assert varying.measurement(0, KNEE).attainment == pytest.approx(1 - 0.5 / 6)
    assert varying.measurement(0, OTHER).attainment == 1.0
    gains = [
        foreseen.gain
        for one in (steady, varying)
        for foreseen in [one.foresee(OTHER)]
        if foreseen is not None
    ]
    assert gains[1] > math.log(1 / (1 - 0.5 / 6)) > 0.05 > gains[0]


@pytest.mark.parametrize("speed_sd", [0.0, 0.009, 0.05, 0.3])
def test_slowdowns_have_the_mean_and_the_spread_of_the_speed(speed_sd: float) -> None:
    logs, shares = np.array(
        [(math.log(factor), share) for factor, share in slowdowns_of(speed_sd)]
    ).T
    assert shares.sum() == pytest.approx(1.0)
    assert (shares * logs).sum() == pytest.approx(0.0, abs=1e-12)
    spread = math.sqrt(float((shares * logs**2).sum()))
    assert spread == pytest.approx(speed_sd if speed_sd >= 0.01 else 0.0)


def test_a_slowdown_is_the_whole_laws() -> None:
    """Twice as slow a machine serves traffic that comes at half the rate twice as late."""
    law = StepLaw(np.array([0.0, 0.1, 0.15, 0.2, 0.3]), 0.01, 1e-4, 0.02, 1e-4)
    slow = replace(surrogate(0.0), laws=(law,), slowdowns=((2.0, 1.0),))
    half = replace(slow.traffic, arrival_s=2 * slow.traffic.arrival_s)
    lawful = simulate(slow.traffic, law, SHAPE, max_num_seqs=4)
    late = replace(slow, traffic=half).measurement(0, OTHER).e2el_s
    assert late is not None
    assert late.p99 == pytest.approx(2 * float(np.quantile(lawful.e2el_s, 0.99)), rel=0.01)
