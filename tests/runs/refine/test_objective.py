"""What a refinement makes better, as numbers that can be compared."""

import math
from dataclasses import dataclass

import pytest

from tuner.errors import UsageError
from tuner.replay.measure import Spread
from tuner.runs.refine.objective import GOODPUT, front, gains, parse_objectives


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


KNEE = Numbers(0.5)


def test_gains_are_log_ratios_in_which_goodput_comes_before_the_tail() -> None:
    more, shorter = Numbers(0.515, tail_s=2.0), Numbers(0.5, tail_s=0.5)
    (first,) = gains([GOODPUT], more, KNEE) or ()
    (second,) = gains([GOODPUT], shorter, KNEE) or ()
    assert first == pytest.approx(0.0296 - 0.01, abs=0.0001)
    assert second == pytest.approx(0.01)


def test_of_nothing_that_was_served_a_ratio_is_bounded() -> None:
    assert gains([GOODPUT], KNEE, Numbers(0.0)) == pytest.approx((math.log(0.5 / 0.01),))
    assert gains([GOODPUT], Numbers(0.005), Numbers(0.0)) == (0.0,)


def test_on_the_front_is_what_no_other_beats_in_both() -> None:
    assert front([(1.0, 0.0), (0.0, 1.0), (0.0, 0.5), (1.0, 0.0)]) == [0, 1, 3]


@pytest.mark.parametrize("text", ["speed", "goodput,goodput", "goodput,tpot,ttft", ""])
def test_what_is_no_aim_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--objective"):
        parse_objectives(text)
