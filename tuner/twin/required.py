"""Requirements of a cap, by the twin's draws. Pure.

A cap meets a requirement when 95 % of the draws do: its *bound* is their quantile on the bad side.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.replay.iterations import kv_cache_usage
from tuner.replay.measure import spread
from tuner.traffic.requirements import KV, Requirement, RequirementCheck
from tuner.traffic.slo import Slo
from tuner.twin.objective import Values
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, attainment

Numbers = Mapping[Requirement, float]
"""Requirement → the number that it is a bound on, of one cap; NaN where nothing came to that."""


@dataclass(frozen=True, slots=True)
class Required:
    """The requirements at one load."""

    requirements: tuple[Requirement, ...] = ()
    slo: Slo = field(default_factory=Slo)
    rate_rps: float = 0.0
    """At which requests arrive at this load."""

    @property
    def needs_iterations(self) -> bool:
        """Whether one is of what only the log of iterations tells."""
        return any(
            one.name == "itl" or (one.name == KV and one.statistic == "p99")
            for one in self.requirements
        )

    def numbers(self, traffic: Traffic, replay: TwinReplay, shape: EngineShape) -> Numbers:
        """Return what a replay by the twin says of each."""
        return {one: self._number(one, traffic, replay, shape) for one in self.requirements}

    def _number(
        self, one: Requirement, traffic: Traffic, replay: TwinReplay, shape: EngineShape
    ) -> float:
        match one.name:
            case "attainment":
                return attainment(traffic, replay, self.slo)
            case "goodput":
                return attainment(traffic, replay, self.slo) * self.rate_rps
            case "preemptions":
                return float(replay.preemptions.sum())
            case "kv_cache_usage":
                if one.statistic == "p99":
                    usage = kv_cache_usage(replay.iterations, shape.kv_blocks)
                    return math.nan if usage is None else usage.p99
                return replay.kv_usage_peak if one.statistic == "peak" else replay.kv_usage_mean
            case "itl":
                work = replay.iterations
                found = spread(work["duration_s"], work["decode_seqs"]) if len(work) else None
            case _:
                times_s = getattr(replay, f"{one.name}_s")
                found = spread(times_s[times_s == times_s])  # noqa: PLR0124 - without NaN
        return math.nan if found is None else float(getattr(found, one.statistic))


NOTHING_REQUIRED = Required()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The requirements, and how far each cap is sure to keep them."""

    requirements: tuple[Requirement, ...] = ()
    of_cap: Mapping[int, Numbers] = field(default_factory=dict)

    @classmethod
    def of(
        cls, requirements: Sequence[Requirement], drawn: Sequence[Mapping[int, Numbers]]
    ) -> "Bounds":
        """Return the bounds over draws, each of the same caps."""
        if not requirements or not drawn:
            return cls()
        return cls(
            tuple(requirements),
            {
                cap: {one: one.bound_of([each[cap][one] for each in drawn]) for one in requirements}
                for cap in drawn[0]
            },
        )

    def broken(self, cap: int) -> list[Requirement]:
        """Return what a cap breaks, the worst first."""
        numbers = self.of_cap.get(cap, {})
        found = [one for one in self.requirements if not one.is_met_by(numbers[one])]
        return sorted(found, key=lambda one: -one.miss(numbers[one]))

    def eligible(self, values: Values) -> Values:
        """Return the caps that may be chosen: those that break nothing, or all where none does."""
        kept = {cap: value for cap, value in values.items() if not self.broken(cap)}
        return kept or values

    def nearest(self) -> int:
        """Return the cap that misses least what it misses most; the smallest of equals."""

        def miss(cap: int) -> float:
            return max((one.miss(self.of_cap[cap][one]) for one in self.broken(cap)), default=0.0)

        return min(self.of_cap, key=lambda cap: (miss(cap), cap))

    def checks(self, cap: int) -> tuple[RequirementCheck, ...]:
        """Return what is known of each at a cap."""
        return tuple(RequirementCheck(one, self.of_cap[cap][one]) for one in self.requirements)

    def shown(self, cap: int) -> str:
        """Say what a cap breaks, worst first: "p99 ttft <= 500ms (612 ms)"."""
        numbers = self.of_cap[cap]
        return ", ".join(f"{one} ({one.shown(numbers[one])})" for one in self.broken(cap))
