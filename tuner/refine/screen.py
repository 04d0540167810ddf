"""The twin as the cheap first look at a configuration: what it gains over the knee. Pure.

It can tell of the admission cap, the token budget and the number of KV blocks, for the whole of the
traffic and under laws as likely as the profile's. Of anything else only a replay can tell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.measure import Measurement
from tuner.records import Replay
from tuner.refine.knobs import CAP, LIVE, TOKENS, Configuration, number, restart_key
from tuner.refine.luck import Served, luck
from tuner.refine.objective import LEAST_ATTAINMENT, Objective, deficit, gains
from tuner.scheduler.state import StepLaw
from tuner.slo import Slo
from tuner.twin.forecast import Forecast, measurement_of
from tuner.twin.simulation import EngineShape, Traffic, simulate
from tuner.window import Window

LAWS = 20
MOST_SCREENED = 20_000
"""Requests that a configuration is screened with, or the search would wait for the twin: the
busiest stretch of so many."""

WINDOWS_SD = 0.03
"""How far what some windows gain is from what all of the traffic does (study of windows,
docs/decisions: attainment is off by 0.05)."""

SHORTEST_S = 1e-3
"""Of a stretch whose requests arrive at once."""

BLOCKS = "num_gpu_blocks_override"


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What the twin says of one configuration; gains as in ``objective.gains``."""

    gains: tuple[float, ...]
    samples: tuple[tuple[float, ...], ...]
    """Under each drawn law."""

    deficit: float
    is_whole: bool
    """False where the configuration also differs in what the twin cannot tell."""

    def upper(self, aim: int) -> float:
        """Return the most that this can gain, with 97.5 % certainty."""
        return max(self.gains[aim], float(np.quantile([one[aim] for one in self.samples], 0.975)))


