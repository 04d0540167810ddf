"""How fast the machine usually is: this run's word and the profile's, each by how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.profile.test_stored_twin import view
from tuner.engines.scheduler.state import StepLaw
from tuner.profile.stored_twin import StoredTwin, restored, stored
from tuner.runs.refine.gains.usual import speeds, usual_laws

VIEW = view(200)
BEFORE = restored(stored(VIEW, seed=0), source="p.yaml")
OFF = 0.03
"""How sure either is, as a logarithm."""

ALONE = [0.0, *(OFF * speeds(2)).tolist()]
"""What is believed of this run alone."""


def draws(law: StepLaw, off: float) -> tuple[StepLaw, ...]:
    return tuple(law.slowed(math.exp(by)) for by in (-off, off))


def profile(slower: float, off: float = OFF) -> StoredTwin:
    """A profile of the machine when it was so much slower, as a logarithm."""
    law = VIEW.fitted.law.slowed(math.exp(slower))
    return replace(BEFORE, law=law, draws=draws(law, off))


def found(before: StoredTwin | None, off: float = OFF, speed_sd: float = 0.0) -> list[float]:
    """How much slower than the fitted law is what is believed, and its draws."""
    steady = replace(VIEW.fitted, speed_sd=speed_sd, slowdown=np.ones(1))
    view = replace(VIEW, fitted=steady)
    laws = usual_laws(view, draws(VIEW.fitted.law, off), before, VIEW.traffic, max_num_seqs=8)
    return slowness(laws)


def slowness(laws: Sequence[StepLaw]) -> list[float]:
    of_all = [law.decode_s / VIEW.fitted.law.decode_s for law in laws]
    assert all(np.ptp(one) < 1e-9 for one in of_all)
    return [math.log(float(one[0])) for one in of_all]


def test_two_that_are_as_sure_meet_in_the_middle() -> None:
    middle, *others = found(profile(0.04))
    assert middle == pytest.approx(0.02)
    assert others == pytest.approx([0.02 + one / math.sqrt(2) for one in ALONE[1:]])


def test_who_is_surer_counts_more() -> None:
    assert found(profile(0.04), off=1e-6)[0] == pytest.approx(0.0, abs=1e-6)
    assert found(profile(0.04, off=1e-6))[0] == pytest.approx(0.04, abs=1e-6)
    assert np.ptp(found(profile(0.04, off=1e-6))) < 1e-5


def test_no_sweep_is_surer_than_the_machine_is_steady() -> None:
    """Its few minutes were some of those that the machine wanders through."""
    assert found(profile(0.04, off=1e-6), speed_sd=OFF)[0] == pytest.approx(0.02)
    assert found(profile(0.04, off=1e-6), speed_sd=3 * OFF)[0] == pytest.approx(0.004)


def test_how_far_the_speed_may_be_off_has_long_tails() -> None:
    off = np.sort(speeds(20))
    assert off == pytest.approx(-off[::-1], abs=0.05)
    assert off[-1] == pytest.approx(3.20, abs=0.05)  # the mean of the farthest twentieth of t(4)
    assert off[10:].mean() == pytest.approx(1.0, abs=0.02)


def test_a_profile_without_a_twin_leaves_this_run_alone() -> None:
    assert found(None) == pytest.approx(ALONE)


@pytest.mark.parametrize("slower", [-0.09, 0.09, 1.0])
def test_a_machine_that_is_another_today_goes_by_today(slower: float) -> None:
    assert found(profile(slower)) == pytest.approx(ALONE)


def test_batch_sizes_that_a_profile_never_saw_say_nothing_of_its_speed() -> None:
    law = VIEW.fitted.law
    steeper = law._replace(decode_s=np.where(np.arange(len(law.decode_s)) > 4, 9.0, law.decode_s))
    of_small = replace(BEFORE, law=steeper, draws=draws(steeper, OFF), extrapolated_from=4)
    assert found(of_small)[0] == pytest.approx(0.0)


@pytest.mark.parametrize("senseless", [math.nan, math.inf, 0.0, -1.0])
def test_a_profile_whose_laws_make_no_sense_is_left_out(senseless: float) -> None:
    law = VIEW.fitted.law
    laws = draws(law.slowed(senseless), OFF)
    assert found(replace(BEFORE, draws=laws)) == pytest.approx(ALONE)


def test_where_no_batch_size_was_seen_by_both_there_is_nothing_to_compare() -> None:
    assert found(replace(profile(0.04), extrapolated_from=-1)) == pytest.approx(ALONE)
