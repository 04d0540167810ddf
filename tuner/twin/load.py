"""More or less of the same traffic, as the twin is asked about it. Pure, and seeded.

The same as ``traffic.scaling.scale_load`` does to requests, on arrays: time is never squeezed.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from tuner.engines.scheduler.state import Floats
from tuner.traffic.scaling import JITTER_S
from tuner.twin.simulation import Traffic

JITTERS = 5
"""Times that the traffic is raised, with other copies at other times: what is said of a load must
not rest on one of them."""


STRETCH_S = 30.0
"""Length of a stretch of traffic that stays together on another day: bursts do not come apart."""

FEWEST_STRETCHES = 20
"""With fewer, days that are drawn from them are too like each other."""


@dataclass(frozen=True, slots=True)
class Loads:
    """The traffic that caps are asked about: today's, and the same with headroom."""

    today: Traffic
    raised: tuple[Traffic, ...] = ()
    """The same load several times, draw by draw in turn; none where today alone is asked about."""

    headroom: float = 1.0

    def drawn(self, number: int) -> Traffic:
        """Return the raised traffic of a draw."""
        return self.raised[number % len(self.raised)]


def loads_of(today: Traffic, headroom: float, *, seed: int) -> Loads:
    """Return today's traffic and the same with headroom; without any above 1."""
    if headroom <= 1 or not len(today):
        return Loads(today)
    rngs = [np.random.default_rng((seed, number)) for number in range(JITTERS)]
    return Loads(today, tuple(scaled(today, headroom, rng) for rng in rngs), headroom)


def scaled(traffic: Traffic, factor: float, rng: Generator) -> Traffic:
    """Return ``factor`` times the requests: below 1 a random share of them, above 1 with copies
    within JITTER_S of their original and within the time of the traffic."""
    size = len(traffic)
    whole, share = divmod(factor, 1.0)
    place = rng.random(size)
    if factor < 1:
        return traffic.rows(np.flatnonzero(place < factor))
    more = np.sort(np.argsort(place)[: round(size * share)])
    copies = np.concatenate((np.repeat(np.arange(size), int(whole) - 1), more))
    rows = np.concatenate((np.arange(size), copies))
    arrival_s = traffic.arrival_s[rows]
    first_s, last_s = float(arrival_s[0]), float(arrival_s[size - 1])
    arrival_s[size:] += rng.uniform(-JITTER_S, JITTER_S, len(copies))
    arrival_s = _mirrored(arrival_s, first_s, last_s)
    order = np.argsort(arrival_s, kind="stable")
    return replace(traffic.rows(rows[order]), arrival_s=arrival_s[order])


def another_day(traffic: Traffic, length_s: float, rng: Generator) -> Traffic | None:
    """Return as much traffic of the same kind, as it might come on another day; None where the
    traffic is too short to tell.

    Its stretches are drawn with replacement, twice: today is itself a draw from days that nobody
    knows.
    """
    count = int(length_s // STRETCH_S)
    if count < FEWEST_STRETCHES or not len(traffic):
        return None
    begin_s, stretch_s = float(traffic.arrival_s[0]), length_s / count
    edges_s = begin_s + stretch_s * np.arange(1, count)
    edges = np.concatenate(([0], np.searchsorted(traffic.arrival_s, edges_s), [len(traffic)]))
    captured = rng.integers(0, count, count)  # as might as well have been: it is one day too
    drawn = captured[rng.integers(0, count, count)]
    rows = np.concatenate([np.arange(edges[one], edges[one + 1]) for one in drawn])
    if not len(rows):
        return None  # nothing but silence was drawn
    later_s = np.repeat(stretch_s * (np.arange(count) - drawn), np.diff(edges)[drawn])
    return replace(traffic.rows(rows), arrival_s=traffic.arrival_s[rows] + later_s)


def _mirrored(arrival_s: Floats, first_s: float, last_s: float) -> Floats:
    """Return the times, mirrored at the ends of the traffic: clipping would pile them up there."""
    arrival_s = np.where(arrival_s < first_s, 2 * first_s - arrival_s, arrival_s)
    arrival_s = np.where(arrival_s > last_s, 2 * last_s - arrival_s, arrival_s)
    found: Floats = np.maximum(arrival_s, first_s)
    return found