@dataclass(slots=True)
class Screen:
    """The twin, asked about configurations."""

    laws: Sequence[StepLaw]
    """The fitted one, then laws as likely."""

    shape: EngineShape
    slo: Slo
    traffic: Traffic
    objectives: Sequence[Objective]
    knee: Configuration
    hit_share: float = 0.0
    """See ``traffic_of``."""

    _measured: dict[tuple[int, ...], Measurement] = field(default_factory=dict)

    def foresee(self, one: Configuration, *, sure: bool = True) -> Foreseen | None:
        """Return what a configuration gains; None where that is undefined. Without ``sure`` only
        the middle law is asked."""
        middle = self._gains(0, one)
        if middle is None:
            return None
        attained, by_knee = (self.measurement(0, each).attainment for each in (one, self.knee))
        laws = range(1, len(self.laws)) if sure else ()
        samples = [found for law in laws if (found := self._gains(law, one)) is not None]
        return Foreseen(
            gains=middle,
            samples=tuple(samples) or (middle,),
            deficit=deficit(attained, by_knee),
            is_whole=self.tells(one),
        )

    def best_first(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """Return the configurations in the order of what the middle law says of the first aim, what
        breaks the constraint last; of equal ones the smaller caps, then what differs less from the
        knee."""

        def rank(one: Configuration) -> tuple[float, ...]:
            found = self.foresee(one, sure=False)
            if found is None:
                return (math.inf,)
            changed = abs(math.log(number(one[TOKENS]) / number(self.knee[TOKENS])))
            broken = float(found.deficit > 0)
            return (broken, -round(found.gains[0], 4), number(one[CAP]), changed)

        return sorted(configurations, key=rank)

    def luck(
        self, one: Configuration, replays: Sequence[Replay], aims: Sequence[Objective]
    ) -> tuple[float, ...]:
        """Return per aim what of these replays was the machine's speed and the windows' traffic; of
        use in differences alone, between configurations that the twin tells of."""
        law = up_to(self.laws[0], number(one[CAP]))
        usual = self.measurement(0, one)
        return luck(aims, replays, law, self._shape_at(one), self.slo, usual)

    def served(self, one: Configuration, traffic: Traffic, window: Window) -> Served:
        """Return what a configuration makes of the traffic of a window at the usual speed."""
        law = up_to(self.laws[0], number(one[CAP]))
        replay = simulate(traffic, law, self._shape_at(one), max_num_seqs=number(one[CAP]))
        return Served(traffic, replay, traffic.arrival_s >= window.start_s, window.weight)

    def _shape_at(self, one: Configuration) -> EngineShape:
        blocks = one.get(BLOCKS) or self.shape.kv_blocks
        return replace(
            self.shape, max_num_batched_tokens=number(one[TOKENS]), kv_blocks=number(blocks)
        )

    def are_alike(self, one: Configuration, other: Configuration, *, within: float) -> bool:
        """Whether no law tells two configurations apart that one engine can serve."""
        if restart_key(one) != restart_key(other):
            return False
        for law in range(len(self.laws)):
            here, there = self._gains(law, one), self._gains(law, other)
            if here is None or there is None:
                return False
            if any(abs(a - b) > within for a, b in zip(here, there, strict=True)):
                return False
        return True

    def samples(self, aim: Objective, one: Configuration) -> list[float]:
        """Return the log gain of one aim under each drawn law; none where the twin cannot tell."""
        if not self.tells(one):
            return []
        found = []
        for law in range(1, len(self.laws)):
            here, there = (aim.log(self.measurement(law, each)) for each in (one, self.knee))
            if here is not None and there is not None:
                found.append(here - there)
        return found

    def tells(self, one: Configuration) -> bool:
        """Whether the configuration differs from the knee in nothing that the twin cannot tell."""
        told = {*LIVE, BLOCKS}
        return all(one[name] == self.knee.get(name) for name in one.keys() - told)

    def measurement(self, law: int, one: Configuration) -> Measurement:
        """Return what a replay of the traffic would measure; law 0 is the middle one."""
        cap, shape = number(one[CAP]), self._shape_at(one)
        key = (law, cap, shape.max_num_batched_tokens, shape.kv_blocks)
        if key not in self._measured:
            self._measured[key] = measured_by(
                self.traffic, self.laws[law], shape, self.slo, cap=cap
            )
        return self._measured[key]

    def _gains(self, law: int, one: Configuration) -> tuple[float, ...] | None:
        return gains(self.objectives, self.measurement(law, one), self.measurement(law, self.knee))


def screen_of(view: Forecast, objectives: Sequence[Objective], knee: Configuration) -> Screen:
    """Return the twin of a forecast, ready to be asked."""
    return Screen(
        laws=(view.fitted.law, *view.fitted.draws(LAWS, seed=0)),
        shape=view.shape,
        slo=view.slo,
        traffic=busiest(view.traffic),
        objectives=objectives,
        knee=knee,
        hit_share=view.hit_share,
    )


def measured_by(
    traffic: Traffic, law: StepLaw, shape: EngineShape, slo: Slo, *, cap: int
) -> Measurement:
    """Return what a law says of the traffic at a cap, without what only a log would tell."""
    replay = simulate(traffic, up_to(law, cap), shape, max_num_seqs=cap)
    length_s = float(np.ptp(traffic.arrival_s)) if len(traffic) else 0.0
    one = measurement_of(
        traffic, replay, slo, kv_blocks=shape.kv_blocks, length_s=max(1.0, length_s)
    )
    return replace(one, output_tokens_per_s=replay.output_tokens / max(1e-9, replay.duration_s))


def up_to(law: StepLaw, cap: int) -> StepLaw:
    """Return the law tabulated up to a cap at least; beyond its table it rises as at its end."""
    missing = cap + 1 - len(law.decode_s)
    if missing <= 0:
        return law
    slope_s = float(law.decode_s[-1] - law.decode_s[-2]) if len(law.decode_s) > 1 else 0.0
    more = law.decode_s[-1] + slope_s * np.arange(1, missing + 1)
    return law._replace(decode_s=np.concatenate((law.decode_s, more)))


def busiest(traffic: Traffic) -> Traffic:
    """Return the stretch of MOST_SCREENED requests that asks for the most in its time."""
    if len(traffic) <= MOST_SCREENED:
        return traffic
    arrivals = traffic.arrival_s
    work = np.cumsum(np.concatenate(([0], traffic.input_length + traffic.output_length)))
    asked = work[MOST_SCREENED:] - work[:-MOST_SCREENED]
    took_s = arrivals[MOST_SCREENED - 1 :] - arrivals[: len(asked)]
    first = int(np.argmax(asked / np.maximum(took_s, SHORTEST_S)))
    end_s = float(arrivals[first + MOST_SCREENED]) if first + MOST_SCREENED < len(traffic) else None
    return traffic.between(float(arrivals[first]), math.inf if end_s is None else end_s)


def combined(
    objectives: Sequence[Objective],
    foreseen: Foreseen | None,
    measured: Sequence[float],
    *,
    attainment: float,
) -> tuple[float, ...]:
    """Return the best guess from what the twin says and what one replay measured, each weighted by
    how far it may be off: the twin's law by its draws, and as much as a replay besides. How far a
    replay's goodput is off is a share of all requests, so the more of itself the less
    ``attainment``, the knee's, there is."""
    if foreseen is None:
        return tuple(measured)
    found = []
    for aim, objective in enumerate(objectives):
        of_replay = 2 * (objective.prior_sd**2 + WINDOWS_SD**2)
        if objective.is_share:
            of_replay /= max(LEAST_ATTAINMENT, attainment) ** 2
        drawn = [sample[aim] for sample in foreseen.samples]
        of_twin = objective.prior_sd**2 + float(np.var(drawn))
        share = of_twin / (of_twin + of_replay)
        found.append(share * measured[aim] + (1 - share) * foreseen.gains[aim])
    return tuple(found)
