"""Plans by the stored twin: other loads, caps, replica counts and routers. Pure, and seeded.

A fleet's traffic is the stored traffic, raised or thinned: every request comes ``load`` times,
copies within JITTER_S of their original, so that bursts stay bursts. Of the replicas a few are
simulated: they are alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

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

ASKED_REPLICAS, MOST_ROUTED = 4, 32
"""Replicas of a fleet that are simulated, and those that requests are shared out among: among more
nothing else depends on their number."""

MOST_REPLICAS, MOST_TIMES = 100_000, 64
"""And times the stored traffic: a replica that cannot carry so little of it can carry nothing."""
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
    requirements: tuple[Requirement, ...] = ()

    @cached_property
    def draws(self) -> list[Draw]:
        """The first of the draws that made the profile's promise."""
        twin = self.twin
        return draws_of(twin.laws[:DRAWS], twin.machine, [twin.traffic])

    @property
    def law(self) -> list[Draw]:
        """The law alone."""
        return [Draw(self.twin.law, self.twin.machine.front_end)]

    def ask(
        self, caps: Sequence[int], draws: Sequence[Draw], *, replicas: int, headroom: float = 1.0
    ) -> Samples:
        """Return what each cap gives a replica, of so many, and with ``headroom`` times the load:
        the mean over those that are simulated."""
        twin = self.twin
        rate_rps = self.load * len(twin.traffic) / twin.length_s / replicas
        today, raised = (self._parts(replicas, load) for load in (1.0, headroom))
        empty = twin.traffic.rows(slice(0))
        parts = [pair for pair in zip(today, raised, strict=True) if all(map(len, pair))]
        samples = []
        for part, more in parts or [(empty, empty)]:
            loads = Loads(part, (more,) if headroom > 1 else (), headroom, rate_rps)
            samples.append(ask(draws, loads, caps, twin.shape, self.slo))
        return replace(samples[0], values=np.mean([each.values for each in samples], axis=0))

    def bounds(self, caps: Sequence[int], *, replicas: int, headroom: float) -> Bounds:
        """Return how far each cap is sure to keep what is required, with headroom at so many times
        the load."""
        front_end = self.twin.machine.front_end
        laws = [Draw(law, front_end) for law in self.twin.laws[:DRAWS]]  # as in a sweep
        samples = self.ask(caps, laws, replicas=replicas, headroom=headroom)
        return Bounds(self.requirements, samples)

    def replicas_for(
        self, cap: int, *, attainment: float, headroom: float, draws: Sequence[Draw] | None = None
    ) -> int | None:
        """Return the fewest replicas with which 97.5 % of the draws serve this share of requests
        within the SLO and all that is required is kept; None where no number does. With other
        ``draws`` about how many, whatever is required."""

        def enough(replicas: int) -> bool:
            samples = self.ask((cap,), draws or self.draws, replicas=replicas)
            ends = samples.ends("attainment", cap)
            if ends is None or ends[0] < attainment:
                return False
            if draws is not None:
                return True
            return not self.bounds((cap,), replicas=replicas, headroom=headroom).broken(cap)

        return self._least(enough)

    def _least(self, enough: Callable[[int], bool]) -> int | None:
        """Return the least number of replicas that is enough, if any is."""
        most = min(MOST_REPLICAS, math.ceil(MOST_TIMES * self.load))
        low, high = 0, min(most, math.ceil(self.load))
        while not enough(high):
            if high == most:
                return None
            low, high = high, min(most, 2 * high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def _parts(self, replicas: int, times: float) -> list[Traffic]:
        """Return the traffic of a few of so many replicas, at so many times the load."""
        twin, rng = self.twin, np.random.default_rng(SEED)
        routed = min(replicas, MOST_ROUTED)
        traffic = scaled(twin.traffic, times * self.load * routed / replicas, rng)
        numbers = np.arange(len(traffic)) % routed
        if self.router == "random":
            numbers = rng.integers(0, routed, len(traffic))
        elif self.router == "least":
            # about how long each is in flight, on a replica that is half full
            law = twin.law
            token_s = float(law.decode_s[(len(law.decode_s) - 1) // 2])
            prompts_s = law.decode_s[0] + law.prefill_token_s * traffic.input_length
            lasting_s = prompts_s + token_s * traffic.output_length + twin.shape.lag_s
            numbers = least_in_flight(traffic.arrival_s, lasting_s, routed)
        first = rng.choice(routed, min(routed, ASKED_REPLICAS), replace=False)
        return [traffic.rows(np.flatnonzero(numbers == replica)) for replica in first.tolist()]


class SharedCap(NamedTuple):
    """One value of ``max_num_seqs`` for several kinds of traffic, each of which gets its turn."""

    max_num_seqs: int
    shares: list[float]
    """Of each kind the requests within its SLO."""
    lost: list[float]
    """Of these what each profile's own choice gives more."""
    longer: list[float]
    """Times the p99 E2EL of each profile's own choice."""


def shared_caps(profiles: Sequence[ServingProfile]) -> tuple[list[SharedCap], SharedCap]:
    """Return what each cap that all profiles know gives each kind of traffic, and the one to take:
    it costs no kind much, by the same tolerances as any choice. Raises ProfileError where they have
    none in common."""
    curves = [{step.max_num_seqs: step for step in profile.curve} for profile in profiles]
    caps = []
    for cap in sorted(set.intersection(*map(set, curves))):
        pairs = [
            (curve[cap], curve.get(profile.decision.max_num_seqs, curve[cap]))
            for curve, profile in zip(curves, profiles, strict=True)
        ]
        shares = [step.attainment for step, _ in pairs]
        lost = [max(0.0, own.attainment - step.attainment) for step, own in pairs]
        longer = [_tail_ms(step) / _tail_ms(own) for step, own in pairs]
        caps.append(SharedCap(cap, shares, lost, longer))
    if not caps:
        raise ProfileError(
            "the profiles have no max_num_seqs in common", hint="Sweep both to one --ceiling."
        )
    losses, tails = [1 - max(each.lost) for each in caps], [max(each.longer) for each in caps]
    return caps, caps[int(rule(losses, tails).choice)]


def _tail_ms(step: CurveStep) -> float:
    return math.inf if step.e2el_ms is None else max(1e-6, step.e2el_ms.p99)
