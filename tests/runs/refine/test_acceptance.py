"""When a gain over the knee is accepted, and when it is not: the pairs alone tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tuner.replay.numbers import Spread
from tuner.runs.refine.aims import (
    GOODPUT,
    TAIL,
    PairedRatio,
    acceptance,
    is_futile,
    paired_ratio,
    ratios_of,
)


@dataclass(frozen=True)
class Numbers:
    attainment: float
    tail_s: float = 1.0
    output_tokens_per_s: float = 100.0
    ttft_s: Spread | None = None

    @property
    def e2el_s(self) -> Spread:
        return Spread(*[self.tail_s] * 5)

    @property
    def tpot_s(self) -> Spread:
        return Spread(*[self.tail_s / 100] * 5)


Pair = tuple[Numbers, Numbers]
KNEE, ALL = Numbers(0.5), Numbers(1.0)


def ratios(*pairs: Pair) -> dict[str, PairedRatio]:
    return ratios_of(pairs)


def accepted(*pairs: Pair, frees_memory: bool = False) -> str | None:
    result = acceptance(GOODPUT, ratios(*pairs), frees_memory=frees_memory)
    return None if result is None else result.of


def served(*attained: float) -> list[Pair]:
    return [(KNEE, Numbers(each)) for each in attained]


def test_more_goodput_a_shorter_tail_or_less_memory_are_gains_where_nothing_is_lost() -> None:
    assert accepted(*served(0.54, 0.55, 0.56, 0.55)) == "goodput"
    assert accepted(*[(ALL, replace(ALL, tail_s=by)) for by in (0.8, 0.78, 0.82, 0.8)]) == "e2el"
    slower = [(ALL, replace(ALL, tail_s=by)) for by in (1.19, 1.2, 1.21, 1.2)]
    alike = [(ALL, replace(ALL, tail_s=by)) for by in (0.99, 1.0, 1.01, 1.0)]
    assert accepted(*alike, frees_memory=True) == "memory"
    assert accepted(*slower, frees_memory=True) is None
    assert accepted(*alike) is None


def test_times_are_compared_by_students_t_of_their_logarithms() -> None:
    """Logarithms -0.1 and 0.3: mean 0.1, standard error 0.2, and t of one degree is 12.706."""
    pairs = [(ALL, replace(ALL, tail_s=math.exp(each))) for each in (-0.1, 0.3)]
    result = paired_ratio(TAIL, pairs)
    assert result is not None
    assert result.value == pytest.approx(math.exp(0.1))
    assert math.log(result.high) == pytest.approx(0.1 + 12.706 * 0.2, rel=1e-4)
    assert math.log(result.low) == pytest.approx(0.1 - 12.706 * 0.2, rel=1e-4)
    assert result.sureness == pytest.approx(0.5 - math.atan(0.5) / math.pi)  # longer is worse


def equal(rng: np.random.Generator, pairs: int, sd: float) -> list[Pair]:
    """Return pairs of engines that serve alike, whose replays differ."""
    attained = np.clip(rng.normal(0.8, sd, (pairs, 2)), 0.0, 1.0)
    tails = np.exp(rng.normal(0.0, sd, (pairs, 2)))
    return [
        (Numbers(*here), Numbers(*there)) for here, there in np.dstack((attained, tails)).tolist()
    ]


@pytest.mark.parametrize(("pairs", "sd"), [(4, 0.01), (4, 0.08), (8, 0.03), (16, 0.08)])
def test_of_equal_engines_a_gain_is_proven_in_a_twentieth_at_most(pairs: int, sd: float) -> None:
    """By goodput or by the tail; 3.3 standard deviations are left for the chance of 1,000 draws."""
    rng = np.random.default_rng(0)
    false = sum(accepted(*equal(rng, pairs, sd)) is not None for _ in range(1000))
    assert false <= 1000 * 0.05 + 3.3 * math.sqrt(1000 * 0.05 * 0.95)


def looked_at(pairs: Sequence[Pair]) -> bool:
    half = pairs[: len(pairs) // 2]
    return is_futile(GOODPUT, ratios(*half), pairs=len(pairs))


def test_half_of_the_pairs_give_up_what_they_leave_no_hope_for() -> None:
    assert looked_at(served(0.48, 0.47, 0.49, 0.48) * 2)
    assert looked_at(served(0.5, 0.5, 0.5, 0.5) * 2)
    assert not looked_at(served(0.52, 0.53, 0.51, 0.52) * 2)
    assert not looked_at([(ALL, replace(ALL, tail_s=by)) for by in (0.9, 0.8, 0.85, 0.9)] * 2)
