"""The front end as two numbers: found in probes, and felt by clients."""

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.replay.records import ProbeResult, e2el_s, ttft_s
from tuner.twin.check import fit_front_end
from tuner.twin.simulation import EngineShape, FrontEnd, Traffic, simulate

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
LAW = StepLaw(np.full(9, 0.020), 0.0, 0.0, 0.0, 0.0)
TRAFFIC = Traffic.of((float(at_s), 10, 11) for at_s in range(20))


def probe(at_s: float) -> ProbeResult:
    """Return a lone request: 5 ms ahead, ten gaps of 25 ms instead of 20, 3 ms of delivery."""
    times = (0.0, 0.005, 0.030, 0.280, 0.033, 0.283)
    return ProbeResult(10, 0.033, 0.025, 11, tuple(at_s + each for each in times))


def test_what_probes_show_is_found() -> None:
    result = fit_front_end(LAW, [probe(float(at_s)) for at_s in range(6)])
    assert result is not None
    assert (result.contention, result.delay_s) == pytest.approx((1.25, 0.008))
    assert fit_front_end(LAW, [probe(0.0)] * 4) is None


def test_clients_feel_both() -> None:
    plain = simulate(TRAFFIC, LAW, SHAPE, max_num_seqs=8).requests
    front_end = FrontEnd(1.5, 0.3)
    behind = simulate(TRAFFIC, LAW, SHAPE, max_num_seqs=8, front_end=front_end).requests
    assert behind["tpot_s"] == pytest.approx(1.5 * plain["tpot_s"])
    assert ttft_s(behind) == pytest.approx(0.3 + 1.5 * ttft_s(plain))
    assert e2el_s(behind) == pytest.approx(ttft_s(behind) + 10 * behind["tpot_s"])
