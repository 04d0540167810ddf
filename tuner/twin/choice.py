"""What the twin predicts of every cap at both loads under many laws, and the choice. Pure.

A draw is a law that the measurements might as well have given, and a copy of the headroom load;
both are the same for every cap and both loads, so that differences between caps are paired. All of
it is one array, ``Samples``: every interval is a quantile over its draws.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.replay.iterations import kv_cache_usage
from tuner.replay.measure import spread
from tuner.traffic.requirements import KV, Requirement, RequirementCheck
from tuner.traffic.slo import Slo
from tuner.twin.front_end import FrontEnd, simulate_behind
from tuner.twin.load import Loads
from tuner.twin.objective import (
    NOT_ASKED,
    Shares,
    Values,
    choose,
    interval_of,
    right_caps,
)
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, attainment, quantile, tail_s

DRAWS = 40
"""Draws while a run decides what to measure next; what is printed has ``draws.PRINTED``."""

NEAR_ENOUGH = 17 / 16
"""Batches so little larger than the largest measured one are no guess: the distance of knots."""

OWN_CHOICE = 0.02
"""Share of the draws by which another cap must be right more often than the law's own choice."""

LEAST_S = 1e-9
"""Of a tail that has a logarithm: laws may be drawn in which an iteration takes no time."""

NUMBERS = ("attainment", "log_tail", "tpot_p95_s", "queue_p95_s", "kv_peak", "preemptions")
"""Numbers of a sample. Seconds; NaN where nothing came to that; ``log_tail`` is of p99 E2EL."""

Numbers = Mapping[Requirement, float]
"""Requirement → the number that it bounds, of one cap; NaN where nothing came to that."""


class Laws(Protocol):
    """A step-time law, and others that the measurements make as likely."""

    @property
    def law(self) -> StepLaw: ...

    @property
    def extrapolated_from(self) -> int:
        """The largest batch size that was seen."""

    def draws(self, count: int) -> Sequence[StepLaw]: ...


def value_of(traffic: Traffic, replay: TwinReplay, slo: Slo) -> tuple[float, float]:
    """Return attainment and log tail of one replay."""
    return attainment(traffic, replay, slo), math.log(max(LEAST_S, tail_s(replay)))


