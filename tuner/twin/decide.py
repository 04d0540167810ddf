"""The choice of a cap, for the recorded load and for the headroom. Pure; the one rule that decides.

  today  = caps with A(1, m) >= max A(1, .) - tol, of these those with p99 E2EL <= 1.05 x the
           shortest
  choice = the smallest m of today with A(h, m) >= max over today of A(h, .) - tol

with A the attainment at a load, 1 and h = headroom, and tol = 0.01, or two requests where these are
more. Where no candidate serves half at the headroom, or there is no headroom, it is the smallest of
today. docs/decisions says why, and what would change our mind.

An answer is *right* where nobody could distinguish it from the choice for any practical purpose.
Most draws decide: of the model, or of the windows that were replayed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.traffic.constants import (
    BAD_SIDE,
    CONFIDENT,
    EQUAL_ATTAINMENT,
    EQUAL_TAIL,
    FEW_REQUESTS_APART,
    GOOD_ATTAINMENT,
    GOOD_TAIL,
    HALF,
    NEAR_ENOUGH,
    OWN_CHOICE,
)
from tuner.traffic.requirements import Requirement, RequirementCheck
from tuner.traffic.slo import Slo
from tuner.twin.samples import Draw, Loads, Samples, ask
from tuner.twin.simulation import EngineShape, FrontEnd

OBJECTIVE = (
    "most requests within the SLO today, then the shortest p99 E2EL; of these most within the SLO "
    "with headroom, then the fewest slots"
)

Checks = Mapping[int, tuple[RequirementCheck, ...]]
"""Cap → each requirement, and what is known of it there."""


class Ruling(NamedTuple):
    """What the rule says of caps, in ascending order along the last axis."""

    choice: NDArray[np.int64]
    """Place of the choice."""

    candidates: NDArray[np.bool_]
    """Which caps serve the recorded load as well as any."""

    right: NDArray[np.bool_]
    """Which caps are as good as the choice for every practical purpose."""


def rule(
    attainment: ArrayLike,
    tails_s: ArrayLike,
    with_headroom: ArrayLike | None = None,
    *,
    requests: int | None = None,
) -> Ruling:
    """Decide between caps: attainment and p99 E2EL at the recorded load, attainment with headroom.

    >>> rule([0.991, 0.992, 0.90], [1, 1, 1], [0.93, 0.98, 0.99]).choice.item()
    1
    >>> rule([0.991, 0.992, 0.90], [1, 1, 1]).choice.item()
    0
    """
    shares, tails = np.asarray(attainment, float), np.asarray(tails_s, float)
    tails = np.where(np.isnan(tails), np.inf, tails)
    few = FEW_REQUESTS_APART / (requests or np.inf)
    equal, good = max(EQUAL_ATTAINMENT, few), max(GOOD_ATTAINMENT, few)
    kept = shares >= shares.max(-1, keepdims=True) - equal
    shortest = np.where(kept, tails, np.inf).min(-1, keepdims=True)
    candidates = kept & (tails <= shortest * EQUAL_TAIL)
    raised = np.zeros_like(shares) if with_headroom is None else np.asarray(with_headroom, float)
    most = np.where(candidates, raised, -np.inf).max(-1, keepdims=True)
    lost = most < HALF
    choice = np.argmax(candidates & (lost | (raised >= most - equal)), axis=-1)
    share, tail = (np.take_along_axis(each, choice[..., None], -1) for each in (shares, tails))
    right = (shares >= share - GOOD_ATTAINMENT) & (tails <= tail * GOOD_TAIL)
    return Ruling(choice, candidates, right & (lost | (raised >= most - good)))


# What is required


def checks_of(requirements: Sequence[Requirement], samples: Samples) -> Checks:
    """Return for each cap the number that 95 % of the draws stay on the good side of. A draw in
    which nothing came to that (NaN) breaks a requirement."""

    def bound(each: Requirement, cap: int) -> float:
        raised = each.at_headroom and samples.has_headroom
        column = samples.column(each.number, cap, raised=raised)
        share = BAD_SIDE if each.is_at_most else 1 - BAD_SIDE
        return float(np.quantile(column, share, method="weibull"))

    return {
        cap: tuple(RequirementCheck.of(each, bound(each, cap)) for each in requirements)
        for cap in samples.caps
    }


def broken(checks: Sequence[RequirementCheck]) -> str:
    """Return what a cap breaks, the worst first: "p99 ttft <= 500ms (at worst 612 ms)"."""
    worst = sorted(checks, key=_miss, reverse=True)
    return ", ".join(str(each) for each in worst if not each.kept)


def nearest(checks: Checks) -> int:
    """Return the cap that misses least what it misses most; the smallest of equals."""
    return min(checks, key=lambda cap: max(map(_miss, checks[cap])))


def _miss(check: RequirementCheck) -> float:
    known = [each for each in (check.at_worst, check.measured) if each is not None]
    return max(map(check.requirement.miss, known), default=math.inf)


# The choice


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice between caps, and how sure it is."""

    samples: Samples
    checks: Checks
    eligible: tuple[int, ...]
    """Caps that keep what is required, or all where none does."""

    best: int
    """The cap that is right, or as good as right, in most draws."""

    rightness: Mapping[int, float]
    """Cap → the share of draws in which it is right or as good."""

    interval: tuple[int, int]
    """The caps between which at least 95 % of the draws have a right one."""

    is_guess: bool = False
    """Whether the traffic makes batches at it that are larger than any that was measured."""

    @property
    def confidence(self) -> float:
        return self.rightness[self.best]


