import math

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.traffic.requirements import parse_requirements
from tuner.traffic.slo import Slo
from tuner.twin.choice import Weighed, value_of, weigh
from tuner.twin.law import FittedLaw, Segment, fit_law
from tuner.twin.load import Loads, loads_of
from tuner.twin.simulation import EngineShape, Traffic, simulate

CAPS = (1, 2, 4, 8, 16)
SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
SIZES = np.arange(17)
KNEE_AT_8 = StepLaw(0.01 + 0.0001 * SIZES + 0.01 * np.maximum(0, SIZES - 8), 1e-5, 0, 0, 0)
SLO = Slo(ttft_s=1.0, tpot_s=0.02)


def traffic(rate_rps: float = 5.5, duration_s: float = 200.0) -> Traffic:
    rng = np.random.default_rng(7)
    count = int(rate_rps * duration_s)
    arrivals = np.sort(rng.uniform(0, duration_s, count)).tolist()
    return Traffic.of((at_s, 50, int(rng.integers(50, 150))) for at_s in arrivals)


def fitted(noise: float) -> FittedLaw:
    """Return the law as fitted to a minute at 8 and a minute at 16 slots."""
    rng = np.random.default_rng(1)
    segments = []
    for i, cap in enumerate((8, 16)):
        one = simulate(traffic().between(0, 60), KNEE_AT_8, SHAPE, max_num_seqs=cap, log=True)
        one.iterations["duration_s"] *= np.exp(rng.normal(0, noise, len(one.iterations)))
        segments.append(Segment(one.iterations, 100.0 * i, 0))
    return fit_law(segments, max_num_seqs=16)


def test_the_cap_at_the_knee_is_chosen_and_surely() -> None:
    found = weigh(Loads(traffic()), fitted(noise=0.02), SHAPE, SLO, CAPS)
    assert found.best == 8
    assert found.confidence >= 0.95
    assert found.interval == (8, 8)
    assert found.values[8][0] > found.values[16][0] + 0.1
    assert found.rightness[8] == found.confidence


def test_every_cap_has_its_prediction_at_both_loads_and_samples_lie_around_it() -> None:
    loads = loads_of(traffic(), 1.25, seed=0)
    found = weigh(loads, fitted(noise=0.02), SHAPE, SLO, CAPS, draws=30)
    assert tuple(found.values) == tuple(found.raised) == found.samples.caps == CAPS
    assert found.samples.values.shape[:3] == (30, 2, len(CAPS))
    for cap in CAPS:
        shares = found.samples.column("attainment", cap)
        tails = found.samples.column("log_tail", cap)
        assert shares.min() - 0.02 <= found.values[cap][0] <= shares.max() + 0.02
        assert tails.min() - 0.1 <= found.values[cap][1] <= tails.max() + 0.1
    assert found.samples.column("attainment", 8, raised=True).mean() < found.values[8][0]


def test_few_noisy_iterations_make_it_less_sure() -> None:
    rng = np.random.default_rng(3)
    one = simulate(traffic(rate_rps=30).between(0, 2), KNEE_AT_8, SHAPE, max_num_seqs=16, log=True)
    one.iterations["duration_s"] *= np.exp(rng.normal(0, 1.0, len(one.iterations)))
    unsure = fit_law([Segment(one.iterations, 0.0, 0)], max_num_seqs=16)
    found = weigh(Loads(traffic()), unsure, SHAPE, SLO, CAPS)
    assert found.confidence < 0.95
    assert found.interval[0] < found.interval[1]


def test_batches_larger_than_any_measured_are_told() -> None:
    one = simulate(traffic().between(0, 60), KNEE_AT_8, SHAPE, max_num_seqs=4, log=True)
    low = fit_law([Segment(one.iterations, 0.0, 0)], max_num_seqs=16)
    assert weigh(Loads(traffic()), low, SHAPE, SLO, CAPS).unseen == (8, 16)
    assert weigh(Loads(traffic()), fitted(noise=0.02), SHAPE, SLO, CAPS).unseen == ()


def test_a_value_is_that_of_the_replay() -> None:
    replay = simulate(traffic(), KNEE_AT_8, SHAPE, max_num_seqs=16)
    share, log_tail = value_of(traffic(), replay, Slo(e2el_s=1e6))
    assert share == 1
    assert log_tail == pytest.approx(math.log(np.quantile(replay.e2el_s, 0.99)))


def test_of_equals_today_the_one_that_serves_more_with_headroom_is_chosen() -> None:
    """At 1 req/s 4 slots are as good as 8; at twice the load they are not."""
    light = traffic(rate_rps=1.0)
    law = fitted(noise=0.02)
    today = weigh(Loads(light), law, SHAPE, SLO, CAPS)
    both = weigh(loads_of(light, 2.0, seed=0), law, SHAPE, SLO, CAPS)
    assert (today.best, both.best) == (4, 8)
    assert today.raised == {}
    assert both.raised[8] > both.raised[4] + 0.03
    assert both.values == today.values


def required(*texts: str) -> Weighed:
    """Return what is chosen where this is required: without, 8 slots are."""
    return weigh(
        loads_of(traffic(), 1.25, seed=0),
        fitted(noise=0.02),
        SHAPE,
        SLO,
        CAPS,
        requirements=parse_requirements(texts, headroom=1.25),
        length_s=200.0,
    )


def test_what_breaks_a_requirement_is_no_candidate() -> None:
    found = required("p95 tpot <= 10.7ms")  # 10 ms and 0.1 ms for each of up to 7 slots
    assert found.bounds.broken(8)
    assert found.best == 4
    assert tuple(found.eligible) == (1, 2, 4)
    assert found.interval[1] <= 8


def test_a_bound_is_what_draws_stay_on_the_good_side_of() -> None:
    (one,) = parse_requirements(["attainment >= 50%"], headroom=1.0)
    found = required("attainment >= 50%")
    shares = found.samples.column("attainment", 8)
    assert shares.min() <= found.bounds.of_cap[8][one] <= np.median(shares)
    assert found.best == 8


def test_headroom_has_requirements_of_its_own() -> None:
    today, raised = parse_requirements(
        ["attainment >= 90%", "attainment >= 90% at headroom"], headroom=1.25
    )
    numbers = required(today.text, raised.text).bounds.of_cap[8]
    assert numbers[today] > 0.95
    assert numbers[raised] < numbers[today]


def test_where_nothing_keeps_what_is_required_the_nearest_is_named() -> None:
    found = required("p95 tpot <= 1ms")
    assert found.best == 8
    assert tuple(found.eligible) == CAPS
    assert found.bounds.nearest() == 1
    assert found.bounds.shown(1).startswith("p95 tpot <= 1ms (10.")


def test_gaps_between_tokens_are_asked_of_the_iterations() -> None:
    (one,) = parse_requirements(["p50 itl <= 20ms"], headroom=1.0)
    assert required("p50 itl <= 20ms").bounds.of_cap[1][one] == pytest.approx(0.0101, rel=0.02)
