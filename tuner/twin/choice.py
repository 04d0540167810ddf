"""The choice by the twin for both loads, and how sure the measurements make it. Pure.

A draw is a law that the measurements might as well have given, and a copy of the headroom load;
both are the same for every cap and both loads, so that differences between caps are paired.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo
from tuner.twin.front_end import FrontEnd, simulate_behind
from tuner.twin.load import Loads
from tuner.twin.objective import (
    NOT_ASKED,
    Shares,
    Values,
    candidates,
    choose,
    deciding,
    interval_of,
    right_caps,
    trades,
)
from tuner.twin.required import NOTHING_REQUIRED, Bounds, Numbers, Required
from tuner.twin.simulation import (
    EngineShape,
    Traffic,
    TwinReplay,
    attainment,
    quantile,
    tail_s,
)

DRAWS = 40
"""Draws while a run decides what to measure next. What is printed has more (``draws.PRINTED``), at
the caps that may be chosen."""

PLAUSIBLE = 0.2
"""A cap whose attainment is so much lower than the best is no candidate, unless it is next to the
best."""

NEAR_ENOUGH = 17 / 16
"""Batches so little larger than the largest measured one are no guess: it is the distance between
knots."""

OWN_CHOICE = 0.02
"""Share of the draws by which another cap must be right more often than the law's own choice."""

UNTRADED_IN = 0.99
"""Share of the draws in which a cap costs nothing today, or no headroom is worth it."""

LEAST_S = 1e-9
"""Of a tail that has a logarithm: laws may be drawn in which an iteration takes no time."""


Said = TypeVar("Said")


class Statistics(NamedTuple):
    """The statistics of one replay by the twin. Seconds; NaN where nothing came to that."""

    attainment: float
    log_tail: float
    """Log of p99 E2EL."""

    tpot_p95_s: float
    queue_p95_s: float
    kv_peak: float
    preemptions: float

    @classmethod
    def of(cls, traffic: Traffic, replay: TwinReplay, slo: Slo) -> "Statistics":
        return cls(
            *value_of(traffic, replay, slo),
            tpot_p95_s=_p95(replay.tpot_s),
            queue_p95_s=_p95(replay.queue_s),
            kv_peak=replay.kv_usage_peak,
            preemptions=float(replay.preemptions.sum()),
        )


class Laws(Protocol):
    """A step-time law, and others that the measurements make as likely."""

    @property
    def law(self) -> StepLaw: ...

    @property
    def extrapolated_from(self) -> int:
        """The largest batch size that was seen."""

    def draws(self, count: int) -> Sequence[StepLaw]: ...


@dataclass(frozen=True, slots=True)
class Weighed:
    """A fitted law's view of every cap, and of the choice between them."""

    values: Values
    """By the law itself, at today's load."""

    raised: Shares
    """By the law itself, with headroom: at least of today's candidates. Empty where headroom is not
    asked about."""

    best: int
    """The cap that is right, or as good as right, under the most laws that might be true."""

    agreeing: int
    """The number of draws in which it is."""

    draws: int
    interval: tuple[int, int]
    """The caps between which at least 95 % of the draws have a right one."""

    rightness: Mapping[int, float]
    """Cap → the share of draws in which it is right or as good; candidates only."""

    samples: Mapping[int, tuple[Statistics, ...]]
    """Cap → what each of the draws gives today, in one order for all caps; of those that cannot be
    chosen of fewer draws."""

    raised_samples: Mapping[int, tuple[float, ...]]
    """The attainment with headroom; empty where that is not asked about, or not everywhere."""

    unseen: tuple[int, ...]
    """Caps at which the traffic makes batches larger than any that was measured: a guess."""

    bounds: Bounds = field(default_factory=Bounds)
    """What is required, and how far every cap keeps it."""

    @property
    def eligible(self) -> Values:
        """Today's values of the caps that may be chosen by what is required."""
        return self.bounds.eligible(self.values)

    @property
    def confidence(self) -> float:
        return self.agreeing / self.draws

    def drawn(self) -> tuple[tuple[Values, Shares], ...]:
        """Return what each of the first draws, which were asked about every cap, says of them."""
        every = list(zip(*self.samples.values(), strict=False))  # the shortest ends it
        raised = list(zip(*self.raised_samples.values(), strict=False)) or [()] * len(every)
        return tuple(
            (
                {
                    cap: (said.attainment, said.log_tail)
                    for cap, said in zip(self.samples, today, strict=True)
                },
                dict(zip(self.raised_samples, more, strict=True)),
            )
            for today, more in zip(every[:DRAWS], raised[:DRAWS], strict=True)
        )


