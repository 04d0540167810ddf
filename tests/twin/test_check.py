"""The twin against windows that the scheduler model itself 'measured' under a known law."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import ITERATION
from tuner.replay.records import Replay, RequestRecord
from tuner.twin.check import (
    Errors,
    Observed,
    check,
    driven,
    lag_s,
    median_error,
    observed,
)
from tuner.twin.law import FittedLaw, Segment, fit_law
from tuner.twin.simulation import EngineShape, Slowdown, Traffic, simulate

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
TRUE = StepLaw(np.linspace(0.020, 0.036, 17), 1e-4, 0.0, 0.0, 0.0)


def traffic() -> Traffic:
    rng = np.random.default_rng(5)
    arrivals = np.sort(rng.uniform(0, 60, 150)).tolist()
    return Traffic.of((at_s, 100, int(rng.integers(20, 100))) for at_s in arrivals)


def measured(
    cap: int, *, shape: EngineShape = SHAPE, slowdown: float = 1.0, start_s: float = 0.0
) -> tuple[Segment, Observed]:
    """Return a window as a machine that is so much slower would have shown it."""
    slow = Slowdown(np.array([slowdown]), 0.0, 1.0)
    one = simulate(traffic(), TRUE, shape, max_num_seqs=cap, slowdown=slow, log=True)
    return Segment(one.iterations, start_s, 0), Observed(
        max_num_seqs=cap,
        traffic=traffic(),
        scored=np.ones(150, bool),
        ttft_s=one.ttft_s,
        tpot_s=one.tpot_s,
        e2el_s=one.e2el_s,
        output_tokens=one.output_tokens,
        end_s=one.duration_s + 1.0,
        iterations=one.iterations,
        cut=False,
    )


def fit(*segments: Segment) -> FittedLaw:
    return fit_law(segments, max_num_seqs=16)


def test_the_twin_is_right_about_what_it_can_represent() -> None:
    segment, window = measured(8)
    errors = check([window], fit(segment).law, SHAPE)
    assert median_error(errors) < 0.002
    assert errors[0].max_num_seqs == 8


def test_a_window_is_driven_at_the_speed_that_the_machine_had_in_it() -> None:
    usual, _ = measured(8)
    also_usual, _ = measured(16, start_s=1000.0)
    slow, window = measured(8, slowdown=1.1, start_s=2000.0)
    law = fit(usual, also_usual, slow)
    twin = driven(window, law.law, SHAPE)
    assert np.median(twin.tpot_s) == pytest.approx(np.median(window.tpot_s), rel=0.01)
    calm = simulate(traffic(), law.law, SHAPE, max_num_seqs=8)
    assert np.median(calm.tpot_s) < 0.97 * np.median(window.tpot_s)


def test_a_scheduler_that_does_otherwise_shows() -> None:
    """The engine computed prompts in small chunks, of which the twin does not know."""
    segment, window = measured(8, shape=replace(SHAPE, max_num_batched_tokens=12))
    errors = check([window], fit(segment).law, SHAPE)
    assert errors[0].e2el_p95 < -0.15


def test_a_window_of_another_token_budget_is_held_against_the_twin_of_that_budget() -> None:
    """As where the budget changes live."""
    segment, window = measured(8, shape=replace(SHAPE, max_num_batched_tokens=12))
    small = replace(window, max_num_batched_tokens=12)
    assert median_error(check([small], fit(segment).law, SHAPE)) < 0.002


def test_a_law_goes_on_beyond_its_table_and_reads_nothing_behind_it() -> None:
    """As where a sweep ended at fewer slots than a refinement tries."""
    memory = np.concatenate((TRUE.decode_s[:5], np.full(20, 9.0)))
    short = TRUE._replace(decode_s=memory[:5])
    one, other = (simulate(traffic(), law, SHAPE, max_num_seqs=16) for law in (short, TRUE))
    assert one.e2el_s == pytest.approx(other.e2el_s)


def test_the_lag_of_the_front_end_is_found() -> None:
    segment, window = measured(16, shape=replace(SHAPE, lag_s=0.3))
    assert lag_s([window], fit(segment).law, SHAPE) == pytest.approx(0.3, abs=0.02)


def test_without_a_lag_none_is_found() -> None:
    segment, window = measured(16)
    assert lag_s([window], fit(segment).law, SHAPE) == pytest.approx(0.0, abs=0.003)
    assert lag_s([], fit(segment).law, SHAPE) == 0


def test_errors_of_nothing_are_unknown_and_never_small() -> None:
    nothing = Errors(8, math.nan, math.nan, math.nan)
    assert math.isinf(median_error([nothing]))
    assert median_error([nothing, Errors(8, 0.1, -0.3, 0.2)]) == pytest.approx(0.2)


def record(row: int, **changes: object) -> RequestRecord:
    usual = RequestRecord(
        row=row,
        scored=True,
        input_length=10,
        output_length=5,
        planned_s=float(row),
        sent_s=float(row),
        outcome="ok",
        end_s=row + 2.0,
        output_tokens=5,
        first_token_s=row + 1.0,
        last_token_s=row + 2.0,
        tpot_s=0.25,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def test_a_replay_becomes_arrays_in_order_of_its_plan() -> None:
    replay = Replay(
        max_num_seqs=4,
        scored_from_s=0.0,
        window_s=9.0,
        elapsed_s=9.0,
        records=(
            record(2, outcome="cut", last_token_s=None, end_s=9.0, tpot_s=None, output_tokens=1),
            record(0, scored=False, cached_tokens=3),
            record(1, outcome="aborted", output_tokens=3),
        ),
        iterations=np.zeros(0, ITERATION),
        kv_blocks=1,
    )
    window = observed(
        replay,
    )
    assert window.traffic.arrival_s.tolist() == [0, 1, 2]
    assert window.traffic.output_length.tolist() == [5, 3, 5]
    assert window.traffic.cached_length.tolist() == [3, 0, 0]
    assert window.scored.tolist() == [False, True, True]
    assert window.ttft_s.tolist() == [1, 1, 1]
    assert np.isnan(window.e2el_s).tolist() == [False, True, True]
    assert (window.output_tokens, window.end_s) == (9, 9)
    assert not window.cut
