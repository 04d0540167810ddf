"""Plans by the stored twin: other loads, caps, replica counts, routers and what they keep of what
is required. Pure, and seeded.

A fleet's traffic is the stored traffic, raised or thinned: every request comes ``load`` times,
copies within JITTER_S of their original, so that bursts stay bursts. Of the replicas a few are
simulated: they are alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.errors import ProfileError
from tuner.profile.evidence import StoredTwin
from tuner.profile.profile import CurveStep, ServingProfile
from tuner.traffic.constants import DRAWS
from tuner.traffic.requirements import Requirement
from tuner.traffic.routing import least_in_flight
from tuner.traffic.slo import Slo
from tuner.twin.decide import Bounds, rule
from tuner.twin.samples import Draw, Loads, Samples, ask, draws_of, scaled
from tuner.twin.simulation import Traffic

FleetRouter = Literal["least", "rr", "random"]

ASKED_REPLICAS = 4
"""Replicas of a fleet that are simulated."""

MOST_ROUTED, SMALL_FLEET = 200_000, 32
"""Requests that are handed to replicas one by one. A fleet that gets more is asked about as one
that is so much smaller: among hundreds of replicas nothing else depends on their number."""

MOST_REPLICAS = 100_000
MOST_MORE = 64
"""Times the replicas that the load needs: what those do not keep, none do."""

LEAST_LOAD = 1 / 64
"""Of the stored traffic: a replica that cannot carry so little can carry nothing."""

SEED = 0
"""Of copies and of the routing."""


@dataclass(frozen=True)
class Fleet:
    """Servers that are alike, and the load that they share."""

    twin: StoredTwin
    """Of one of them."""

    slo: Slo
    load: float
    """Times the stored traffic."""

    router: FleetRouter

    @cached_property
    def draws(self) -> list[Draw]:
        """The first of the draws that made the profile's promise."""
        return draws_of(self.twin.laws[:DRAWS], self.twin.machine, [self.twin.traffic])

    @property
    def lawful(self) -> list[Draw]:
        """The law alone."""
        return [Draw(self.twin.law, self.twin.machine.front_end)]

    def ask(
        self,
        caps: Sequence[int],
        *,
        replicas: int,
        draws: Sequence[Draw] | None = None,
        headroom: float = 1.0,
        log: bool = False,
    ) -> Samples:
        """Return what each cap gives a replica, of so many, and with ``headroom`` times the load:
        the mean over those that are simulated, by their requests."""
        twin, today = self.twin, self.parts(replicas)
        more = replace(self, load=headroom * self.load).parts(replicas) if headroom > 1 else today
        rate_rps = self.load * len(twin.traffic) / twin.length_s / replicas
        result, weights = [], []
        for each, raised in zip(today, more, strict=True):
            if len(each) and len(raised):
                loads = Loads(each, (raised,) if headroom > 1 else (), headroom, rate_rps)
                samples = ask(draws or self.draws, loads, caps, twin.shape, self.slo, log=log)
                result.append(samples)
                weights.append(len(each))
        if not result:  # nothing comes to it, and all of that is served
            empty = Loads(twin.traffic.rows(slice(0)), (), 1.0, rate_rps)
            return ask(draws or self.draws, empty, caps, twin.shape, self.slo)
        values = np.average([each.values for each in result], axis=0, weights=weights)
        return replace(result[0], values=values)

    def replicas_for(self, cap: int, *, attainment: float, surely: bool = True) -> int | None:
        """Return the fewest replicas with which 97.5 % of the draws, or with ``surely`` off the law
        alone, serve this share of requests within the SLO; None when MOST_REPLICAS do not."""
        draws = self.draws if surely else self.lawful

        def enough(replicas: int) -> bool:
            ends = self.ask((cap,), replicas=replicas, draws=draws).ends("attainment", cap)
            return ends is not None and ends[0] >= attainment

        def carries(share: float) -> bool:
            item = scaled(self.twin.traffic, share, np.random.default_rng(SEED))
            result = ask(self.lawful, Loads(item), (cap,), self.twin.shape, self.slo)
            return float(result.column("attainment", cap)[0]) >= attainment

        if not carries(LEAST_LOAD):
            return None
        low, high = LEAST_LOAD, 1 / LEAST_LOAD
        for _ in range(10):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if carries(middle) else (low, middle)
        return least(enough, max(1, math.ceil(self.load / low)), MOST_REPLICAS)

    def bounds(
        self,
        caps: Sequence[int],
        requirements: Sequence[Requirement],
        *,
        headroom: float,
        replicas: int,
    ) -> Bounds:
        """Return how far each cap is sure to keep what is required, of so many replicas; with
        headroom at so many times the load."""
        if not requirements:
            return Bounds()
        twin, log = self.twin, any(requirement.needs_log for requirement in requirements)
        laws = [Draw(law, twin.machine.front_end) for law in twin.laws[:DRAWS]]  # as in a sweep
        samples = self.ask(caps, replicas=replicas, draws=laws, headroom=headroom, log=log)
        return Bounds.of(requirements, samples)

    def replicas_that_keep(
        self, cap: int, requirements: Sequence[Requirement], *, headroom: float, guess: int
    ) -> int | None:
        """Return the fewest replicas on which a cap keeps all that is required; None when MOST_MORE
        times the guess do not."""

        def enough(replicas: int) -> bool:
            result = self.bounds((cap,), requirements, headroom=headroom, replicas=replicas)
            return not result.broken(cap)

        return least(enough, guess, min(MOST_REPLICAS, MOST_MORE * guess))

    def parts(self, replicas: int) -> list[Traffic]:
        """Return the traffic of a few of so many replicas."""
        twin, load, rng = self.twin, self.load, np.random.default_rng(SEED)
        wanted = min(replicas, ASKED_REPLICAS)
        if self.router == "random":  # what each gets is a random share, whatever the others get
            return [scaled(twin.traffic, load / replicas, rng) for _ in range(wanted)]
        share = min(1.0, MOST_ROUTED / (load * len(twin.traffic)))
        if share < 1 and replicas > SMALL_FLEET:
            smaller = max(SMALL_FLEET, round(share * replicas))
            load, replicas = load * smaller / replicas, smaller
        traffic = scaled(twin.traffic, load, rng)
        numbers = np.arange(len(traffic)) % replicas
        if self.router == "least":
            numbers = least_in_flight(traffic.arrival_s, _lasting_s(twin, traffic), replicas)
        first = rng.choice(replicas, wanted, replace=False)
        return [traffic.rows(np.flatnonzero(numbers == replica)) for replica in first.tolist()]


