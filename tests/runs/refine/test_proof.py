"""When a gain over the knee is accepted, and when it is not: the pairs alone tell."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.builders import flat, measurement
from tuner.replay.numbers import Measurement
from tuner.runs.pairs import log_ratio, mean_ratio, proof_of

Pair = tuple[Measurement, Measurement]


def pair(knee: float, refined: float, *, tails_s: tuple[float, float] = (1.0, 1.0)) -> Pair:
    first, second = (
        measurement(8, attainment=share, e2el_s=flat(tail_s))
        for share, tail_s in zip((knee, refined), tails_s, strict=True)
    )
    return first, second


def served(*attained: float) -> list[Pair]:
    return [pair(0.5, each) for each in attained]


def shorter(*tails_s: float, share: float = 1.0) -> list[Pair]:
    return [pair(1.0, share, tails_s=(1.0, tail_s)) for tail_s in tails_s]


@pytest.mark.parametrize(
    ("pairs", "is_gain"),
    [
        (served(0.54, 0.55, 0.56, 0.55), True),
        (shorter(0.8, 0.78, 0.82, 0.8), True),
        (shorter(0.8, 0.78, 0.82, 0.8, share=0.95), False),
        (shorter(0.99, 1.0, 1.01, 1.0), False),
        (served(0.54, 0.55, 0.40, 0.70), False),
    ],
)
def test_more_goodput_or_a_shorter_tail_at_no_less_is_a_gain(
    pairs: list[Pair], *, is_gain: bool
) -> None:
    assert (proof_of(pairs).sureness is not None) == is_gain


def test_times_are_compared_by_students_t_of_their_logarithms() -> None:
    """Logarithms -0.1 and 0.3: mean 0.1, standard error 0.2, and t of one degree is 12.706."""
    result = log_ratio([math.exp(-0.1), math.exp(0.3)], [1.0, 1.0])
    assert result is not None
    assert result.value == pytest.approx(math.exp(0.1))
    assert math.log(result.high or 0) == pytest.approx(0.1 + 12.706 * 0.2, rel=1e-4)
    assert math.log(result.low or 0) == pytest.approx(0.1 - 12.706 * 0.2, rel=1e-4)


def test_goodput_is_compared_by_the_ratio_of_means() -> None:
    """Twice and half as much of the same requests is no gain of a quarter."""
    result = mean_ratio([0.2, 0.8, 0.5, 0.5], [0.4, 0.4, 0.5, 0.5])
    assert result is not None
    assert result.value == pytest.approx(2.0 / 1.8)
    assert mean_ratio([0.2, 0.4], [0.0, 0.1]) is None


def equal(rng: np.random.Generator, pairs: int, sd: float) -> list[Pair]:
    """Return pairs of engines that serve alike, whose replays differ."""
    attained = np.clip(rng.normal(0.8, sd, (pairs, 2)), 0.0, 1.0).tolist()
    tails_s = np.exp(rng.normal(0.0, sd, (pairs, 2))).tolist()
    return [pair(*a, tails_s=(t[0], t[1])) for a, t in zip(attained, tails_s, strict=True)]


@pytest.mark.parametrize(("pairs", "sd"), [(4, 0.01), (4, 0.08), (8, 0.03), (16, 0.08)])
def test_of_equal_engines_a_gain_is_proven_in_a_twentieth_at_most(pairs: int, sd: float) -> None:
    """By goodput or by the tail; 3.3 standard deviations are left for the chance of 1,000 draws."""
    rng = np.random.default_rng(0)
    false = sum(proof_of(equal(rng, pairs, sd)).sureness is not None for _ in range(1000))
    assert false <= 1000 * 0.05 + 3.3 * math.sqrt(1000 * 0.05 * 0.95)


@pytest.mark.parametrize(
    ("half", "is_hopeless"),
    [
        (served(0.48, 0.47, 0.49, 0.48), True),
        (served(0.5, 0.5, 0.5, 0.5), True),
        (served(0.52, 0.53, 0.51, 0.52), False),
        (shorter(0.9, 0.8, 0.85, 0.9), False),
    ],
)
def test_half_of_the_pairs_give_up_what_they_leave_no_hope_for(
    half: Sequence[Pair], *, is_hopeless: bool
) -> None:
    assert proof_of(half).is_futile(planned=8) == is_hopeless
