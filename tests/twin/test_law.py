"""The law is found again in logs that the scheduler model wrote under a known one."""

import numpy as np
import pytest

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import ITERATION, IterationLog
from tuner.engines.sim.world import WorldStep, step_law
from tuner.twin.law import fit_law
from tuner.twin.simulation import EngineShape, Traffic, simulate

SIZES = np.arange(17)
TRUE = StepLaw(0.020 + 0.001 * SIZES + 0.004 * np.maximum(0, SIZES - 8), 1e-4, 0.0, 0.002, 1e-7)
SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)


def traffic(seed: int, rate_rps: float = 2.5, duration_s: float = 120.0) -> Traffic:
    rng = np.random.default_rng(seed)
    count = int(rate_rps * duration_s)
    return Traffic.of(
        zip(
            np.sort(rng.uniform(0, duration_s, count)).tolist(),
            rng.integers(10, 800, count).tolist(),
            rng.integers(20, 200, count).tolist(),
            strict=True,
        )
    )


def log_of(seed: int, cap: int, law: StepLaw = TRUE) -> IterationLog:
    return simulate(traffic(seed), law, SHAPE, max_num_seqs=cap, log=True).iterations


def slowed(log: IterationLog, factor: Floats | float) -> IterationLog:
    """Return the log of a machine that was slower; the times of beginning stay."""
    result = log.copy()
    result["duration_s"] *= factor
    return result


def relative_error(law: StepLaw, upto: int = 16) -> float:
    return float(np.abs(law.decode_s[1 : upto + 1] / TRUE.decode_s[1 : upto + 1] - 1).max())


def test_an_undisturbed_machine_gives_its_law_away() -> None:
    fitted = fit_law([log_of(1, 16)], max_num_seqs=16)
    assert relative_error(fitted.law) < 0.002
    assert fitted.law[1:] == pytest.approx(TRUE[1:], rel=0.05, abs=1e-9)
    assert fitted.speed_sd < 0.002


def test_what_a_prompt_costs_that_comes_in_pieces_is_found() -> None:
    """Prompts of 3,000 tokens in pieces of 512: each attends to all before it."""
    law = TRUE._replace(prefill_context_s=2e-8)
    long = Traffic.of((3.0 * row, 3000, 20) for row in range(60))
    shape = EngineShape(512, 16, 4000, 10_000)
    log = simulate(long, law, shape, max_num_seqs=4, log=True).iterations
    assert log["prefill_context"].max() == 440 * 2560
    fitted = fit_law([log], max_num_seqs=4).law
    assert fitted.prefill_context_s == pytest.approx(2e-8, rel=0.05)
    without = log.copy()
    without["prefill_context"] = 0
    worse = fit_law([without], max_num_seqs=4).law
    off = np.abs(worse.durations_s(without) / log["duration_s"] - 1)
    assert off.max() > 3 * np.abs(fitted.durations_s(log) / log["duration_s"] - 1).max()


def test_drift_between_replays_is_not_taken_for_a_law() -> None:
    """The replays at 4 and at 16 slots ran while the machine was 20 % slower and faster."""
    logs = [
        slowed(log_of(1, 4), 1.2),
        log_of(1, 8),
        slowed(log_of(1, 16), 1 / 1.2),
    ]
    fitted = fit_law(logs, max_num_seqs=16)
    steps = fitted.law.decode_s[1:17] / TRUE.decode_s[1:17]
    assert steps.max() / steps.min() < 1.06


def test_a_noisy_neighbour_is_not_taken_for_the_machine() -> None:
    """For a third of the time everything takes 40 % longer."""
    log = log_of(1, 16)
    disturbed = slowed(log, np.where(log["start_s"] > 80, 1.4, 1.0))
    fitted = fit_law([disturbed], max_num_seqs=16)
    assert relative_error(fitted.law) < 0.02
    assert fitted.slowdown[0] == pytest.approx(1.0, abs=0.02)
    assert fitted.slowdown[-1] == pytest.approx(1.4, rel=0.02)


def test_beyond_the_sizes_seen_it_continues_as_in_their_upper_half_and_says_so() -> None:
    fitted = fit_law([log_of(1, 8)], max_num_seqs=16)
    assert fitted.extrapolated_from == 8
    assert fitted.law.decode_s[16] == pytest.approx(0.020 + 0.001 * 16, rel=0.02)


def test_draws_spread_as_the_data_leaves_open() -> None:
    rng = np.random.default_rng(0)
    log = log_of(1, 8)
    noisy = slowed(log, np.exp(rng.normal(0, 0.1, len(log))))
    fitted = fit_law([noisy], max_num_seqs=16)
    drawn = np.array([law.decode_s for law in fitted.laws])
    spread = drawn.std(axis=0) / drawn.mean(axis=0)
    assert (spread[1:9] < 0.05).all()
    assert spread[16] > 2 * spread[8]  # never seen
    assert np.median(drawn[:, 5]) == pytest.approx(fitted.law.decode_s[5], rel=0.01)


def test_one_iteration_is_enough_for_a_law() -> None:
    log = log_of(1, 8)[:1]
    fitted = fit_law([log], max_num_seqs=4)
    assert fitted.law.decode_s.shape == (5,)
    assert np.isfinite(fitted.law.decode_s).all()


def test_sizes_that_are_each_seen_seldom_tell_together_of_a_bend() -> None:
    log = log_of(1, 16)
    few = [log[log["decode_seqs"] == size][:8] for size in range(1, 17)]
    fitted = fit_law([np.sort(np.concatenate(few), order="start_s")], max_num_seqs=16)
    assert fitted.knots.tolist() == [1, 4, 7, 10, 13, 16]
    assert relative_error(fitted.law) < 0.10  # at the bend, which lies between two knots


def test_where_graphs_are_padded_the_law_has_their_stairs() -> None:
    """Batches of 9 to 16 take as long as 16 do, and 17 as long as 24."""
    padded = step_law(WorldStep(a=0.005, b=0.0005, pad=True), 32)
    log = np.zeros(32 * 40, ITERATION)  # as the ramp goes: every size as often
    log["decode_seqs"] = np.tile(np.arange(1, 33), 40)
    log["duration_s"] = padded.decode_s[log["decode_seqs"]]
    log["start_s"] = np.cumsum(log["duration_s"]) - log["duration_s"]
    f = fit_law([log], max_num_seqs=32).law.decode_s
    assert f[9:17] == pytest.approx(f[16], rel=0.01)
    assert f[17:25] == pytest.approx(f[24], rel=0.01)
    assert f[17] / f[16] == pytest.approx(0.017 / 0.013, rel=0.01)
