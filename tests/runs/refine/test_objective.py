"""What a refinement makes better, as numbers that can be compared."""

import math
from dataclasses import dataclass

import pytest

from tuner.errors import UsageError
from tuner.replay.measure import Spread
from tuner.runs.refine.objective import GOODPUT, gain_over, parse_objective


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
    assert gain_over(GOODPUT, more, KNEE) == pytest.approx(0.0296 - 0.01, abs=0.0001)
    assert gain_over(GOODPUT, shorter, KNEE) == pytest.approx(0.01)


def test_of_nothing_that_was_served_a_ratio_is_bounded() -> None:
    assert gain_over(GOODPUT, KNEE, Numbers(0.0)) == pytest.approx(math.log(0.5 / 0.01))
    assert gain_over(GOODPUT, Numbers(0.005), Numbers(0.0)) == 0.0


@pytest.mark.parametrize("text", ["speed", "goodput,tpot", ""])
def test_what_is_no_aim_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--objective"):
        parse_objective(text)
