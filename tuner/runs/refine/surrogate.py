"""The twin as the cheap first look at a configuration: what it gains over the knee. Pure.

It can tell of the admission cap, the token budget, the number of KV blocks and the interval at
which prefill is scheduled, for the whole of the traffic and under laws as likely as the fitted one.
Of anything else only a replay can tell. What it tells is the mean over the speeds that the machine
has at times: a configuration that just serves all at machine speed does not in a slower minute,
and is no match for one that has room to spare.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.engines.scheduler.state import StepLaw
from tuner.replay.measure import Spread, spread
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, number, restart_key
from tuner.runs.refine.objective import Objective, deficit, gain_over
from tuner.traffic.slo import Slo
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, met, simulate

LAWS = 20
SURROGATE_REQUESTS = 20_000
"""Requests that the surrogate replays, or the search would wait for the twin: the busiest stretch
of so many."""

ALIKE = 0.002
"""Gains so close by the twin are those of configurations between which nothing is to choose."""

BLOCKS = "num_gpu_blocks_override"

Slowdowns = Sequence[tuple[float, float]]
"""Slowdowns of a machine as factors on its law, each with its share of the time."""

STEADY: Slowdowns = ((1.0, 1.0),)
LEAST_SPEED_SD = 0.01
"""Standard deviation of log slowdown below which a machine is steady: three times the work would
tell the same."""


@dataclass(frozen=True, slots=True)
class TwinNumbers:
    """The twin's numbers of some windows together, as far as aims look at them."""

    attainment: float
    output_tokens_per_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2el_s: Spread | None


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The twin's forecast of one configuration; gains as ``objective.gain_over`` gives them."""

    gain: float
    samples: tuple[float, ...]
    """Under each drawn law."""

    deficit: float
    is_whole: bool
    """False where the configuration also differs in what the twin cannot tell."""

    def upper(self) -> float:
        """Return the most that this can gain, with 97.5 % certainty."""
        return max(self.gain, float(np.quantile(self.samples, 0.975)))


