"""Draws of a machine: stalls that were measured, its starts, and how far it is believed."""

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.traffic.slo import Slo
from tuner.twin.draws import MachineHistory, draws_of, promised
from tuner.twin.simulation import EngineShape, Traffic

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
LAW = StepLaw(np.linspace(0.020, 0.028, 9), 1e-4, 0.0, 0.0, 0.0)
TRAFFIC = Traffic.of((at_s, 100, 20) for at_s in np.linspace(0, 60, 100, endpoint=False).tolist())


def half_width(name: str, machine: MachineHistory) -> float:
    draws = draws_of([LAW] * 100, machine, [TRAFFIC])
    found = promised([TRAFFIC], draws, SHAPE, Slo(ttft_s=1.0), max_num_seqs=8)
    low, high = found.ranges[name]
    return (high - low) / 2 / found.middle[name]


def test_a_quiet_machine_is_promised_sharply_and_a_shared_one_is_not() -> None:
    quiet, shared = (MachineHistory(np.ones(24), speed_sd=sd) for sd in (0.004, 0.05))
    for name in ("tpot_p95_s", "e2el_p99_s", "ttft_p95_s"):
        assert half_width(name, quiet) < 0.08
        assert half_width(name, shared) > 0.15


def test_windows_that_were_off_widen_the_promise_and_exact_ones_sharpen_it() -> None:
    exact, off = (
        MachineHistory(np.ones(24), 0.05, (error,) * 8, (error,) * 8) for error in (0.0, 0.4)
    )
    usual = half_width("ttft_p95_s", MachineHistory(np.ones(24), 0.05))
    assert half_width("ttft_p95_s", exact) < usual < half_width("ttft_p95_s", off)


def test_stalls_that_were_measured_are_in_the_draws() -> None:
    calm, stalled = (
        draws_of([LAW] * 40, MachineHistory(np.array(slowdown), 0.004), [TRAFFIC])
        for slowdown in ([1.0] * 24, [1.0] * 22 + [3.0] * 2)
    )
    tails = [
        np.median([draw.replay(TRAFFIC, SHAPE, max_num_seqs=8).e2el_s.max() for draw in draws])
        for draws in (calm, stalled)
    ]
    assert tails[1] > 1.5 * tails[0]


def test_of_outputs_of_one_token_no_time_between_tokens_is_promised() -> None:
    single = Traffic.of((float(at_s), 100, 1) for at_s in range(60))
    draws = draws_of([LAW] * 5, MachineHistory(np.ones(1)), [single])
    found = promised([single], draws, SHAPE, Slo(ttft_s=1.0), max_num_seqs=8)
    assert found.middle["attainment"] == pytest.approx(1.0)
    assert "tpot_mean_s" not in found.middle
