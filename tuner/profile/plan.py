"""Plans by the stored twin: other loads, caps, replica counts, routers and what they keep of what
is required. Pure, and seeded.

A fleet's traffic is the stored traffic, raised or thinned: every request comes ``load`` times,
copies within JITTER_S of their original, so that bursts stay bursts. Of the replicas a few are
simulated: they are alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.profile.stored_twin import StoredTwin
from tuner.traffic.requirements import Requirement
from tuner.traffic.slo import Slo
from tuner.twin.choice import DRAWS, Bounds, Question, numbers_of
from tuner.twin.draws import ENDS, PRINTED, Draw
from tuner.twin.load import Loads, scaled
from tuner.twin.simulation import Traffic, TwinReplay

FleetRouter = Literal["least", "rr", "random"]

ASKED_REPLICAS = 4
"""Replicas of a fleet that are simulated."""

MOST_ROUTED = 200_000
"""Requests that are handed to replicas one by one. A fleet that gets more is asked about as one
that is so much smaller: among hundreds of replicas nothing else depends on their number."""

SMALL_FLEET = 32

MOST_REPLICAS = 100_000
MOST_MORE = 64
"""Times the replicas that the load needs: what those do not keep, none do."""

LEAST_LOAD = 1 / 64
"""Of the stored traffic: a replica that cannot carry so little can carry nothing."""

Range = tuple[float, float]
Replayed = Callable[[Traffic], TwinReplay]


@dataclass(frozen=True, slots=True)
class CapForecast:
    """The forecast of one cap for a replica of the fleet; middle values with 95 % intervals."""

    max_num_seqs: int
    attainment: Range
    attainment_middle: float
    goodput_rps: float
    """Of one replica."""

    tpot_p95_ms: float | None
    e2el_p99_ms: float | None
    e2el_p99_range_ms: Range | None
    queue_p95_ms: float | None
    kv_cache_usage_peak: float
    preemptions: float
    """Per thousand requests."""

    is_guess: bool
    """Whether batches became larger than any that was measured."""


SEED = 0
"""Of copies and of the routing."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Servers that are alike, and the load that they share."""

    twin: StoredTwin
    """Of one of them."""

    slo: Slo
    load: float
    """Times the stored traffic."""

    router: FleetRouter

    def ask(
        self, caps: Sequence[int], *, replicas: int, promised: int | None = None
    ) -> list[CapForecast]:
        """Return what each cap gives on so many replicas: of the ``promised`` one with all draws of
        the profile's promise."""
        parts, twin = self.parts(replicas), self.twin
        rate_rps = self.load * len(twin.traffic) / twin.length_s / replicas
        draws = twin.draws([twin.traffic])
        counts = {cap: PRINTED if cap == promised else DRAWS for cap in caps}
        return [self._answer(cap, parts, rate_rps, draws[: counts[cap]]) for cap in caps]

    def attained(self, caps: Sequence[int], *, replicas: int) -> dict[int, float]:
        """Return cap → the share of requests within the SLO, by the law alone."""
        busy = [part for part in self.parts(replicas) if len(part)]
        if not busy:
            return dict.fromkeys(caps, 1.0)
        return {cap: float(self._pooled(busy, self._lawful(cap))[0]) for cap in caps}

    def replicas_for(self, cap: int, *, attainment: float, surely: bool = True) -> int | None:
        """Return the fewest replicas with which 97.5 % of the draws, or with ``surely`` off the law
        alone, serve this share of requests within the SLO; None when MOST_REPLICAS do not."""
        draws = self.twin.draws([self.twin.traffic], DRAWS)

        def enough(replicas: int) -> bool:
            if not surely:
                return self.attained((cap,), replicas=replicas)[cap] >= attainment
            answer = self._answer(cap, self.parts(replicas), 0.0, draws)
            return answer.attainment[0] >= attainment

        def carries(share: float) -> bool:
            one = scaled(self.twin.traffic, share, np.random.default_rng(SEED))
            return numbers_of(one, self._lawful(cap)(one), self.slo)[0] >= attainment

        if not carries(LEAST_LOAD):
            return None
        guess = max(1, math.ceil(self.load / _most_load(carries)))
        return least(enough, guess, MOST_REPLICAS)

    def bounds(
        self,
        caps: Sequence[int],
        requirements: Sequence[Requirement],
        *,
        headroom: float,
        replicas: int,
    ) -> Bounds:
        """Return how far each cap is sure to keep what is required, on each of the replicas that
        are asked; with headroom at so many times the load."""
        if not requirements:
            return Bounds()
        twin, today = self.twin, self.parts(replicas)
        raised = replace(self, load=headroom * self.load).parts(replicas)
        drawn = []
        for one, more in zip(today, raised, strict=True):
            if not len(one):
                continue
            loads = Loads(one, (more,) if headroom > 1 else (), headroom)
            rate_rps = len(one) / twin.length_s
            asked = Question(
                loads, twin.shape, self.slo, tuple(requirements), rate_rps, twin.front_end
            )
            drawn += [asked.drawn(0, law, caps)[1] for law in twin.laws[:DRAWS]]
        return Bounds.of(requirements, drawn)

    def replicas_that_keep(
        self, cap: int, requirements: Sequence[Requirement], *, headroom: float, guess: int
    ) -> int | None:
        """Return the fewest replicas on which a cap keeps all that is required; None when MOST_MORE
        times the guess do not."""

        def enough(replicas: int) -> bool:
            found = self.bounds((cap,), requirements, headroom=headroom, replicas=replicas)
            return bool(found.of_cap) and not found.broken(cap)

        return least(enough, guess, min(MOST_REPLICAS, MOST_MORE * guess))

    def parts(self, replicas: int) -> list[Traffic]:
        """Return the traffic of a few of so many replicas."""
        twin, load, rng = self.twin, self.load, np.random.default_rng(SEED)
        asked = min(replicas, ASKED_REPLICAS)
        if self.router == "random":  # what each gets is a random share, whatever the others get
            return [scaled(twin.traffic, load / replicas, rng) for _ in range(asked)]
        share = min(1.0, MOST_ROUTED / (load * len(twin.traffic)))
        if share < 1 and replicas > SMALL_FLEET:
            smaller = max(SMALL_FLEET, round(share * replicas))
            load, replicas = load * smaller / replicas, smaller
        whole = scaled(twin.traffic, load, rng)
        numbers = np.arange(len(whole)) % replicas
        if self.router == "least":
            from tuner.profile.least_in_flight import (  # noqa: PLC0415 - numba: 0.2 s
                least_in_flight,
            )

            numbers = least_in_flight(whole.arrival_s, _lasting_s(twin, whole), replicas)
        first = rng.choice(replicas, asked, replace=False)
        return [whole.rows(np.flatnonzero(numbers == replica)) for replica in first.tolist()]

    def _answer(
        self, cap: int, parts: Sequence[Traffic], rate_rps: float, draws: Sequence[Draw]
    ) -> CapForecast:
        busy = [part for part in parts if len(part)]
        if not busy:
            return CapForecast(
                cap, (1.0, 1.0), 1.0, 0.0, None, None, None, None, 0.0, 0.0, is_guess=False
            )
        replays = (
            partial(one.replay, shape=self.twin.shape, max_num_seqs=cap, clock=one.slowdown.clock())
            for one in draws
        )
        samples = np.array([self._pooled(busy, each) for each in replays])
        peak = max(self._lawful(cap)(part).running_peak for part in busy)
        middle = np.nanmedian(samples, axis=0)
        low, high = np.nanquantile(samples, ENDS, axis=0, method="weibull")
        return CapForecast(
            max_num_seqs=cap,
            attainment=(float(low[0]), float(high[0])),
            attainment_middle=float(middle[0]),
            goodput_rps=float(middle[0]) * rate_rps,
            tpot_p95_ms=_known_ms(middle[2]),
            e2el_p99_ms=_known_ms(np.exp(middle[1])),
            e2el_p99_range_ms=_range_ms(np.exp(low[1]), np.exp(high[1])),
            queue_p95_ms=_known_ms(middle[3]),
            kv_cache_usage_peak=float(middle[4]),
            preemptions=float(middle[5]) / float(np.mean([*map(len, busy)])) * 1000,
            is_guess=peak > self.twin.extrapolated_from,
        )

    def _lawful(self, cap: int) -> Replayed:
        """Return the twin's replay by its law alone."""
        return lambda part: self.twin.replayed(part, self.twin.law, max_num_seqs=cap)

    def _pooled(self, parts: Sequence[Traffic], replayed: Replayed) -> Floats:
        """Return the mean of each statistic over the replicas, by their requests."""
        values = np.array([numbers_of(one, replayed(one), self.slo) for one in parts])
        return np.asarray(np.average(values, axis=0, weights=[*map(len, parts)]))


