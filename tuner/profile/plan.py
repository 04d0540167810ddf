"""Plans by the stored twin: other loads, caps, replica counts and routers. Pure, and seeded.

A fleet's traffic is the stored traffic, raised or thinned: every request comes ``load`` times,
copies within JITTER_S of their original, so that bursts stay bursts. Of the replicas a few are
simulated: they are alike.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tuner.errors import ProfileError
from tuner.profile.evidence import StoredTwin
from tuner.profile.profile import CurveStep, Predicted, ServingProfile
from tuner.profile.summary import promised
from tuner.traffic.constants import DRAWS, EQUAL_ATTAINMENT
from tuner.traffic.load import least_in_flight
from tuner.traffic.requirements import Requirement
from tuner.twin.decide import Choice, checks_of, decide, rule
from tuner.twin.samples import Draw, Samples, ask, draws_of, loads_of, scaled
from tuner.twin.simulation import Traffic

ASKED_REPLICAS, MOST_ROUTED = 4, 32
"""Replicas of a fleet that are simulated, and those that requests are shared out among: among more
nothing else depends on their number."""

MOST_REPLICAS, MOST_TIMES = 100_000, 64
"""And times the stored traffic: a replica that cannot carry so little of it can carry nothing."""
LEAST_TARGET = 0.9
"""Share in time that is planned for where the profile itself promises less: nobody wants more of
that."""
SEED = 0
"""Of copies and of the routing."""


@dataclass
class Fleet:
    """Servers that are alike, and the load that they share."""

    profile: ServingProfile
    twin: StoredTwin
    """Of one of them."""
    load: float
    """Times the stored traffic."""
    requirements: tuple[Requirement, ...] = ()
    given: int | None = None
    """Replicas; None for as many as the load needs."""

    @property
    def cap(self) -> int:
        return self.profile.decision.max_num_seqs

    @property
    def router(self) -> str:
        """The sweep's; where sessions keep to a server, the nearest to it is "least"."""
        return (self.profile.provenance.router or "least").replace("session", "least")

    @cached_property
    def caps(self) -> list[int]:
        return sorted({self.cap, *(step.max_num_seqs for step in self.profile.curve)})

    @cached_property
    def rps(self) -> float:
        return self.load * len(self.twin.traffic) / self.twin.length_s

    @cached_property
    def target(self) -> float:
        """Share of the requests that is to meet the SLO: what the profile promises."""
        given = promised(self.profile)
        sure = (
            given.intervals["attainment"][0] if isinstance(given, Predicted) else given.attainment
        )
        return max(LEAST_TARGET, sure - EQUAL_ATTAINMENT)

    @cached_property
    def needed(self) -> int | None:
        """How many replicas the load needs, by the draws that made the promise."""
        return self._fewest(self.cap, self._draws, self.requirements)

    @cached_property
    def needed_by_cap(self) -> dict[int, int | None]:
        """About how many replicas each cap needs, whatever is required, by the law alone; of the
        chosen one ``needed``."""
        law = [Draw(self.twin.law, self.twin.machine.front_end)]
        about = {cap: self._fewest(cap, law) for cap in self.caps}
        return {**about, self.cap: self.needed}

    @cached_property
    def replicas(self) -> int:
        return self.given or self.needed or math.ceil(self.load)

    @cached_property
    def samples(self) -> Samples:
        """What each cap gives a replica, by the draws that made the promise."""
        return self.ask(self.caps, self._draws, self.replicas)

    def choice(self, caps: Sequence[int], replicas: int) -> Choice:
        """Return what a sweep of this load would choose, and how far each cap keeps what is
        required."""
        front_end = self.twin.machine.front_end
        laws = [Draw(law, front_end) for law in self.twin.laws[:DRAWS]]
        samples = self.ask(caps, laws, replicas, self.profile.promise.headroom)
        return decide(samples, checks_of(self.requirements, samples))

    @cached_property
    def _draws(self) -> list[Draw]:
        return draws_of(self.twin.laws[:DRAWS], self.twin.machine, self.twin.traffic)

    def _fewest(
        self, cap: int, draws: Sequence[Draw], requirements: Sequence[Requirement] = ()
    ) -> int | None:
        """Return the fewest replicas with which 97.5 % of the draws reach the target and all that
        is required is kept; None where no number does."""

        def is_enough(replicas: int) -> bool:
            ends = self.ask([cap], draws, replicas).ends("attainment", cap)
            if ends is None or ends[0] < self.target:
                return False
            if not requirements:
                return True
            return all(each.kept for each in self.choice([cap], replicas).checks[cap])

        counts = range(1, min(MOST_REPLICAS, math.ceil(MOST_TIMES * self.load)) + 1)
        place = bisect_left(counts, True, key=is_enough)
        return counts[place] if place < len(counts) else None

    def ask(
        self, caps: Sequence[int], draws: Sequence[Draw], replicas: int, headroom: float = 1.0
    ) -> Samples:
        """Return what each cap gives a replica, of so many, and with ``headroom`` times the load:
        the mean over those that are simulated."""
        parts = [part for part in self._parts(replicas) if len(part)]
        values, slo = [], self.profile.decision.slo.slo
        for part in parts or [self.twin.traffic.rows(slice(0))]:
            loads = loads_of(part, headroom, seed=SEED, rate_rps=self.rps / replicas)
            values.append(ask(draws, loads, caps, self.twin.shape, slo).values)
        return Samples(tuple(caps), np.mean(values, axis=0))

    def _parts(self, replicas: int) -> list[Traffic]:
        """Return the traffic of a few of so many replicas."""
        law, rng, routed = self.twin.law, np.random.default_rng(SEED), min(replicas, MOST_ROUTED)
        traffic = scaled(self.twin.traffic, self.load * routed / replicas, rng)
        numbers = np.arange(len(traffic)) % routed
        if self.router == "random":
            numbers = rng.integers(0, routed, len(traffic))
        elif self.router == "least":
            # about how long each is in flight, on a replica that is half full
            token_s = float(law.decode_s[(len(law.decode_s) - 1) // 2])
            prompts_s = law.prefill_token_s * traffic.input_length
            lasting_s = prompts_s + token_s * traffic.output_length
            numbers = least_in_flight(traffic.arrival_s, lasting_s, routed)
        return [
            traffic.rows(np.flatnonzero(numbers == replica))
            for replica in range(min(routed, ASKED_REPLICAS))
        ]


class SharedCap(NamedTuple):
    """One value of ``max_num_seqs`` for two kinds of traffic, each of which gets its turn."""

    max_num_seqs: int
    shares: list[float]
    """Of each kind the requests within its SLO."""
    lost: float
    """The most of these that a profile's own choice gives more."""
    longer: float
    """The most times that its p99 E2EL is that of a profile's own choice."""


def shared_caps(profiles: Sequence[ServingProfile]) -> tuple[list[SharedCap], SharedCap]:
    """Return what each cap that all profiles know gives each kind of traffic, and the one to take:
    it costs no kind much, by the same tolerances as any choice. Raises ProfileError where they have
    none in common."""
    curves = [{step.max_num_seqs: step for step in profile.curve} for profile in profiles]
    known = sorted(set.intersection(*map(set, curves)))
    if not known:
        raise ProfileError(
            "the profiles have no max_num_seqs in common", hint="Sweep both to one --ceiling."
        )
    caps = []
    for cap in known:
        shares, lost, longer = list[float](), 0.0, 0.0
        for curve, profile in zip(curves, profiles, strict=True):
            step, own = curve[cap], curve.get(profile.decision.max_num_seqs, curve[cap])
            shares.append(step.attainment)
            lost = max(lost, own.attainment - step.attainment)
            longer = max(longer, _tail_ms(step) / _tail_ms(own))
        caps.append(SharedCap(cap, shares, lost, longer))
    ruling = rule([1 - each.lost for each in caps], [each.longer for each in caps])
    return caps, caps[int(ruling.choice)]


def _tail_ms(step: CurveStep) -> float:
    return max(1e-6, step.e2el_ms.p99) if step.e2el_ms else math.inf
