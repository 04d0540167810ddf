"""Which cap is chosen, and which others are as right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines.scheduler.state import StepLaw
from tuner.traffic.constants import DRAWS
from tuner.traffic.requirements import Requirement, parse_requirements
from tuner.traffic.slo import Slo
from tuner.twin.decide import Choice, broken, choose, nearest, rule
from tuner.twin.law import FittedLaw, fit_law
from tuner.twin.samples import Loads, loads_of
from tuner.twin.simulation import EngineShape, Traffic, simulate

CAPS = (1, 2, 4, 8, 16)
SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000
)
SIZES = np.arange(17)
KNEE_AT_8 = StepLaw(0.01 + 0.0001 * SIZES + 0.01 * np.maximum(0, SIZES - 8), 1e-5, 0, 0, 0)
SLO = Slo(ttft_s=1.0, tpot_s=0.02)

SHARES = st.lists(st.floats(0.94, 1.0) | st.floats(0.0, 1.0), min_size=5, max_size=5)
TAILS = st.lists(st.floats(0.9, 1.3) | st.floats(0.05, 20.0), min_size=5, max_size=5)
RAISED = st.none() | st.lists(st.floats(0.4, 1.0), min_size=5, max_size=5)


@given(SHARES, TAILS, RAISED, st.sampled_from([None, 50, 5000]))
def test_the_choice_is_right_and_within_the_tolerances(
    shares: list[float], tails_s: list[float], raised: list[float] | None, requests: int | None
) -> None:
    result = rule(shares, tails_s, raised, requests=requests)
    assert result.right[result.choice]
    assert result.candidates[result.choice]
    assert shares[int(result.choice)] >= max(shares) - max(0.01, 2 / (requests or 1000))
    rows = rule([shares] * 3, [tails_s] * 3, None if raised is None else [raised] * 3,
                requests=requests)  # fmt: skip
    assert rows.choice.tolist() == [int(result.choice)] * 3


@pytest.mark.parametrize(
    ("shares", "tails_s", "raised", "choice", "right"),
    [
        ([0.80, 0.990, 0.992], [1.0, 1.02, 1.0], None, 1, {1, 2}),
        ([1.0, 0.992], [1, 1], [0.8, 1.0], 1, {1}),
        ([1.0, 0.992], [1, 1], [0.3, 0.4], 0, {0, 1}),
        ([0.975, 0.985, 0.999, 0.99], [1, 1.09, 1, 1.22], [0.9, 0.9, 0.97, 0.98], 2, {2}),
        ([0.0, 0.0], [np.nan, np.nan], None, 0, {0, 1}),
    ],
)
def test_what_the_rule_says(
    shares: list[float],
    tails_s: list[float],
    raised: list[float] | None,
    choice: int,
    right: set[int],
) -> None:
    result = rule(shares, tails_s, raised)
    assert int(result.choice) == choice
    assert {*np.flatnonzero(result.right).tolist()} == right


def traffic(rate_rps: float = 5.5, duration_s: float = 200.0) -> Traffic:
    rng = np.random.default_rng(7)
    count = int(rate_rps * duration_s)
    arrivals = np.sort(rng.uniform(0, duration_s, count)).tolist()
    return Traffic.of((at_s, 50, int(rng.integers(50, 150))) for at_s in arrivals)


def fitted(noise: float = 0.02) -> FittedLaw:
    """Return the law as fitted to a minute at 8 and a minute at 16 slots."""
    rng = np.random.default_rng(1)
    logs = []
    for cap in (8, 16):
        item = simulate(traffic(duration_s=60), KNEE_AT_8, SHAPE, max_num_seqs=cap, log=True)
        item.iterations["duration_s"] *= np.exp(rng.normal(0, noise, len(item.iterations)))
        logs.append(item.iterations)
    return fit_law(logs, max_num_seqs=16)


def chosen(loads: Loads, law: FittedLaw, *requirements: Requirement) -> Choice:
    laws, seen = law.laws[:DRAWS], law.extrapolated_from
    return choose(loads, laws, SHAPE, SLO, CAPS, seen=seen, requirements=requirements)


def test_the_cap_at_the_knee_is_chosen_and_surely() -> None:
    result = chosen(Loads(traffic()), fitted())
    assert (result.best, result.interval, result.is_guess) == (8, (8, 8), False)
    assert result.confidence >= 0.95
    shares = [result.samples.middle("attainment", cap) for cap in (8, 16)]
    assert shares[0] > shares[1] + 0.1


def test_a_choice_of_batches_larger_than_any_measured_is_a_guess() -> None:
    item = simulate(traffic(duration_s=60), KNEE_AT_8, SHAPE, max_num_seqs=4, log=True)
    low = fit_law([item.iterations], max_num_seqs=16)
    assert chosen(Loads(traffic()), low).is_guess


def test_of_equals_today_the_one_that_serves_more_with_headroom_is_chosen() -> None:
    """At 1 req/s 4 slots are as good as 8; at twice the load they are not."""
    light = traffic(rate_rps=1.0)
    today = chosen(Loads(light), fitted())
    both = chosen(loads_of(light, 2.0, seed=0), fitted())
    assert (today.best, both.best) == (4, 8)
    shares = [both.samples.middle("attainment", cap, raised=True) for cap in (4, 8)]
    assert shares[1] > shares[0] + 0.03


def required(*texts: str) -> Choice:
    """Return what is chosen where this is required: without, 8 slots are."""
    requirements = parse_requirements(texts, headroom=1.25)
    loads = loads_of(traffic(), 1.25, seed=0, rate_rps=5.5)
    return chosen(loads, fitted(), *requirements)


def test_what_breaks_a_requirement_is_no_candidate() -> None:
    result = required("p95 tpot <= 10.7ms")  # 10 ms and 0.1 ms for each of up to 7 slots
    assert broken(result.checks[8])
    assert (result.best, result.eligible) == (4, (1, 2, 4))


def test_where_nothing_keeps_what_is_required_the_nearest_is_named() -> None:
    result = required("p95 tpot <= 1ms")
    assert (result.best, result.eligible) == (8, CAPS)
    assert nearest(result.checks) == 1
    assert broken(result.checks[1]).startswith("p95 tpot <= 1ms (at worst 10.")


def test_bounds_are_of_each_load() -> None:
    texts = ("attainment >= 90%", "attainment >= 90% at headroom", "goodput >= 5 req/s")
    today, raised, goodput = (each.at_worst or 0.0 for each in required(*texts).checks[8])
    assert raised < today
    assert today > 0.95
    assert goodput == pytest.approx(5.5 * today)
