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
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import Floats
from tuner.traffic.constants import (
    BAD_SIDE,
    CONFIDENT,
    DRAWS,
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
from tuner.twin.law import Laws
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


@dataclass(frozen=True, slots=True)
class Bounds:
    """The requirements, and how far each cap is sure to keep them.

    A cap keeps a requirement when 95 % of the draws do: its *bound* is their quantile on the bad
    side.
    """

    requirements: tuple[Requirement, ...] = ()
    of_cap: Mapping[int, Mapping[Requirement, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, requirements: Sequence[Requirement], samples: Samples) -> "Bounds":
        result = {
            cap: {
                each: _bound(each, samples.column(each.number, cap, raised=each.at_headroom))
                for each in requirements
            }
            for cap in samples.caps
        }
        return cls(tuple(requirements), result if requirements else {})

    def broken(self, cap: int) -> list[Requirement]:
        """Return what a cap breaks, the worst first."""
        numbers = self.of_cap.get(cap, {})
        result = [each for each, value in numbers.items() if not each.is_met_by(value)]
        return sorted(result, key=lambda each: -each.miss(numbers[each]))

    def eligible(self, caps: Sequence[int]) -> tuple[int, ...]:
        """Return the caps that may be chosen: those that break nothing, or all where none does."""
        return tuple(cap for cap in caps if not self.broken(cap)) or tuple(caps)

    def nearest(self) -> int:
        """Return the cap that misses least what it misses most; the smallest of equals."""

        def miss(cap: int) -> float:
            numbers = self.of_cap[cap]
            return max((each.miss(numbers[each]) for each in self.broken(cap)), default=0.0)

        return min(self.of_cap, key=lambda cap: (miss(cap), cap))

    def checks(self, cap: int) -> tuple[RequirementCheck, ...]:
        """Return what is known of each at a cap."""
        return tuple(RequirementCheck(each, self.of_cap[cap][each]) for each in self.requirements)

    def shown(self, cap: int) -> str:
        """Return what a cap breaks, worst first: "p99 ttft <= 500ms (612 ms)"."""
        numbers = self.of_cap[cap]
        return ", ".join(f"{each} ({each.shown(numbers[each])})" for each in self.broken(cap))


def _bound(each: Requirement, drawn: Floats) -> float:
    """Return the number that 95 % of the draws stay on the good side of. A draw in which nothing
    came to that (NaN) breaks it."""
    share = BAD_SIDE if each.is_at_most else 1 - BAD_SIDE
    return float(np.quantile(drawn, share, method="weibull")) if len(drawn) else math.nan


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice between caps, and how sure it is."""

    own: Samples
    """By the fitted law itself, with each copy of the headroom load; or what the windows showed."""

    samples: Samples
    """By the draws."""

    eligible: tuple[int, ...]
    """Caps that may be chosen by what is required."""

    best: int
    """The cap that is right, or as good as right, in most draws."""

    rightness: Mapping[int, float]
    """Cap → the share of draws in which it is right or as good."""

    interval: tuple[int, int]
    """The caps between which at least 95 % of the draws have a right one."""

    requests: int | None
    unseen: tuple[int, ...] = ()
    """Caps at which the traffic makes batches larger than any that was measured: a guess."""

    bounds: Bounds = field(default_factory=Bounds)

    @property
    def confidence(self) -> float:
        return self.rightness[self.best]

    def share(self, cap: int, *, raised: bool = False) -> float:
        """Return the attainment of a cap by the fitted law itself."""
        return float(self.own.column("attainment", cap, raised=raised).mean())

    def chosen_of(self, caps: Sequence[int]) -> int:
        """Return the choice between some caps by the fitted law itself."""
        return caps[int(self._ruling(caps).choice)]

    def candidates(self) -> list[int]:
        """Return the eligible caps that serve the recorded load as well as any."""
        kept = self._ruling(self.eligible).candidates.tolist()
        return [cap for cap, is_one in zip(self.eligible, kept, strict=True) if is_one]

    def _ruling(self, caps: Sequence[int]) -> Ruling:
        return _ruling(self.own, caps, self.requests, is_mean=True)


def _ruling(
    samples: Samples, caps: Sequence[int], requests: int | None, *, is_mean: bool = False
) -> Ruling:
    """Return the rule's answer between these caps, draw by draw or for the mean of them."""

    def of(name: str, *, raised: bool = False) -> Floats:
        columns = np.array([samples.column(name, cap, raised=raised) for cap in caps])
        return np.asarray(columns.mean(1) if is_mean else columns.T)

    raised = of("attainment", raised=True) if samples.has_headroom else None
    return rule(of("attainment"), of("e2el_p99_s"), raised, requests=requests)


def decide(
    own: Samples,
    samples: Samples,
    *,
    bounds: Bounds,
    requests: int | None = None,
    unseen: tuple[int, ...] = (),
) -> Choice:
    """Return the cap on which most draws agree, by one rule for the model and for windows."""
    eligible = bounds.eligible(own.caps)
    right = _ruling(samples, eligible, requests).right
    rightness = dict(zip(eligible, right.mean(0).tolist(), strict=True))
    choice = eligible[int(_ruling(own, eligible, requests, is_mean=True).choice)]
    best = max(eligible, key=lambda cap: (rightness[cap] + OWN_CHOICE * (cap == choice), -cap))
    interval = interval_of(best, eligible, right)
    return Choice(own, samples, eligible, best, rightness, interval, requests, unseen, bounds)


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
    fitted: Laws,
    shape: EngineShape,
    slo: Slo,
    caps: Sequence[int],
    *,
    requirements: Sequence[Requirement] = (),
    front_end: FrontEnd | None = None,
    draws: int = DRAWS,
) -> Choice:
    """Choose a cap for these loads, under the law and under laws that are as likely.

    Where any cap keeps what is required, only such caps are chosen.
    """
    log = any(each.needs_log for each in requirements)
    copies = [Draw(fitted.law, front_end)] * max(1, len(loads.raised))
    own = ask(copies, loads, caps, shape, slo)
    laws = [Draw(law, front_end) for law in fitted.draws(draws)]
    samples = ask(laws, loads, caps, shape, slo, log=log)
    most = NEAR_ENOUGH * fitted.extrapolated_from
    decodes = loads.today.output_length.max(initial=0) > 1
    return decide(
        own,
        samples,
        bounds=Bounds.of(requirements, samples),
        requests=len(loads.today),
        unseen=tuple(
            cap
            for cap in own.caps
            if decodes and float(own.column("running_peak", cap).max(initial=0.0)) > most
        ),
    )
