"""The twin as the cheap first look at a configuration: what it gains over the knee. Pure.

It can tell of the admission cap, the token budget, the number of KV blocks and the interval at
which prefill is scheduled, for the whole of the traffic and under laws as likely as the fitted one.
Of anything else only a replay can tell. What it tells is the mean over the speeds that the machine
has at times: a configuration that just serves all at machine speed does not in a slower minute,
and is no match for one that has room to spare.

It is also the control variate by which trials of the search are compared. The twin replays the same
windows at the speed that the machine had then. What that differs from all of the traffic at machine
speed is no gain of a configuration, and is taken out before two replays are compared. Of attainment
a difference is taken out and not a ratio: a window that serves half of the traffic's share would
double every error of a ratio.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import StepLaw
from tuner.replay.measure import Spread, spread
from tuner.replay.records import Replay
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, number, restart_key
from tuner.runs.refine.objective import (
    LEAST_ATTAINMENT,
    AimNumbers,
    Objective,
    deficit,
    gains,
)
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload
from tuner.twin.check import driven, observed
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, met, simulate, traffic_of

LAWS = 20
SURROGATE_REQUESTS = 20_000
"""Requests that the surrogate replays, or the search would wait for the twin: the busiest stretch
of so many."""

WINDOWS_SD = 0.03
"""Standard deviation of what some windows gain from what all of the traffic does (study of windows,
docs/decisions: attainment is off by 0.05)."""

ALIKE = 0.002
"""Gains so close by the twin are those of configurations between which nothing is to choose."""

TIMES = ("ttft_s", "tpot_s", "e2el_s")
BLOCKS = "num_gpu_blocks_override"
INTERVAL = "prefill_schedule_interval"

Slowdowns = Sequence[tuple[float, float]]
"""Slowdowns of a machine as factors on its law, each with its share of the time."""

STEADY: Slowdowns = ((1.0, 1.0),)
LEAST_SPEED_SD = 0.01
"""Standard deviation of log slowdown below which a machine is steady: three times the work would
tell the same."""


@dataclass(frozen=True, slots=True)
class WindowForecast:
    """The twin's numbers of one configuration in one window."""

    traffic: Traffic
    replay: TwinReplay
    scored: NDArray[np.bool_]
    weight: float = 1.0


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
    """The twin's forecast of one configuration; gains as in ``objective.gains``."""

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
class Surrogate:
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

    slowdowns: Slowdowns = STEADY

    _measured: dict[tuple[int, int, EngineShape], TwinNumbers] = field(default_factory=dict)

    def foresee(self, one: Configuration, *, sure: bool = True) -> Foreseen | None:
        """Return what a configuration gains; None where that is undefined. Without ``sure`` only
        the fitted law is asked."""
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
        """Return the configurations in the order of what the fitted law says of the first aim, what
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

    def control_variate(
        self, one: Configuration, replays: Sequence[Replay], aims: Sequence[Objective]
    ) -> tuple[float, ...]:
        """Return per aim what of these replays was the machine's speed and the windows' traffic; of
        use in differences alone, between configurations that the twin tells of."""
        law, shape = self.laws[0], self._shape_at(one)
        replayed = [_driven(replay, law, shape) for replay in replays]
        now = pooled(replayed, self.slo, times={aim.time for aim in aims})
        return beside(aims, now, self.measurement(0, one))

    def served(
        self, one: Configuration, traffic: Traffic, window: Window, *, slowdown: float = 1.0
    ) -> WindowForecast:
        """Return what a configuration makes of the traffic of a window, by default at machine
        speed."""
        scored = traffic.arrival_s >= window.start_s
        replay = self._replay(one, traffic, slowdown=slowdown)
        return WindowForecast(traffic, replay, scored, window.weight)

    def sent_in(self, workload: Workload, window: Window, *, hash_block_size: int) -> Traffic:
        """Return what a replay of a window sends, to a prefix cache that is empty."""
        return traffic_of(
            workload.sent_in(window),
            hash_block_size=hash_block_size,
            hit_share=self.hit_share,
            kv_tokens=self.shape.kv_tokens,
        )

    def worst(self, one: Configuration, traffic: Traffic, window: Window) -> float:
        """Return the attainment in a window that falls in a slow time of the machine."""
        slowest = max(slowdown for slowdown, _ in self.slowdowns)
        served = self.served(one, traffic, window, slowdown=slowest)
        return pooled([served], self.slo, times=()).attainment

    def at_machine_speed(self) -> "Surrogate":
        """Return the twin of a machine whose speed does not vary."""
        return replace(self, slowdowns=STEADY, _measured={})

    def _shape_at(self, one: Configuration) -> EngineShape:
        blocks = one.get(BLOCKS) or self.shape.kv_blocks
        interval = (one[INTERVAL] or 1) if INTERVAL in one else self.shape.prefill_schedule_interval
        return replace(
            self.shape,
            max_num_batched_tokens=number(one[TOKENS]),
            kv_blocks=number(blocks),
            prefill_schedule_interval=number(interval),
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

    def forecast(self, aim: Objective, one: Configuration) -> float | None:
        """Return the log gain of one aim by the fitted law; None where the twin cannot tell."""
        if not self.tells(one):
            return None
        here, there = (aim.log(self.measurement(0, each)) for each in (one, self.knee))
        return None if here is None or there is None else here - there

    def tells(self, one: Configuration) -> bool:
        """Whether the configuration differs from the knee in nothing that the twin cannot tell."""
        told = {*LIVE, BLOCKS, INTERVAL}
        return all(one[name] == self.knee.get(name) for name in one.keys() - told)

    def measurement(self, law: int, one: Configuration) -> TwinNumbers:
        """Return what a replay of the traffic would measure, as a mean over the slowdowns; law 0 is
        the fitted one."""
        shape = self._shape_at(one)
        key = (law, number(one[CAP]), shape)
        if key not in self._measured:
            traffic, scored = self.traffic, np.ones(len(self.traffic), bool)
            self._measured[key] = pooled(
                [
                    WindowForecast(
                        traffic, self._replay(one, traffic, law, slowdown), scored, share
                    )
                    for slowdown, share in self.slowdowns
                ],
                self.slo,
            )
        return self._measured[key]

    def _replay(
        self, one: Configuration, traffic: Traffic, law: int = 0, slowdown: float = 1.0
    ) -> TwinReplay:
        slowed = self.laws[law].slowed(slowdown)
        return simulate(traffic, slowed, self._shape_at(one), max_num_seqs=number(one[CAP]))

    def _gains(self, law: int, one: Configuration) -> tuple[float, ...] | None:
        return gains(self.objectives, self.measurement(law, one), self.measurement(law, self.knee))


def surrogate_of(view: Forecast, objectives: Sequence[Objective], knee: Configuration) -> Surrogate:
    """Return the twin of a forecast, ready to be asked."""
    return Surrogate(
        laws=[view.fitted.law, *view.fitted.draws(LAWS)],
        shape=view.shape,
        slo=view.slo,
        traffic=view.traffic.busiest(SURROGATE_REQUESTS),
        objectives=objectives,
        knee=knee,
        hit_share=view.hit_share,
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


def combined(
    objectives: Sequence[Objective],
    foreseen: Foreseen | None,
    measured: Sequence[float],
    *,
    attainment: float,
) -> tuple[float, ...]:
    """Return the best guess from what the twin says and what one replay measured, each weighted by
    how far it may be off.

    The twin's law is off by its draws, and the twin besides by as much as a replay. A replay's
    goodput is off by a share of all requests: the less ``attainment``, the knee's, there is, the
    larger a share of itself that is.
    """
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


def beside(aims: Sequence[Objective], now: TwinNumbers, of_all: AimNumbers) -> tuple[float, ...]:
    """Return per aim how much better windows are than all of the traffic: of attainment the
    difference, of others the log ratio; 0 where there is no telling.

    Of use in differences alone: some windows do not ask for tokens at the rate of all.
    """
    found = []
    for aim in aims:
        if aim.is_share:
            found.append(now.attainment - of_all.attainment)
            continue
        here, there = aim.log(now), aim.log(of_all)
        found.append(0.0 if here is None or there is None else here - there)
    return tuple(found)


def pooled(
    windows: Sequence[WindowForecast], slo: Slo, *, times: Collection[str | None] = TIMES
) -> TwinNumbers:
    """Return what the twin says of windows, pooled as ``measure`` pools what was measured; of the
    times only those that are asked for."""
    heavy = np.concatenate([np.full(int(one.scored.sum()), one.weight) for one in windows])
    good = sum(
        one.weight * float(met(one.traffic, one.replay, slo)[one.scored].sum()) for one in windows
    )

    def over(name: str) -> Spread | None:
        if name not in times:
            return None
        values = np.concatenate([getattr(one.replay, name)[one.scored] for one in windows])
        known = ~np.isnan(values)
        return spread(values[known], heavy[known])

    return TwinNumbers(
        attainment=good / float(heavy.sum()) if len(heavy) else 0.0,
        output_tokens_per_s=sum(
            one.weight * one.replay.output_tokens / max(1e-9, one.replay.duration_s)
            for one in windows
        ),
        ttft_s=over("ttft_s"),
        tpot_s=over("tpot_s"),
        e2el_s=over("e2el_s"),
    )


def _driven(replay: Replay, law: StepLaw, shape: EngineShape) -> WindowForecast:
    """Return the twin's replay of the same at the speed that the machine had then."""
    window = observed(replay)
    if not window.cut:  # what the engine finished last, the twin may finish a moment later
        window = replace(window, end_s=math.inf)
    return WindowForecast(window.traffic, driven(window, law, shape), window.scored, replay.weight)