@dataclass(frozen=True, slots=True)
class SharedCap:
    """One value of ``max_num_seqs`` for several kinds of traffic, each of which gets its turn."""

    max_num_seqs: int
    shares: tuple[float, ...]
    """Of each kind the requests within its SLO."""

    lost: tuple[float, ...]
    """Of these what each profile's own choice gives more."""

    longer: tuple[float, ...]
    """Times the p99 E2EL of each profile's own choice."""


def shared_caps(profiles: Sequence[ServingProfile]) -> tuple[list[SharedCap], int]:
    """Return what each cap that all profiles know gives each kind of traffic, and the one to take:
    it costs no kind much, by the same tolerances as any choice. Raises ProfileError where they have
    none in common."""
    curves = [{step.max_num_seqs: step for step in profile.curve} for profile in profiles]
    result = []
    for cap in sorted(set.intersection(*map(set, curves))):
        steps = [curve[cap] for curve in curves]
        own = [
            curve.get(each.decision.max_num_seqs, curve[cap])
            for curve, each in zip(curves, profiles, strict=True)
        ]
        pairs = list(zip(steps, own, strict=True))
        result.append(
            SharedCap(
                cap,
                tuple(step.attainment for step in steps),
                tuple(max(0.0, best.attainment - step.attainment) for step, best in pairs),
                tuple(_tail_ms(step) / _tail_ms(best) for step, best in pairs),
            )
        )
    if not result:
        raise ProfileError(
            "the profiles have no max_num_seqs in common", hint="Sweep both to one --ceiling."
        )
    best = rule(
        [1 - max(each.lost) for each in result], [max(each.longer) for each in result]
    ).choice
    return result, result[int(best)].max_num_seqs


def _tail_ms(step: CurveStep) -> float:
    return math.inf if step.e2el_ms is None else max(1e-6, step.e2el_ms.p99)


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
