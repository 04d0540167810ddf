"""The twin as the cheap first look at a configuration: what it gains over the knee. Pure.

It can tell of the admission cap, the token budget and the number of KV blocks, for the whole of the
traffic and under laws as likely as the profile's. Of anything else only a replay can tell. What it
tells is the mean over the speeds that the machine wanders between: what just serves all at the
usual speed does not in a slower minute, and is no match for what has room to spare.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.engines.scheduler.state import StepLaw
from tuner.profile.stored_twin import StoredTwin
from tuner.replay.records import Replay
from tuner.runs.refine.gains.luck import Seen, Served, luck, seen
from tuner.runs.refine.gains.usual import usual_laws
from tuner.runs.refine.gains.with_twin import ByTwin
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, number, restart_key
from tuner.runs.refine.objective import LEAST_ATTAINMENT, Objective, deficit, gains
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, simulate, traffic_of

LAWS = 20
MOST_SCREENED = 20_000
"""Requests that a configuration is screened with, or the search would wait for the twin: the
busiest stretch of so many."""

WINDOWS_SD = 0.03
"""How far what some windows gain is from what all of the traffic does (study of windows,
docs/decisions: attainment is off by 0.05)."""

ALIKE = 0.002
"""Gains so close by the twin are those of configurations between which nothing is to choose."""

SHORTEST_S = 1e-3
"""Of a stretch whose requests arrive at once."""

BLOCKS = "num_gpu_blocks_override"

Paces = Sequence[tuple[float, float]]
"""How slow a machine is at times, as factors on its law, and at what share of the time."""

STEADY: Paces = ((1.0, 1.0),)
LEAST_SPEED_SD = 0.01
"""Standard deviation of log slowness below which a machine is steady: three times the work would
tell the same."""


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

    paces: Paces = STEADY

    _measured: dict[tuple[int, ...], Seen] = field(default_factory=dict)

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
        usual = self.measurement(0, one)
        return luck(aims, replays, self.laws[0], self._shape_at(one), self.slo, usual)

    def served(
        self, one: Configuration, traffic: Traffic, window: Window, *, slowness: float = 1.0
    ) -> Served:
        """Return what a configuration makes of the traffic of a window, by default at the usual
        speed."""
        scored = traffic.arrival_s >= window.start_s
        replay = self._replay(one, traffic, slowness=slowness)
        return Served(traffic, replay, scored, window.weight)

    def sent_in(self, workload: Workload, window: Window, *, hash_block_size: int) -> Traffic:
        """Return what a replay of a window sends, to a prefix cache that is empty."""
        return traffic_of(
            workload.sent_in(window), hash_block_size=hash_block_size, hit_share=self.hit_share
        )

    def worst(self, one: Configuration, traffic: Traffic, window: Window) -> float:
        """Return the attainment in a window that falls in a slow time of the machine."""
        slowest = max(slowness for slowness, _ in self.paces)
        return seen([self.served(one, traffic, window, slowness=slowest)], self.slo).attainment

    def at_usual_speed(self) -> "Screen":
        """Return the twin of a machine whose speed does not speed_sd."""
        return replace(self, paces=STEADY, _measured={})

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

    def says(self, aim: Objective, one: Configuration) -> ByTwin | None:
        """Return the log gain of one aim; None where the twin cannot tell by every law."""
        if not self.tells(one):
            return None
        found = []
        for law in range(len(self.laws)):
            here, there = (aim.log(self.measurement(law, each)) for each in (one, self.knee))
            if here is None or there is None:
                return None
            found.append(here - there)
        return ByTwin(found[0], found[1:])

    def tells(self, one: Configuration) -> bool:
        """Whether the configuration differs from the knee in nothing that the twin cannot tell."""
        told = {*LIVE, BLOCKS}
        return all(one[name] == self.knee.get(name) for name in one.keys() - told)

    def measurement(self, law: int, one: Configuration) -> Seen:
        """Return what a replay of the traffic would measure, as a mean over the paces; law 0 is the
        middle one."""
        shape = self._shape_at(one)
        key = (law, number(one[CAP]), shape.max_num_batched_tokens, shape.kv_blocks)
        if key not in self._measured:
            traffic, scored = self.traffic, np.ones(len(self.traffic), bool)
            self._measured[key] = seen(
                [
                    Served(traffic, self._replay(one, traffic, law, slowness), scored, share)
                    for slowness, share in self.paces
                ],
                self.slo,
            )
        return self._measured[key]

    def _replay(
        self, one: Configuration, traffic: Traffic, law: int = 0, slowness: float = 1.0
    ) -> TwinReplay:
        slowed = self.laws[law].slowed(slowness)
        return simulate(traffic, slowed, self._shape_at(one), max_num_seqs=number(one[CAP]))

    def _gains(self, law: int, one: Configuration) -> tuple[float, ...] | None:
        return gains(self.objectives, self.measurement(law, one), self.measurement(law, self.knee))


def screen_of(
    view: Forecast,
    before: StoredTwin | None,
    objectives: Sequence[Objective],
    knee: Configuration,
) -> Screen:
    """Return the twin of a forecast, ready to be asked; ``before`` is the profile's."""
    draws, traffic = view.fitted.draws(LAWS, seed=0), busiest(view.traffic)
    return Screen(
        laws=usual_laws(view, draws, before, traffic, max_num_seqs=number(knee[CAP])),
        shape=view.shape,
        slo=view.slo,
        traffic=traffic,
        objectives=objectives,
        knee=knee,
        hit_share=view.hit_share,
        paces=paces_of(view.speed_sd),
    )


def paces_of(speed_sd: float) -> Paces:
    """Return the paces that stand for all of a machine whose log slowness has this standard
    deviation: the three of Gauss and Hermite, by which means of smooth curves are exact.

    >>> [(round(factor, 2), round(share, 2)) for factor, share in paces_of(0.1)]
    [(0.84, 0.17), (1.0, 0.67), (1.19, 0.17)]
    """
    if speed_sd < LEAST_SPEED_SD:
        return STEADY
    far = math.exp(math.sqrt(3) * speed_sd)
    return ((1 / far, 1 / 6), (1.0, 2 / 3), (far, 1 / 6))


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
