"""The confirming engine against the ladder's."""

from dataclasses import replace

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.traffic.slo import Slo
from tuner.twin.aa_check import AaCheck, aa_check
from tuner.twin.check import Observed
from tuner.twin.choice import weigh
from tuner.twin.forecast import Forecast
from tuner.twin.law import Segment, fit_law
from tuner.twin.load import Loads
from tuner.twin.simulation import EngineShape, Traffic, simulate

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
LAW = StepLaw(np.linspace(0.010, 0.018, 9), 1e-5, 0.0, 0.0, 0.0)
SLO = Slo(ttft_s=0.3)


def window(seed: int, *, slower: float = 1.0, cap: int = 8) -> Observed:
    """Return a window of 60 s on a machine that is so much slower."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 60, 200)).tolist()
    traffic = Traffic.of((at_s, 50, int(rng.integers(50, 150))) for at_s in arrivals)
    law = LAW._replace(decode_s=LAW.decode_s * slower, prefill_token_s=1e-5 * slower)
    seen = simulate(traffic, law, SHAPE, max_num_seqs=cap, log=True)
    return Observed(
        max_num_seqs=cap,
        traffic=traffic,
        scored=np.ones(len(traffic), bool),
        ttft_s=seen.ttft_s,
        tpot_s=seen.tpot_s,
        e2el_s=seen.e2el_s,
        output_tokens=seen.output_tokens,
        end_s=seen.duration_s,
        iterations=seen.iterations,
        cut=False,
    )


def view(ladder: list[Observed]) -> Forecast:
    segments = [Segment(one.iterations, 100.0 * i, 0) for i, one in enumerate(ladder)]
    fitted = fit_law(segments, max_num_seqs=8)
    traffic = ladder[0].traffic
    return Forecast(
        fitted=fitted,
        shape=SHAPE,
        loads=Loads(traffic),
        slo=SLO,
        length_s=60.0,
        hit_share=0.0,
        stalled_share=0.0,
        weighed=weigh(Loads(traffic), fitted, SHAPE, SLO, (8,)),
    )


def agreed(confirming: list[Observed]) -> AaCheck:
    ladder = [window(seed) for seed in range(3)]
    found = aa_check(view(ladder), ladder, confirming, cap=8)
    assert found is not None
    return found


def test_the_same_engine_does_not_differ() -> None:
    found = agreed([window(7), window(8)])
    assert found.slower == pytest.approx(0.0, abs=0.01)
    assert not found.speed_differs
    assert not found.attainment_differs


def test_a_slower_engine_differs_in_speed_and_not_in_what_its_speed_explains() -> None:
    found = agreed([window(7, slower=1.2), window(8, slower=1.2)])
    assert found.slower == pytest.approx(0.2, abs=0.02)
    assert found.speed_differs
    assert not found.attainment_differs


def test_requests_that_are_late_for_another_reason_than_speed_differ() -> None:
    late = [replace(one, ttft_s=one.ttft_s + 1.0) for one in (window(7), window(8))]
    found = agreed(late)
    assert not found.speed_differs
    assert found.attainment < -0.5
    assert found.attainment_differs


def test_it_says_which_difference_it_would_have_found_in_four_of_five_cases() -> None:
    """Of normal noise around a true difference, 80 % lie above 0.84 standard deviations below."""
    one = AaCheck(slower=0.0, slower_limit=0.3, attainment=0.0, attainment_limit=0.04)
    rng = np.random.default_rng(0)
    slower = np.log1p(one.slower_found) + 0.3 / 3 * rng.standard_normal(20_000)
    share = one.attainment_found + 0.04 / 2 * rng.standard_normal(20_000)
    assert np.mean(slower > one.slower_limit) == pytest.approx(0.8, abs=0.01)
    assert np.mean(share > one.attainment_limit) == pytest.approx(0.8, abs=0.01)


def test_without_a_confirming_replay_there_is_no_telling() -> None:
    ladder = [window(0)]
    assert aa_check(view(ladder), ladder, [], cap=8) is None