def value_of(traffic: Traffic, replay: TwinReplay, slo: Slo) -> tuple[float, float]:
    """Return attainment and log tail of one replay."""
    return attainment(traffic, replay, slo), math.log(max(LEAST_S, tail_s(replay)))


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
    everywhere: bool = False,
    draws: int = DRAWS,
) -> Weighed:
    """Choose a cap for these loads, under the law and under laws that are as likely.

    Where any cap meets what is required, only such caps are chosen. ``length_s`` is how long
    today's traffic arrives. ``front_end`` is what it comes through; None where the engine alone is
    asked.

    With ``everywhere``, and where something is required, there are samples for every cap at both
    loads; otherwise only today's, of those that may be chosen.
    """
    rate_rps = len(loads.today) / length_s
    question = Question(loads, shape, slo, tuple(requirements), rate_rps, front_end)
    replays = dict(_replays(loads.today, fitted.law, shape, caps, front_end=front_end))
    values = {cap: value_of(loads.today, replay, slo) for cap, replay in replays.items()}
    everywhere = everywhere or bool(requirements)
    raised = question.raised(fitted.law, values, everywhere=everywhere)
    requests, kept = len(loads.today), plausible(values)
    laws = list(enumerate(fitted.draws(draws)))
    drawn = [
        question.drawn(number, law, caps if everywhere else kept, raise_all=everywhere)
        for number, law in laws[:DRAWS]
    ]
    bounds = Bounds.of(requirements, [one.required for one in drawn])
    eligible = bounds.eligible(values)
    kept = plausible(eligible)
    drawn += [question.drawn(number, law, kept) for number, law in laws[DRAWS:]]
    shares = [one.shares(kept) for one in drawn]
    right = [right_caps(*one, requests=requests) for one in shares]
    counts = Counter(cap for one in right for cap in one)
    best = agreed({cap: values[cap] for cap in kept}, raised, shares, requests=requests)
    return Weighed(
        values=values,
        raised=raised,
        best=best,
        agreeing=counts[best],
        draws=draws,
        interval=interval_of(best, right, caps),
        rightness={cap: counts[cap] / draws for cap in kept},
        samples=_by_cap([one.today for one in drawn], caps if everywhere else kept),
        raised_samples=_by_cap([one.raised for one in drawn], caps) if everywhere else {},
        unseen=tuple(
            cap
            for cap in caps
            if loads.today.output_length.max(initial=0) > 1  # one token is no decoding
            and replays[cap].running_peak > NEAR_ENOUGH * fitted.extrapolated_from
        ),
        bounds=bounds,
    )


def agreed(
    own: Values,
    raised: Shares,
    drawn: Sequence[tuple[Values, Shares]],
    *,
    requests: int | None = None,
) -> int:
    """Return the cap on which most draws agree.

    It is one that costs nothing in 99 % of them today, against the cap on which they agree for
    today alone.

    >>> less, equal = {8: (0.995, 0.0), 16: (0.990, 0.0)}, {8: (0.995, 0.0), 16: (0.995, 0.0)}
    >>> raised = {8: 0.80, 16: 0.95}
    >>> hundred = [(equal, raised)] * 99 + [(less, raised)]
    >>> agreed(equal, raised, hundred), agreed(equal, raised, hundred[1:])
    (16, 8)
    """

    def favourite(caps: Collection[int], right: Sequence[Collection[int]], choice: int) -> int:
        counts = Counter(cap for one in right for cap in one)
        near = OWN_CHOICE * len(right)
        return max(caps, key=lambda cap: (counts[cap] + near * (cap == choice), -cap))

    today = [right_caps(values, requests=requests) for values, _ in drawn]
    today_best = favourite(own, today, choose(own, requests=requests))
    right = [right_caps(*one, requests=requests) for one in drawn]
    untraded = [
        cap
        for cap in own
        if fmean(trades(values, today_best, cap) for values, _ in drawn) <= 1 - UNTRADED_IN + 1e-9
    ]
    return favourite(untraded, right, choose(own, raised, requests=requests))


