"""Loads, and draws of a machine: its stalls, its starts, and how far it is believed."""

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.traffic.slo import Slo
from tuner.twin.samples import Loads, Machine, Samples, ask, draws_of, loads_of, scaled
from tuner.twin.simulation import EngineShape, Traffic

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
LAW = StepLaw(np.linspace(0.020, 0.028, 9), 1e-4, 0.0, 0.0, 0.0)
TRAFFIC = Traffic.of((at_s, 100, 20) for at_s in np.linspace(0, 60, 100, endpoint=False).tolist())
EVERY_SECOND = Traffic.of((float(second), second + 1, 10) for second in range(100))


def promised(machine: Machine, traffic: Traffic = TRAFFIC, count: int = 100) -> Samples:
    draws = draws_of([LAW] * count, machine, traffic)
    return ask(draws, Loads(traffic), (4, 8), SHAPE, Slo(ttft_s=1.0))


def half_width(name: str, machine: Machine) -> float:
    samples = promised(machine)
    low, high = samples.ends(name, 8) or (0.0, 0.0)
    return (high - low) / 2 / samples.middle(name, 8)


def test_a_quiet_machine_is_promised_sharply_and_a_shared_one_is_not() -> None:
    quiet, shared = (Machine(np.ones(24), speed_sd=sd) for sd in (0.004, 0.05))
    for name in ("tpot_p95_s", "e2el_p99_s", "ttft_p95_s"):
        assert half_width(name, quiet) < 0.08
        assert half_width(name, shared) > 0.15


def test_stalls_that_were_measured_are_in_the_draws() -> None:
    calm, stalled = (
        promised(Machine(np.array(slowdown), 0.004), count=40).middle("e2el_p99_s", 8)
        for slowdown in ([1.0] * 24, [1.0] * 22 + [3.0] * 2)
    )
    assert stalled > 1.5 * calm


def test_of_outputs_of_one_token_no_time_between_tokens_is_promised() -> None:
    single = Traffic.of((float(at_s), 100, 1) for at_s in range(60))
    samples = promised(Machine(), single, count=5)
    assert samples.middle("attainment", 8) == pytest.approx(1.0)
    assert samples.ends("tpot_mean_s", 8) is None
    assert "tpot_p95_ms" not in samples.intervals(8)


def test_draws_are_paired() -> None:
    """Every draw has its own speed, and 8 slots that are never filled change nothing in any."""
    samples = promised(Machine())
    assert np.array_equal(samples.column("e2el_p99_s", 8), samples.column("e2el_p99_s", 4))


def test_a_quarter_more_load_is_25_copies_of_100_requests() -> None:
    result = scaled(EVERY_SECOND, 1.25, np.random.default_rng(0))
    lengths, counts = np.unique(result.input_length, return_counts=True)
    assert lengths.tolist() == list(range(1, 101))
    assert sorted(counts.tolist()) == [1] * 75 + [2] * 25


def test_the_headroom_is_asked_with_five_copies_in_turn() -> None:
    loads = loads_of(EVERY_SECOND, 1.25, seed=0)
    assert len(loads.raised) == 5
    assert not np.array_equal(loads.raised[0].arrival_s, loads.raised[1].arrival_s)
    assert not loads_of(EVERY_SECOND, 1.0, seed=0).raised