@dataclass(slots=True)
class Surrogate:
    """The twin, asked about configurations."""

    laws: Sequence[StepLaw]
    """The fitted one, then laws as likely."""

    shape: EngineShape
    slo: Slo
    traffic: Traffic
    aim: Objective
    knee: Configuration
    slowdowns: Slowdowns = STEADY

    _measured: dict[tuple[int, int, EngineShape], TwinNumbers] = field(default_factory=dict)

    def foresee(self, one: Configuration, *, sure: bool = True) -> Foreseen | None:
        """Return what a configuration gains; None where that is undefined. Without ``sure`` only
        the fitted law is asked."""
        middle = self._gain(0, one)
        if middle is None:
            return None
        attained, by_knee = (self.measurement(0, each).attainment for each in (one, self.knee))
        laws = range(1, len(self.laws)) if sure else ()
        samples = [found for law in laws if (found := self._gain(law, one)) is not None]
        return Foreseen(
            gain=middle,
            samples=tuple(samples) or (middle,),
            deficit=deficit(attained, by_knee),
            is_whole=self.tells(one),
        )

    def best_first(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """Return the configurations in the order of what the fitted law says of the aim, what
        breaks the constraint last; of equal ones the smaller caps, then what differs less from the
        knee."""

        def rank(one: Configuration) -> tuple[float, ...]:
            found = self.foresee(one, sure=False)
            if found is None:
                return (math.inf,)
            changed = abs(math.log(number(one[TOKENS]) / number(self.knee[TOKENS])))
            broken = float(found.deficit > 0)
            return (broken, -round(found.gain, 4), number(one[CAP]), changed)

        return sorted(configurations, key=rank)

    def _shape_at(self, one: Configuration) -> EngineShape:
        blocks = one.get(BLOCKS) or self.shape.kv_blocks
        return replace(
            self.shape,
            max_num_batched_tokens=number(one[TOKENS]),
            kv_blocks=number(blocks),
        )

    def are_alike(self, one: Configuration, other: Configuration, *, within: float) -> bool:
        """Whether no law tells two configurations apart that one engine can serve."""
        if restart_key(one) != restart_key(other):
            return False
        for law in range(len(self.laws)):
            here, there = self._gain(law, one), self._gain(law, other)
            if here is None or there is None or abs(here - there) > within:
                return False
        return True

    def forecast(self, aim: Objective, one: Configuration) -> float | None:
        """Return the log gain of one aim by the fitted law; None where the twin cannot tell."""
        if not self.tells(one):
            return None
        here, there = (aim.log(self.measurement(0, each)) for each in (one, self.knee))
        return None if here is None or there is None else here - there

    def tells(self, one: Configuration) -> bool:
        """Whether the configuration differs from the knee in nothing that the twin cannot tell."""
        told = {*LIVE, BLOCKS}
        return all(one[name] == self.knee.get(name) for name in one.keys() - told)

    def measurement(self, law: int, one: Configuration) -> TwinNumbers:
        """Return what a replay of the traffic would measure, as a mean over the slowdowns; law 0 is
        the fitted one."""
        shape = self._shape_at(one)
        key = (law, number(one[CAP]), shape)
        if key not in self._measured:
            cap, slowed = number(one[CAP]), self.laws[law].slowed
            replays = [
                (simulate(self.traffic, slowed(factor), shape, max_num_seqs=cap), share)
                for factor, share in self.slowdowns
            ]
            self._measured[key] = pooled(self.traffic, replays, self.slo)
        return self._measured[key]

    def _gain(self, law: int, one: Configuration) -> float | None:
        return gain_over(self.aim, self.measurement(law, one), self.measurement(law, self.knee))


def surrogate_of(view: Forecast, aim: Objective, knee: Configuration) -> Surrogate:
    """Return the twin of a forecast, ready to be asked."""
    return Surrogate(
        laws=[view.fitted.law, *view.fitted.draws(LAWS)],
        shape=view.shape,
        slo=view.slo,
        traffic=view.traffic.busiest(SURROGATE_REQUESTS),
        aim=aim,
        knee=knee,
        slowdowns=slowdowns_of(view.speed_sd),
    )


def slowdowns_of(speed_sd: float) -> Slowdowns:
    """Return the slowdowns that stand for all of a machine whose log slowdown has this standard
    deviation: the three of Gauss and Hermite, by which means of smooth curves are exact.

    >>> [(round(factor, 2), round(share, 2)) for factor, share in slowdowns_of(0.1)]
    [(0.84, 0.17), (1.0, 0.67), (1.19, 0.17)]
    """
    if speed_sd < LEAST_SPEED_SD:
        return STEADY
    far = math.exp(math.sqrt(3) * speed_sd)
    return ((1 / far, 1 / 6), (1.0, 2 / 3), (far, 1 / 6))


def pooled(traffic: Traffic, replays: Sequence[tuple[TwinReplay, float]], slo: Slo) -> TwinNumbers:
    """Return what replays of one traffic give together, each with its weight."""
    heavy = np.concatenate([np.full(len(traffic), weight) for _, weight in replays])
    good = sum(weight * float(met(traffic, one, slo).sum()) for one, weight in replays)

    def over(name: str) -> Spread | None:
        values = np.concatenate([getattr(one, name) for one, _ in replays])
        known = ~np.isnan(values)
        return spread(values[known], heavy[known])

    return TwinNumbers(
        attainment=good / float(heavy.sum()) if len(heavy) else 0.0,
        output_tokens_per_s=sum(
            weight * one.output_tokens / max(1e-9, one.duration_s) for one, weight in replays
        ),
        ttft_s=over("ttft_s"),
        tpot_s=over("tpot_s"),
        e2el_s=over("e2el_s"),
    )
