"""The aims of `tuner refine`: what it makes better. Pure.

Gains are logarithms of ratios to the knee, larger is better: 0.01 is 1 %. The first aim is the
knee's own: the most requests within the SLO, then the shortest tail. What is compared was sent the
same requests, so that the ratio of goodput is that of attainment.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from tuner.errors import UsageError
from tuner.replay.measure import Spread
from tuner.twin.objective import EQUAL_ATTAINMENT
from tuner.twin.uncertainty import PRIOR_SD

TAIL_WORTH = 0.01
"""Most that p99 E2EL counts beside goodput, reached where it halves or doubles: it decides between
configurations that serve as much, as it does for the knee."""

TAIL_PER_LOG = TAIL_WORTH / math.log(2)
"""The same of a small change, for each unit of its log ratio."""

LEAST_S = 1e-6
LEAST_ATTAINMENT = EQUAL_ATTAINMENT
"""Attainment that counts for any lower one: else a neighbour that took a whole replay would be the
end of a comparison."""


class AimNumbers(Protocol):
    """The numbers that aims look at: a measurement, or a step of a profile's curve in seconds."""

    @property
    def attainment(self) -> float: ...
    @property
    def output_tokens_per_s(self) -> float: ...
    @property
    def ttft_s(self) -> Spread | None: ...
    @property
    def tpot_s(self) -> Spread | None: ...
    @property
    def e2el_s(self) -> Spread | None: ...


@dataclass(frozen=True, slots=True)
class Objective:
    """One number to make better."""

    name: str
    text: str
    larger_is_better: bool
    of: Callable[[AimNumbers], float | None]
    prior_sd: float
    """How far two replays of the same differ, before any was seen (log scale)."""

    is_share: bool = False
    """Whether it is attainment: noise adds to that and does not multiply it."""

    time: str | None = None
    """Of which spread of times it is, if of one; as ``AimNumbers`` name it."""

    def log(self, one: AimNumbers) -> float | None:
        """Return the logarithm, so that larger is better; None where nothing was measured."""
        value = self.of(one)
        if value is not None and self.is_share:
            return math.log(max(LEAST_ATTAINMENT, value))
        if value is None or value <= 0:
            return None
        return math.log(value) if self.larger_is_better else -math.log(value)


def _tail(name: str, share: Literal["p95", "p99"], prior_sd: float) -> Objective:
    """Return the aim to make a percentile of a time shorter."""
    time = f"{name}_s"

    def of(one: AimNumbers) -> float | None:
        found: Spread | None = getattr(one, time)
        return None if found is None else max(LEAST_S, float(getattr(found, share)))

    return Objective(name, f"{share} {name.upper()}", False, of, prior_sd, time=time)


_TIME_SD = PRIOR_SD["e2el_p99_ms"]
OBJECTIVES: Mapping[str, Objective] = {
    one.name: one
    for one in (
        Objective(
            "goodput",
            "goodput",
            larger_is_better=True,
            of=lambda one: one.attainment,
            prior_sd=PRIOR_SD["goodput_rps"],
            is_share=True,
        ),
        Objective(
            "throughput",
            "output tokens per second",
            larger_is_better=True,
            of=lambda one: one.output_tokens_per_s,
            prior_sd=PRIOR_SD["goodput_rps"],
        ),
        _tail("e2el", "p99", _TIME_SD),
        _tail("tpot", "p95", PRIOR_SD["tpot_p95_ms"]),
        _tail("ttft", "p95", _TIME_SD),
    )
}
GOODPUT, TAIL = OBJECTIVES["goodput"], OBJECTIVES["e2el"]


def parse_objective(text: str) -> Objective:
    """Read the name of an aim. Raises UsageError for one that is not known."""
    if text not in OBJECTIVES:
        raise UsageError(
            f"--objective {text!r} is not known", hint=f"Choose of {', '.join(OBJECTIVES)}."
        )
    return OBJECTIVES[text]


def gain_over(objective: Objective, one: AimNumbers, knee: AimNumbers) -> float | None:
    """Return how much better than the knee a measurement is; None where that is unknown.

    Beside goodput the tail counts a little, so that one number orders configurations as the knee's
    objective does.
    """
    better = gain(objective, one, knee)
    if better is not None and objective is GOODPUT:
        tail = gain(TAIL, one, knee) or 0.0
        better += max(-TAIL_WORTH, min(TAIL_WORTH, TAIL_PER_LOG * tail))
    return better


def deficit(one: float, knee: float) -> float:
    """Return how much of the knee's attainment is missing; at most 0 keeps the constraint."""
    return knee - EQUAL_ATTAINMENT - one


def gain(objective: Objective, one: AimNumbers, knee: AimNumbers) -> float | None:
    """Return how much better one aim is than the knee's."""
    here, there = objective.log(one), objective.log(knee)
    return None if here is None or there is None else here - there