def numbers_of(traffic: Traffic, replay: TwinReplay, slo: Slo) -> list[float]:
    """Return NUMBERS of one replay."""
    times = [values[~np.isnan(values)] for values in (replay.tpot_s, replay.queue_s)]
    tails = [quantile(known, 0.95) if len(known) else math.nan for known in times]
    preemptions = float(replay.preemptions.sum())
    return [*value_of(traffic, replay, slo), *tails, replay.kv_usage_peak, preemptions]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The requirements, and how far each cap is sure to keep them.

    A cap keeps a requirement when 95 % of the draws do: its *bound* is their quantile on the bad
    side.
    """

    requirements: tuple[Requirement, ...] = ()
    of_cap: Mapping[int, Numbers] = field(default_factory=dict)

    @classmethod
    def of(
        cls, requirements: Sequence[Requirement], drawn: Sequence[Mapping[int, Numbers]]
    ) -> "Bounds":
        """Return the bounds over draws, each of the same caps."""
        if not requirements or not drawn:
            return cls()
        found = {
            cap: {each: each.bound_of([row[cap][each] for row in drawn]) for each in requirements}
            for cap in drawn[0]
        }
        return cls(tuple(requirements), found)

    def broken(self, cap: int) -> list[Requirement]:
        """Return what a cap breaks, the worst first."""
        numbers = self.of_cap.get(cap, {})
        found = [each for each in self.requirements if not each.is_met_by(numbers[each])]
        return sorted(found, key=lambda each: -each.miss(numbers[each]))

    def eligible(self, values: Values) -> Values:
        """Return the caps that may be chosen: those that break nothing, or all where none does."""
        return {cap: value for cap, value in values.items() if not self.broken(cap)} or values

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


@dataclass(frozen=True, slots=True)
class Question:
    """What a law predicts: which loads, on which engine, by which SLO."""

    loads: Loads
    shape: EngineShape
    slo: Slo
    requirements: tuple[Requirement, ...] = ()
    rate_rps: float = 0.0
    """At which requests arrive at the recorded load."""

    front_end: FrontEnd | None = None

    def replays(
        self, law: StepLaw, traffic: Traffic, caps: Sequence[int], *, log: bool = False
    ) -> dict[int, TwinReplay]:
        """Return each cap, ascending, with its replay: above a cap that never binds the same."""
        found: dict[int, TwinReplay] = {}
        replay: TwinReplay | None = None
        for cap in sorted(caps):
            if replay is None or replay.running_peak >= replay.max_num_seqs:
                replay = simulate_behind(
                    self.front_end, traffic, law, self.shape, max_num_seqs=cap, log=log
                )
            found[cap] = replay
        return found

    def drawn(
        self, number: int, law: StepLaw, caps: Sequence[int]
    ) -> tuple[list[list[list[float]]], dict[int, dict[Requirement, float]]]:
        """Return NUMBERS [load][cap] of one draw, and what is required at both loads."""
        loads = [self.loads.today]
        if self.loads.raised:
            loads.append(self.loads.drawn(number))
        rows, required = [], dict[int, dict[Requirement, float]]({cap: {} for cap in caps})
        for at_headroom, traffic in enumerate(loads):
            wanted = [each for each in self.requirements if each.at_headroom == bool(at_headroom)]
            log = any(each.name == "itl" or _is_kv_p99(each) for each in wanted)
            replays = self.replays(law, traffic, caps, log=log)
            rows.append([numbers_of(traffic, replays[cap], self.slo) for cap in caps])
            rate_rps = self.rate_rps * (self.loads.headroom if at_headroom else 1.0)
            for cap in caps:
                for each in wanted:
                    required[cap][each] = self._number(each, traffic, replays[cap], rate_rps)
        return rows, required

    def _number(
        self, each: Requirement, traffic: Traffic, replay: TwinReplay, rate_rps: float
    ) -> float:
        """Return the number of a replay that a requirement bounds."""
        match each.name:
            case "attainment":
                return attainment(traffic, replay, self.slo)
            case "goodput":
                return attainment(traffic, replay, self.slo) * rate_rps
            case "preemptions":
                return float(replay.preemptions.sum())
            case "kv_cache_usage":
                if _is_kv_p99(each):
                    usage = kv_cache_usage(replay.iterations, self.shape.kv_blocks)
                    return math.nan if usage is None else usage.p99
                peak = each.statistic == "peak"
                return replay.kv_usage_peak if peak else replay.kv_usage_mean
            case "itl":
                work = replay.iterations
                found = spread(work["duration_s"], work["decode_seqs"]) if len(work) else None
            case _:
                times_s = getattr(replay, f"{each.name}_s")
                found = spread(times_s[~np.isnan(times_s)])
        return math.nan if found is None else float(getattr(found, each.statistic))


def _is_kv_p99(each: Requirement) -> bool:
    return each.name == KV and each.statistic == "p99"


@dataclass(frozen=True, slots=True)
class Samples:
    """What every draw predicts of every cap."""

    caps: tuple[int, ...]
    values: Floats
    """[draw, load, cap, number of NUMBERS]; a second load where there is headroom."""

    def column(self, name: str, cap: int, *, raised: bool = False) -> Floats:
        """Return a number of a cap, draw by draw."""
        place, number = self.caps.index(cap), NUMBERS.index(name)
        return np.asarray(self.values[:, int(raised), place, number])

    def shares(self, caps: Sequence[int]) -> list[tuple[Values, Shares]]:
        """Return what decides between these caps, draw by draw."""
        places = [self.caps.index(cap) for cap in caps]
        found: list[tuple[Values, Shares]] = []
        for today, *raised in self.values.tolist():
            values = {cap: (today[i][0], today[i][1]) for cap, i in zip(caps, places, strict=True)}
            more = {cap: raised[0][i][0] for cap, i in zip(caps, places, strict=True) if raised}
            found.append((values, more))
        return found


@dataclass(frozen=True, slots=True)
class Weighed:
    """The choice between caps, and how sure it is."""

    values: Values
    """By the law itself, at the recorded load."""

    raised: Shares
    """By the law itself, with headroom; empty where there is none."""

    best: int
    """The cap that is right, or as good as right, in most draws."""

    agreeing: int
    """The number of draws in which it is."""

    draws: int
    interval: tuple[int, int]
    """The caps between which at least 95 % of the draws have a right one."""

    rightness: Mapping[int, float]
    """Cap → the share of draws in which it is right or as good."""

    samples: Samples
    unseen: tuple[int, ...] = ()
    """Caps at which the traffic makes batches larger than any that was measured: a guess."""

    bounds: Bounds = field(default_factory=Bounds)

    @property
    def eligible(self) -> Values:
        """The recorded load's values of the caps that may be chosen by what is required."""
        return self.bounds.eligible(self.values)

    @property
    def confidence(self) -> float:
        return self.agreeing / self.draws


