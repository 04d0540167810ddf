"""One cap for several traces: numbers that can be checked in the head."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.runs.sweep.shared_cap import Price, TraceDemand, compromise, cost_of, loss, share
from tuner.twin.forecast import StepChange
from tuner.twin.objective import Values, choose

SHORT, LONGER, LONG = 0.0, math.log(1.05), math.log(1.21)
"""Log tails: the shortest, half a tolerance longer, and two tolerances (1.1 x 1.1)."""

DAY: Values = {8: (0.90, LONG), 16: (0.99, SHORT), 32: (0.98, LONG)}
NIGHT: Values = {8: (0.99, SHORT), 16: (0.98, SHORT), 32: (0.98, SHORT)}
STEEP: Values = {8: (0.99, SHORT), 16: (0.90, LONG), 32: (0.90, LONG)}


def demand(trace: str, values: Values, *draws: Values, is_decided: bool = True) -> TraceDemand:
    return TraceDemand(
        trace, choose(values), values, tuple((one, {}) for one in draws or (values,)), is_decided
    )


def test_a_loss_is_counted_in_tolerances_of_attainment_or_of_the_tail() -> None:
    assert loss(NIGHT, 8, 16) == 0.5  # 0.01 of the 0.02 that are tolerated
    assert loss({8: (0.99, SHORT), 16: (0.99, LONG)}, 8, 16) == pytest.approx(2)
    assert loss({8: (0.99, SHORT), 16: (0.97, LONG)}, 8, 16) == pytest.approx(2)  # the worse one


def test_a_cap_that_is_better_than_the_own_one_loses_nothing() -> None:
    assert loss({8: (0.98, SHORT), 16: (0.99, -0.1)}, 8, 16) == 0


def test_a_cap_that_was_cut_loses_without_end_unless_all_were() -> None:
    assert loss({8: (0.99, SHORT), 2: (0.98, math.inf)}, 8, 2) == math.inf
    assert loss({8: (0.40, math.inf), 2: (0.38, math.inf)}, 8, 2) == 1


def test_the_cap_whose_worst_loss_is_least_is_shared_and_the_smallest_of_equals() -> None:
    assert compromise({"day": {8: 9.0, 16: 0.4}, "night": {8: 0.0, 16: 0.9}}) == 16
    assert compromise({"day": {16: 0.5, 32: 0.5}, "night": {16: 0.0, 32: 0.4}}) == 16


def test_traces_share_a_cap_that_is_within_tolerance_of_each_ones_best() -> None:
    found = share([demand("day", DAY), demand("night", NIGHT)])
    assert (found.kind, found.max_num_seqs, found.confidence) == ("shared", 16, 1.0)
    assert found.losses["night"] == {8: 0, 16: 0.5, 32: 0.5}
    assert found.interval == (16, 16)


def test_traces_that_no_cap_serves_are_told_the_best_compromise() -> None:
    found = share([demand("day", DAY), demand("steep", STEEP)])
    # at 8 day loses 0.09 / 0.02 = 4.5 tolerances; at 16 steep loses as many, and 8 is smaller
    assert (found.kind, found.max_num_seqs, found.confidence) == ("separate", 8, 1.0)


def test_confidence_is_the_share_of_draws_in_which_the_cap_serves_all() -> None:
    draws = (NIGHT, NIGHT, NIGHT, STEEP)
    found = share([demand("day", DAY), demand("night", NIGHT, *draws)])
    assert (found.kind, found.confidence) == ("shared", 0.75)
    toss_up = share([demand("day", DAY), demand("night", NIGHT, NIGHT, STEEP, STEEP)])
    assert (toss_up.kind, toss_up.max_num_seqs) == ("inconclusive", 16)


def test_what_one_trace_could_not_decide_is_not_decided_for_all() -> None:
    found = share([demand("day", DAY), demand("night", NIGHT, is_decided=False)])
    assert found.kind == "inconclusive"


SHARES = st.integers(50, 100).map(lambda percent: percent / 100)
TAILS = st.integers(0, 40).map(lambda step: step / 20)
CURVES = st.fixed_dictionaries({cap: st.tuples(SHARES, TAILS) for cap in (1, 2, 4, 8)})


@given(CURVES, st.lists(CURVES, min_size=1, max_size=3))
def test_the_order_of_the_traces_changes_nothing(first: Values, others: list[Values]) -> None:
    demands = [demand(str(place), values) for place, values in enumerate([first, *others])]
    one, other = share(demands), share(demands[::-1])
    assert (one.kind, one.max_num_seqs, one.confidence) == (
        other.kind,
        other.max_num_seqs,
        other.confidence,
    )


@given(CURVES)
def test_traces_that_choose_alike_share_what_they_chose(values: Values) -> None:
    found = share([demand("day", values), demand("night", values)])
    assert (found.kind, found.max_num_seqs) == ("shared", choose(values))


def test_a_price_is_told_with_its_intervals() -> None:
    changes = {
        "goodput_rps": StepChange(-0.012, -0.02, -0.004),
        "e2el_p99_ms": StepChange(0.08, 0.05, 0.11),
    }
    assert cost_of(Price("night", 8, 0.8, 0.97, changes), 16) == (
        "night would take 8 and has 1.2 % less goodput (0.4 to 2.0 %), "
        "8.0 % longer p99 E2EL (5.0 to 11.0 %)"
    )
    assert cost_of(Price("day", 16, 0.0, 0.99, {}), 16) == "16 is best for day"
    assert "served at most 41.0%" in cost_of(Price("night", 8, math.inf, 0.41, {}), 16)