def _most_load(carries: Callable[[float], bool]) -> float:
    """Return about the most load that one replica carries, as a multiple of the stored traffic."""
    low, high = LEAST_LOAD, 1 / LEAST_LOAD
    for _ in range(10):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if carries(middle) else (low, middle)
    return low


def least(enough: Callable[[int], bool], guess: int, most: int) -> int | None:
    """Return the least number that is enough, from a guess on outwards, then by halving."""
    high = min(guess, most)
    low = 0
    step = max(1, high // 16)
    if enough(high):
        while high > 1 and enough(max(1, high - step)):
            high = max(1, high - step)
            step *= 2
        low = max(0, high - step)
    else:
        while not enough(high):
            if high >= most:
                return None
            low, high = high, min(most, high + step)
            step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _lasting_s(twin: StoredTwin, traffic: Traffic) -> Floats:
    """Return about how long each request is in flight, on a replica that is half full."""
    law = twin.law
    middle_s = float(law.decode_s[(len(law.decode_s) - 1) // 2])
    prompt_s = law.decode_s[0] + law.prefill_token_s * traffic.input_length
    return np.asarray(prompt_s + middle_s * traffic.output_length + twin.shape.lag_s)


def _known_ms(seconds: float) -> float | None:
    return float(seconds) * 1e3 if np.isfinite(seconds) else None


def _range_ms(low_s: float, high_s: float) -> Range | None:
    return (low_s * 1e3, high_s * 1e3) if np.isfinite(low_s) and np.isfinite(high_s) else None