def weigh(  # noqa: PLR0913 - the question, and how hard to look
    loads: Loads,
    fitted: Laws,
    shape: EngineShape,
    slo: Slo,
    caps: Sequence[int],
    *,
    requirements: Sequence[Requirement] = (),
    front_end: FrontEnd | None = None,
    length_s: float = math.inf,
    draws: int = DRAWS,
) -> Weighed:
    """Choose a cap for these loads, under the law and under laws that are as likely.

    Where any cap keeps what is required, only such caps are chosen. ``length_s`` is how long
    the traffic takes to arrive.
    """
    caps = tuple(sorted(caps))
    question = Question(
        loads, shape, slo, tuple(requirements), len(loads.today) / length_s, front_end
    )
    own = question.replays(fitted.law, loads.today, caps)
    values = {cap: value_of(loads.today, replay, slo) for cap, replay in own.items()}
    copies = [
        [
            attainment(load, replay, slo)
            for replay in question.replays(fitted.law, load, caps).values()
        ]
        for load in loads.raised
    ]
    raised = dict(zip(caps, np.mean(copies, axis=0).tolist(), strict=True)) if copies else NOT_ASKED
    drawn = [question.drawn(number, law, caps) for number, law in enumerate(fitted.draws(draws))]
    samples = Samples(caps, np.array([rows for rows, _ in drawn]))
    bounds = Bounds.of(requirements, [required for _, required in drawn])
    most = NEAR_ENOUGH * fitted.extrapolated_from
    decodes = loads.today.output_length.max(initial=0) > 1
    return decided(
        values,
        raised,
        samples,
        bounds=bounds,
        requests=len(loads.today),
        unseen=tuple(cap for cap in caps if decodes and own[cap].running_peak > most),
    )


def decided(  # noqa: PLR0913 - what decides
    values: Values,
    raised: Shares,
    samples: Samples,
    *,
    bounds: Bounds,
    requests: int | None = None,
    unseen: tuple[int, ...] = (),
) -> Weighed:
    """Return the cap on which most draws agree, by one rule for the twin and for windows."""
    kept = tuple(bounds.eligible(values))
    right = [right_caps(*each, requests=requests) for each in samples.shares(kept)]
    counts = Counter(cap for draw in right for cap in draw)
    eligible = {cap: values[cap] for cap in kept}
    choice = choose(eligible, raised, requests=requests)
    near = OWN_CHOICE * len(right)
    best = max(kept, key=lambda cap: (counts[cap] + near * (cap == choice), -cap))
    return Weighed(
        values=values,
        raised=raised,
        best=best,
        agreeing=counts[best],
        draws=len(right),
        interval=interval_of(best, right, samples.caps),
        rightness={cap: counts[cap] / len(right) for cap in kept},
        samples=samples,
        unseen=unseen,
        bounds=bounds,
    )
