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
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from tuner.twin.front_end import FrontEnd
from tuner.twin.samples import Draw, Loads, Samples, ask
from tuner.twin.simulation import EngineShape

OBJECTIVE = (
    "most requests within the SLO today, then the shortest p99 E2EL; of these most within the SLO "
    "with headroom, then the fewest slots"
)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the rule says of caps, in ascending order along the last axis."""

    choice: NDArray[np.int64]
    """Place of the choice."""

    candidates: NDArray[np.bool_]
    """Which caps serve the recorded load as well as any."""

    right: NDArray[np.bool_]
    """Which caps are as good as the choice for every practical purpose."""


def rule(
    shares: Any,  # noqa: ANN401 - what numpy takes for an array
    tails_s: Any,  # noqa: ANN401
    raised: Any = None,  # noqa: ANN401
    *,
    requests: int | None = None,
) -> Ruling:
    """Decide between caps: attainment and p99 E2EL at the recorded load, attainment with headroom.

    >>> rule([0.991, 0.992, 0.90], [1, 1, 1], [0.93, 0.98, 0.99]).choice.item()
    1
    >>> rule([0.991, 0.992, 0.90], [1, 1, 1]).choice.item()
    0
    """
    shares, tails = np.asarray(shares, float), np.log(np.maximum(1e-9, np.asarray(tails_s, float)))
    tails = np.where(np.isnan(tails), np.inf, tails)
    few = 0.0 if not requests else FEW_REQUESTS_APART / requests
    equal, good = max(EQUAL_ATTAINMENT, few), max(GOOD_ATTAINMENT, few)
    kept = shares >= shares.max(-1, keepdims=True) - equal
    shortest = np.where(kept, tails, np.inf).min(-1, keepdims=True)
    candidates = kept & (tails <= shortest + math.log(EQUAL_TAIL))
    enough, nearly = candidates, np.ones_like(candidates)
    if raised is not None:
        raised = np.asarray(raised, float)
        most = np.where(candidates, raised, -np.inf).max(-1, keepdims=True)
        lost = most < HALF
        enough = candidates & (lost | (raised >= most - equal))
        nearly = lost | (raised >= most - good)
    choice = np.argmax(enough, axis=-1)
    share, tail = (np.take_along_axis(each, choice[..., None], -1) for each in (shares, tails))
    right = (shares >= share - GOOD_ATTAINMENT) & (tails <= tail + math.log(GOOD_TAIL)) & nearly
    return Ruling(choice, candidates, right)


class Bounds:
    """The requirements, and how far each cap is sure to keep them.

    A cap keeps a requirement when 95 % of the draws do: its *bound* is their quantile on the bad
    side.
    """

    def __init__(self, requirements: Sequence[Requirement], samples: Samples) -> None:
        self.of_cap = {
            cap: {each: _bound(each, samples, cap) for each in requirements} for cap in samples.caps
        }

    def eligible(self) -> tuple[int, ...]:
        """Return the caps that may be chosen: those that break nothing, or all where none does."""
        return tuple(cap for cap in self.of_cap if not self.broken(cap)) or tuple(self.of_cap)

    def broken(self, cap: int) -> list[Requirement]:
        """Return what a cap breaks, the worst first."""
        bounds = self.of_cap[cap]
        broken = [each for each, value in bounds.items() if not each.is_met_by(value)]
        return sorted(broken, key=lambda each: -each.miss(bounds[each]))

    def nearest(self) -> int:
        """Return the cap that misses least what it misses most; the smallest of equals."""
        misses = {
            cap: max((each.miss(value) for each, value in bounds.items()), default=0.0)
            for cap, bounds in self.of_cap.items()
        }
        return min(misses, key=lambda cap: (misses[cap], cap))

    def checks(self, cap: int) -> tuple[RequirementCheck, ...]:
        """Return what is known of each at a cap."""
        return tuple(RequirementCheck.of(each, value) for each, value in self.of_cap[cap].items())

    def shown(self, cap: int) -> str:
        """Return what a cap breaks, worst first: "p99 ttft <= 500ms (612 ms)"."""
        bounds = self.of_cap[cap]
        return ", ".join(f"{each} ({each.shown(bounds[each])})" for each in self.broken(cap))


def _bound(each: Requirement, samples: Samples, cap: int) -> float:
    """Return the number that 95 % of the draws stay on the good side of. A draw in which nothing
    came to that (NaN) breaks it."""
    raised = each.at_headroom and samples.has_headroom
    share = BAD_SIDE if each.is_at_most else 1 - BAD_SIDE
    return float(
        np.quantile(samples.column(each.number, cap, raised=raised), share, method="weibull")
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice between caps, and how sure it is."""

    samples: Samples
    bounds: Bounds
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


def decide(
    samples: Samples,
    *,
    requirements: Sequence[Requirement] = (),
    requests: int | None = None,
) -> Choice:
    """Return the cap on which most draws agree, by one rule for the model and for windows."""
    bounds = Bounds(requirements, samples)
    eligible = bounds.eligible()

    def of(name: str, *, raised: bool = False) -> Floats:
        return np.array([samples.column(name, cap, raised=raised) for cap in eligible]).T

    shares, tails_s = of("attainment"), of("e2el_p99_s")
    raised = of("attainment", raised=True) if samples.has_headroom else None
    ruling = rule(shares, tails_s, raised, requests=requests)
    rightness = dict(zip(eligible, ruling.right.mean(0).tolist(), strict=True))
    more = None if raised is None else raised.mean(0)
    mean = rule(shares.mean(0), np.median(tails_s, axis=0), more, requests=requests).choice
    own = eligible[int(mean)]
    best = max(eligible, key=lambda cap: (rightness[cap] + OWN_CHOICE * (cap == own), -cap))
    return Choice(
        samples=samples,
        bounds=bounds,
        eligible=eligible,
        best=best,
        rightness=rightness,
        interval=interval_of(best, eligible, ruling.right),
    )


def interval_of(best: int, caps: Sequence[int], right: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the fewest caps around ``best`` among which 95 % of draws have a right one; of equally
    many those in which more have, then the larger. ``right`` has a row for each draw.

    >>> right = np.array([[False, True, False]] * 18 + [[True, False, False], [False, False, True]])
    >>> interval_of(8, (4, 8, 16), right)
    (8, 16)
    """
    at = caps.index(best)
    result = []
    for low in range(at + 1):
        for high in range(at, len(caps)):
            share = float(right[:, low : high + 1].any(1).mean())
            if share >= CONFIDENT - 1e-9 or high - low == len(caps) - 1:
                result.append((high - low, -share, -low))
    width, _, low = min(result)
    return caps[-low], caps[width - low]


def choose(  # noqa: PLR0913 - the question, and how hard to look
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
    drawn = [Draw(law, front_end) for law in laws]
    samples = ask(drawn, loads, caps, shape, slo)
    choice = decide(samples, requirements=requirements, requests=len(loads.today))
    decodes = loads.today.output_length.max(initial=0) > 1
    peak = samples.middle("running_peak", choice.best)
    is_guess = bool(decodes and peak > NEAR_ENOUGH * seen)
    return replace(choice, is_guess=is_guess)