class LawDraw(NamedTuple):
    """The numbers that one law gives caps, at both loads."""

    today: Mapping[int, Statistics]
    raised: Shares
    required: Mapping[int, Numbers]
    """Of both loads."""

    def shares(self, caps: Sequence[int]) -> tuple[Values, Shares]:
        """Return what decides between these caps."""
        return (
            {cap: (self.today[cap].attainment, self.today[cap].log_tail) for cap in caps},
            self.raised,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """The question that a law is asked: which loads, on which engine, by which SLO."""

    loads: Loads
    shape: EngineShape
    slo: Slo
    requirements: tuple[Requirement, ...] = ()
    rate_rps: float = 0.0
    """At which today's requests arrive."""

    front_end: FrontEnd | None = None
    """What they come through; None: the engine alone is asked."""

    def drawn(
        self, number: int, law: StepLaw, caps: Sequence[int], *, raise_all: bool = False
    ) -> LawDraw:
        """Return a draw: with headroom only what decides there, unless all is asked for."""
        needed = self.required(at_headroom=False)
        today, numbers = self._asked(law, caps, self.loads.today, needed, Statistics.of)
        if not self.loads.raised:
            return LawDraw(today, {}, numbers)
        values = {cap: (one.attainment, one.log_tail) for cap, one in today.items()}
        asked = caps if raise_all else deciding(values, requests=len(self.loads.today))
        more = self.required(at_headroom=True)
        raised, there = self.attained(law, asked, self.loads.drawn(number), more)
        return LawDraw(
            today, raised, {cap: {**numbers[cap], **there.get(cap, {})} for cap in numbers}
        )

    def required(self, *, at_headroom: bool) -> Required:
        """Return what is required at a load."""
        asked = tuple(one for one in self.requirements if one.at_headroom == at_headroom)
        return Required(asked, self.slo, self.rate_rps * (self.loads.headroom**at_headroom))

    def raised(self, law: StepLaw, values: Values, *, everywhere: bool) -> Shares:
        """Return the attainment with headroom by one law. Of today's candidates it is the mean over
        all copies of the load; of others that may be chosen, or with ``everywhere`` of all, it is
        that of one copy."""
        if not self.loads.raised:
            return NOT_ASKED
        near = candidates(values, requests=len(self.loads.today))
        first, *others = self.loads.raised
        asked = values if everywhere else {*near, *plausible(values)}
        every, _ = self.attained(law, sorted(asked), first)
        copies = [every, *(self.attained(law, near, one)[0] for one in others)]
        return {cap: float(np.mean([one[cap] for one in copies if cap in one])) for cap in every}

    def attained(
        self,
        law: StepLaw,
        caps: Sequence[int],
        traffic: Traffic,
        required: Required = NOTHING_REQUIRED,
    ) -> tuple[Shares, Mapping[int, Numbers]]:
        """Return the attainment of each cap, and what is required."""
        return self._asked(law, caps, traffic, required, attainment)

    def _asked(
        self,
        law: StepLaw,
        caps: Sequence[int],
        traffic: Traffic,
        required: Required,
        of: Callable[[Traffic, TwinReplay, Slo], Said],
    ) -> tuple[Mapping[int, Said], Mapping[int, Numbers]]:
        """Return what each cap gives, and what of that is required."""
        found: dict[int, tuple[Said, Numbers]] = {}
        log = required.needs_iterations
        for cap, replay in _replays(
            traffic, law, self.shape, caps, log=log, front_end=self.front_end
        ):
            found[cap] = found.get(replay.max_num_seqs) or (
                of(traffic, replay, self.slo),
                required.numbers(traffic, replay, self.shape),
            )
        return (
            {cap: said for cap, (said, _) in found.items()},
            {cap: numbers for cap, (_, numbers) in found.items()},
        )


def _replays(  # noqa: PLR0913 - what is replayed, on what, and how much of it is wanted
    traffic: Traffic,
    law: StepLaw,
    shape: EngineShape,
    caps: Sequence[int],
    *,
    log: bool = False,
    front_end: FrontEnd | None = None,
) -> Iterator[tuple[int, TwinReplay]]:
    """Yield each cap, ascending, with its replay. Above a cap that never binds all have the same
    one."""
    replay: TwinReplay | None = None
    for cap in sorted(caps):
        if replay is None or replay.running_peak >= replay.max_num_seqs:
            replay = simulate_behind(front_end, traffic, law, shape, max_num_seqs=cap, log=log)
        yield cap, replay


def _by_cap(
    drawn: Sequence[Mapping[int, Said]], caps: Sequence[int]
) -> Mapping[int, tuple[Said, ...]]:
    found = {cap: tuple(one[cap] for one in drawn if cap in one) for cap in caps}
    return {cap: samples for cap, samples in found.items() if samples}


def plausible(values: Values) -> list[int]:
    """Return the caps between which the choice is."""
    caps = sorted(values)
    place = caps.index(choose(values))
    most = max(share for share, _ in values.values())
    return [
        cap
        for i, cap in enumerate(caps)
        if abs(i - place) <= 1 or values[cap][0] >= most - PLAUSIBLE
    ]


def _p95(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return quantile(known, 0.95) if len(known) else math.nan