def decide(samples: Samples, checks: Checks, *, requests: int | None = None) -> Choice:
    """Return the cap on which most draws agree, by one rule for the model and for windows."""
    kept = (cap for cap, every in checks.items() if all(each.kept for each in every))
    eligible = tuple(kept) or samples.caps

    def of(name: str, *, raised: bool = False) -> Floats:
        return np.array([samples.column(name, cap, raised=raised) for cap in eligible]).T

    shares, tails_s = of("attainment"), of("e2el_p99_s")
    raised = of("attainment", raised=True) if samples.has_headroom else None
    choices, _, right = rule(shares, tails_s, raised, requests=requests)
    rightness, votes = right.mean(0), np.bincount(choices, minlength=len(eligible)) / len(choices)
    best = int(np.argmax(rightness + OWN_CHOICE * votes))
    low, high = interval_of(best, right)
    return Choice(
        samples=samples,
        checks=checks,
        eligible=eligible,
        best=eligible[best],
        rightness=dict(zip(eligible, rightness.tolist(), strict=True)),
        interval=(eligible[low], eligible[high]),
    )


def interval_of(best: int, right: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first and the last of the fewest caps around the best among which 95 % of draws,
    the rows, have a right one; of equally many the larger.

    >>> right = np.array([[False, True, False]] * 18 + [[True, False, False], [False, False, True]])
    >>> interval_of(1, right)
    (1, 2)
    """
    spans = [
        (low, high)
        for low in range(best + 1)
        for high in range(best, right.shape[1])
        if right[:, low : high + 1].any(1).mean() >= CONFIDENT - 1e-9
    ]
    return min(spans, key=lambda span: (span[1] - span[0], -span[0]))


def choose(  # noqa: PLR0913 - the question
    loads: Loads,
    laws: Sequence[StepLaw],
    shape: EngineShape,
    slo: Slo,
    caps: Sequence[int],
    *,
    seen: int,
    requirements: Sequence[Requirement] = (),
    front_end: FrontEnd | None = None,
) -> Choice:
    """Choose a cap for these loads, under laws that the measurements make as likely. ``seen`` is
    the largest batch that was measured.

    Where any cap keeps what is required, only such caps are chosen.
    """
    samples = ask([Draw(law, front_end) for law in laws], loads, caps, shape, slo)
    checks = checks_of(requirements, samples)
    choice = decide(samples, checks, requests=len(loads.today))
    decodes = loads.today.output_length.max(initial=0) > 1
    peak = samples.middle("running_peak", choice.best)
    return replace(choice, is_guess=bool(decodes and peak > NEAR_ENOUGH * seen))
