"""When a gain over the knee is proven, and when it is not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tuner.errors import UsageError
from tuner.replay.measure import Spread
from tuner.runs.refine.gains.luck_share import TWIN_OFF
from tuner.runs.refine.gains.pair_mean import mean_without_luck
from tuner.runs.refine.gains.proof import proof
from tuner.runs.refine.gains.ratio import Ratio, ratio
from tuner.runs.refine.gains.with_twin import ByTwin, with_twin
from tuner.runs.refine.objective import GOODPUT, OBJECTIVES, TAIL, front, gains, parse_objectives
from tuner.twin.uncertainty import student_t_975


def flat(seconds: float) -> Spread:
    return Spread(*[seconds] * 5)


@dataclass(frozen=True)
class Numbers:
    attainment: float
    tail_s: float = 1.0
    output_tokens_per_s: float = 100.0

    @property
    def e2el_s(self) -> Spread:
        return flat(self.tail_s)

    @property
    def tpot_s(self) -> Spread:
        return flat(self.tail_s / 100)

    @property
    def ttft_s(self) -> Spread | None:
        return None


KNEE, ALL = Numbers(0.5), Numbers(1.0)


def ratios(*pairs: tuple[Numbers, Numbers]) -> dict[str, object]:
    return {
        aim.name: found for aim in OBJECTIVES.values() if (found := ratio(aim, pairs)) is not None
    }


def proven(*pairs: tuple[Numbers, Numbers]) -> str | None:
    found = proof(GOODPUT, ratios(*pairs))  # type: ignore[arg-type]
    return None if found is None else found.of


def test_four_pairs_that_agree_prove_a_tenth_more_goodput() -> None:
    assert proven(*[(KNEE, Numbers(0.55))] * 4) == "goodput"


def test_equal_engines_prove_nothing() -> None:
    assert proven(*[(KNEE, KNEE)] * 4) is None


def test_pairs_that_contradict_each_other_prove_nothing() -> None:
    up, down = (KNEE, Numbers(0.6)), (KNEE, Numbers(0.45))
    assert proven(up, down, up, down) is None


def test_a_shorter_tail_at_the_same_goodput_is_a_gain_too() -> None:
    assert proven(*[(ALL, replace(ALL, tail_s=0.8))] * 4) == "e2el"


def test_a_shorter_tail_that_costs_goodput_is_none() -> None:
    assert proven(*[(KNEE, Numbers(0.475, tail_s=0.5))] * 4) is None


def test_less_memory_is_a_gain_where_nothing_is_lost() -> None:
    same, slower = ratios(*[(ALL, ALL)] * 4), ratios(*[(ALL, replace(ALL, tail_s=1.2))] * 4)
    found = proof(GOODPUT, same, frees_memory=True)  # type: ignore[arg-type]
    assert found is not None
    assert found.of == "memory"
    assert found.sureness > 0.95  # of nothing being lost, where a gain is as likely as not
    assert proof(GOODPUT, slower, frees_memory=True) is None  # type: ignore[arg-type]


UNSURE = [(KNEE, Numbers(0.58)), (KNEE, Numbers(0.49))] * 2
"""Pairs that show a gain of 7 %, and that it may be none."""


def by_both(pairs: Sequence[tuple[Numbers, Numbers]], middle: float, *drawn: float) -> Ratio:
    """By the middle law, then by drawn ones: the same where none is named."""
    found = ratio(GOODPUT, pairs, ByTwin(middle, drawn or [middle] * 20))
    assert found is not None
    return found


def test_pairs_and_a_twin_that_agree_prove_what_these_pairs_alone_do_not() -> None:
    alone, found = ratio(GOODPUT, UNSURE), by_both(UNSURE, 0.05)
    assert alone is not None
    assert not alone.is_better
    assert found.is_better
    assert alone.low < found.low < found.value < alone.value
    assert found.replayed == pytest.approx(alone.replayed)


@pytest.mark.parametrize("apart", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("foreseen", [0.005, 0.02, 0.05, 0.1, 0.2, 0.5])
def test_the_word_of_the_twin_alone_proves_nothing(foreseen: float, apart: float) -> None:
    """Pairs that leave open whether there is a gain, whatever they differ by."""
    pairs = [(KNEE, Numbers(0.5 + apart)), (KNEE, Numbers(0.5 - apart))] * 2
    assert not by_both(pairs, foreseen).is_better


@pytest.mark.parametrize("served", [0.0, 0.01, 0.02])
def test_the_word_of_the_twin_proves_nothing_where_next_to_nothing_is_served(
    served: float,
) -> None:
    pairs = [(Numbers(served), Numbers(served))] * 4
    assert not by_both(pairs, 0.1).is_better


@pytest.mark.parametrize("foreseen", [-0.3, -0.05, 0.0, 0.02, 0.3])
def test_pairs_that_contradict_the_twin_have_the_last_word(foreseen: float) -> None:
    sure = [(KNEE, Numbers(0.55))] * 4
    alone, found = ratio(GOODPUT, sure), by_both(sure, foreseen)
    assert alone is not None
    assert found.is_better
    assert found.value == pytest.approx(alone.value, abs=0.01)
    assert found.high == pytest.approx(alone.high, abs=0.01)


@pytest.mark.parametrize("foreseen", [0.0, 0.1, 0.8])
def test_noisy_pairs_that_contradict_the_twin_leave_no_gain(foreseen: float) -> None:
    """The tail is twice as long, more or less."""
    pairs = [(KNEE, replace(KNEE, tail_s=math.exp(0.8 + by))) for by in (0.2, -0.2) * 2]
    found = ratio(TAIL, pairs, ByTwin(foreseen, [foreseen] * 20))
    assert found is not None
    assert not found.is_better
    assert found.high > math.exp(0.8)


@pytest.mark.parametrize(("differ_by", "most"), [(0.02, 10), (0.08, 20)])
@pytest.mark.parametrize("foreseen", [0.02, 0.05])
def test_a_twin_that_is_wrong_seldom_proves_what_is_not_there(
    foreseen: float, differ_by: float, most: int
) -> None:
    """Equal engines, whose replays differ as usual and by four times as much: by the pairs alone a
    gain must be likely as well."""
    rng = np.random.default_rng(0)
    better = 0
    for _ in range(100):
        pairs = [(KNEE, Numbers(0.5 * math.exp(by))) for by in rng.normal(0.0, differ_by, 4)]
        better += by_both(pairs, foreseen).is_better
    assert 1 <= better <= most


@pytest.mark.parametrize("foreseen", [-0.1, 0.0, 0.02, 0.3])
def test_what_both_say_is_the_product_of_what_each_says(foreseen: float) -> None:
    """Of one law, integrated on a fine grid: the pairs' density times the twin's."""
    mean = mean_without_luck(GOODPUT, UNSURE, [(0.0, 0.0)] * 4)
    assert mean is not None
    usual_sd = 0.03
    gains = np.linspace(-2.0, 2.0, 200_001)
    usual = math.hypot(0.2 * foreseen, 0.2 * usual_sd)
    astray = math.hypot(foreseen, usual_sd)
    off = gains - foreseen
    near = 8 / (3 * math.sqrt(5) * math.pi) / usual * (1 + (off / usual) ** 2 / 5) ** -3
    far = 1 / (math.pi * astray * (1 + (off / astray) ** 2))
    both = ((0.9 * near + 0.1 * far) * mean.density(gains)).cumsum()
    shares = (0.025, 0.5, 0.975)
    found = with_twin(mean, ByTwin(foreseen, [foreseen]), usual_sd=usual_sd)
    assert np.quantile(found, shares) == pytest.approx(
        np.interp(shares, both / both[-1], gains), abs=0.001
    )


@pytest.mark.parametrize("foreseen", [-0.3, 0.3])
def test_hope_is_never_less_than_the_pairs_have(foreseen: float) -> None:
    alone = ratio(GOODPUT, UNSURE)
    assert alone is not None
    assert by_both(UNSURE, foreseen).hope >= alone.hope


def test_how_far_a_law_may_be_off_no_pair_shows() -> None:
    """As of a knee that a slow machine alone overloads: by one law of twenty it gains little."""
    found = by_both([(KNEE, Numbers(0.58))] * 8, 0.1, 0.01, *[0.1] * 9, *[0.4] * 10)
    off = math.log(0.58 / 0.5) - 0.1
    assert found.is_better
    assert found.low == pytest.approx(math.exp(0.01 + off), abs=0.01)
    assert found.high == pytest.approx(math.exp(0.4 + off), abs=0.03)


def test_luck_that_is_taken_out_is_told_beside_what_was_replayed() -> None:
    found = ratio(GOODPUT, [(KNEE, KNEE)] * 4, None, [(0.0, -0.025)] * 4)
    assert found is not None
    assert found.value == pytest.approx(1.05)
    assert found.replayed == pytest.approx(1.0)


def test_no_number_of_pairs_makes_up_for_what_the_twin_is_off() -> None:
    found = ratio(GOODPUT, [(KNEE, KNEE)] * 400, None, [(0.0, -0.04)] * 400)
    assert found is not None
    assert found.is_better
    assert math.log(found.high / found.low) > 2 * 1.9 * math.log(
        (0.5 + 0.04 * (1 + TWIN_OFF)) / 0.54
    )


def test_pairs_of_different_luck_show_how_far_the_twin_is_off() -> None:
    """The machine was slow for half of the pairs, by what the twin says; it gains a fifth."""
    lucks = [(0.0, 0.0), (-0.3, -0.1), (0.0, 0.0), (-0.25, -0.1)]
    pairs = [(Numbers(0.5 + knee), Numbers(0.6 + other)) for knee, other in lucks]
    found = ratio(GOODPUT, pairs, None, lucks)
    alike = ratio(GOODPUT, pairs[1:2] * 4, None, lucks[1:2] * 4)
    assert found is not None
    assert alike is not None
    assert found.value == pytest.approx(1.2, abs=0.01)
    assert 1.1 < found.low < found.high < 1.3
    assert alike.low < 1.05
    assert alike.high > 2


def test_much_luck_is_believed_where_the_pairs_show_it() -> None:
    """The refined one served less as replayed, and more than the knee of all the traffic."""
    lucks = [(0.0, luck) for luck in (-0.35, 0.0, -0.35, -0.1)]
    pairs = [(KNEE, Numbers(0.6 + luck)) for _, luck in lucks]
    found = ratio(GOODPUT, pairs, None, lucks)
    assert found is not None
    assert found.replayed < 0.9
    assert found.value == pytest.approx(1.2, abs=0.01)
    assert found.is_better


def test_luck_of_which_the_pairs_show_only_half_is_taken_out_by_half() -> None:
    lucks = [(0.0, luck) for luck in (-0.3, 0.1, 0.3, -0.2)]
    found = ratio(GOODPUT, [(KNEE, Numbers(0.6 + luck / 2)) for _, luck in lucks], None, lucks)
    assert found is not None
    assert found.value == pytest.approx(1.2, abs=0.01)
    assert found.is_better


@pytest.mark.parametrize(
    ("knee", "refined", "luck", "of_all"),
    [(0.5, 0.5, (0.0, -0.3), 1.6), (0.2, 0.2, (0.0, -0.3), 2.5), (0.5, 0.95, (0.4, 0.0), 9.5)],
)
def test_noise_of_one_side_says_nothing_of_a_luck_that_was_the_same_in_every_pair(
    knee: float, refined: float, luck: tuple[float, float], of_all: float
) -> None:
    pairs = [(Numbers(knee), Numbers(refined + 0.05 * sign)) for sign in (-1, 1) * 4]
    found = ratio(GOODPUT, pairs, None, [luck] * 8)
    assert found is not None
    assert found.value == pytest.approx(of_all)


def test_what_no_difference_between_pairs_shows_stays_in_the_interval() -> None:
    """The twin is right of what differs between them; of what all have it may be off."""
    lucks = [(0.0, luck - 0.2) for luck in (-0.2, 0.1, 0.2, -0.1) * 100]
    found = ratio(GOODPUT, [(KNEE, Numbers(0.6 + luck)) for _, luck in lucks], None, lucks)
    assert found is not None
    assert found.low < 1.2 - 1.9 * 0.4 * TWIN_OFF / math.sqrt(2)


def test_luck_that_is_wrong_by_chance_is_no_sign_of_a_twin_that_is() -> None:
    """Equal engines; what the twin says of each pair is off by as much as its luck differs."""
    rng = np.random.default_rng(0)
    better = 0
    for _ in range(100):
        real = rng.normal(-0.15, 0.02, 8)
        pairs = [(KNEE, Numbers(0.5 + luck)) for luck in real + rng.normal(0.0, 0.01, 8)]
        lucks = [(0.0, luck) for luck in real + rng.normal(0.0, 0.02, 8)]
        found = ratio(GOODPUT, pairs, None, lucks)
        assert found is not None
        better += found.is_better or found.high < 1
    assert better <= 10


def test_a_gain_that_rests_on_the_twin_alone_proves_nothing() -> None:
    """The replays were alike; that one was unlucky by 40 % is what the twin says."""
    found = ratio(GOODPUT, [(KNEE, KNEE)] * 4, ByTwin(0.30, [0.30, 0.40]), [(0.0, -0.2)] * 4)
    assert found is not None
    assert found.value > 1.35
    assert found.low < 1 < found.high
    assert not found.is_better


def of_all(share: float) -> float:
    """What 6 % and 18 % come to where so much of a luck of -0.61 and -0.57 was real."""
    return (0.18 + 0.57 * share) / (0.06 + 0.61 * share)


def test_small_shares_that_are_far_apart_are_no_sign_of_much_luck() -> None:
    """6 % and 18 % served in a hard window; of all 67 % and 75 %, says the twin: 0.02 is luck."""
    lucks = [(-0.61, -0.57)] * 4
    found = ratio(GOODPUT, [(Numbers(0.06), Numbers(0.18))] * 4, None, lucks)
    assert found is not None
    assert found.value == pytest.approx(0.75 / 0.67)
    assert found.replayed == pytest.approx(3.0)
    assert found.is_better
    of_normal, of_t = (1 - reach * TWIN_OFF for reach in (1.96, student_t_975(5.0)))
    assert of_all(of_normal) < found.high < of_all(of_t)


def test_how_far_the_twin_is_off_of_a_knee_with_little_left_is_not_alike_on_both_sides() -> None:
    """The knee served half, of all a tenth says the twin: the interval reaches down to what was
    replayed, and no further."""
    found = ratio(GOODPUT, [(KNEE, Numbers(0.95))] * 8, None, [(0.4, 0.0)] * 8)
    assert found is not None
    assert found.value == pytest.approx(9.5)
    assert 1.8 < found.low < 0.95 / 0.5
    assert found.high > 0.95 / 0.03


def test_gains_are_log_ratios_in_which_goodput_comes_before_the_tail() -> None:
    more, shorter = Numbers(0.515, tail_s=2.0), Numbers(0.5, tail_s=0.5)
    (first,) = gains([GOODPUT], more, KNEE) or ()
    (second,) = gains([GOODPUT], shorter, KNEE) or ()
    assert first == pytest.approx(0.0296 - 0.01, abs=0.0001)
    assert second == pytest.approx(0.01)


def test_of_nothing_that_was_served_a_ratio_is_bounded() -> None:
    assert gains([GOODPUT], KNEE, Numbers(0.0)) == pytest.approx((math.log(0.5 / 0.01),))
    assert gains([GOODPUT], Numbers(0.005), Numbers(0.0)) == (0.0,)


@pytest.mark.parametrize("knee", [0.0, 0.009])
def test_where_next_to_nothing_is_served_no_shorter_tail_is_a_gain(knee: float) -> None:
    """That 0.9 % of all were lost is no difference that can be seen."""
    assert proven(*[(Numbers(knee), Numbers(0.0, tail_s=0.5))] * 4) is None


def test_of_little_that_is_served_a_little_more_proves_nothing() -> None:
    """Replays of equal engines differ by 0.01 of all requests: that is a third of 0.03."""
    assert proven(*[(Numbers(0.03), Numbers(0.0375))] * 4) is None
    assert proven(*[(Numbers(0.5), Numbers(0.625))] * 4) == "goodput"


def test_what_the_twin_takes_out_of_both_sides_leaves_it_off_as_well() -> None:
    """0.2 and 0.8 without a luck of -0.1 are 0.3 and 0.9; of -0.12 they are 0.32 and 0.92."""
    pairs = [(Numbers(0.2), Numbers(0.8))] * 400
    found = ratio(GOODPUT, pairs, None, [(-0.1, -0.1)] * 400)
    assert found is not None
    assert found.value == pytest.approx(3.0)
    assert math.log(found.high / found.low) > 2 * 1.9 * math.log(3.0 / (0.92 / 0.32))


def test_a_replay_in_which_nothing_served_leaves_the_others_comparable() -> None:
    """A noisy neighbour took the machine while the knee was replayed the second time."""
    usual, nothing = (KNEE, Numbers(0.6)), (Numbers(0.0), Numbers(0.6))
    lucks = [(0.0, 0.0), (-0.5, 0.0), (0.0, 0.0), (0.0, 0.0)]
    found = ratio(GOODPUT, [usual, nothing, usual, usual], None, lucks)
    assert found is not None
    assert found.value == pytest.approx(1.2, rel=0.001)


def test_on_the_front_is_what_no_other_beats_in_both() -> None:
    assert front([(1.0, 0.0), (0.0, 1.0), (0.0, 0.5), (1.0, 0.0)]) == [0, 1, 3]


@pytest.mark.parametrize("text", ["speed", "goodput,goodput", "goodput,tpot,ttft", ""])
def test_what_is_no_aim_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--objective"):
        parse_objectives(text)
