"""More or less of the same traffic, as the twin is given it. Pure, and seeded.

The same as ``traffic.scaling.scale_load`` does to requests, on arrays: time is never squeezed.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from tuner.traffic.scaling import JITTER_S
from tuner.twin.simulation import Traffic

JITTERS = 5
"""Copies of the raised load, with other requests at other times: what is predicted of a load must
not rest on one of them."""


@dataclass(frozen=True, slots=True)
class Loads:
    """The recorded traffic, and the same with headroom."""

    today: Traffic
    raised: tuple[Traffic, ...] = ()
    """The same load several times, draw by draw in turn; none without headroom."""

    headroom: float = 1.0

    def drawn(self, number: int) -> Traffic:
        """Return the raised traffic of a draw."""
        return self.raised[number % len(self.raised)]


def loads_of(today: Traffic, headroom: float, *, seed: int) -> Loads:
    """Return the recorded traffic and the same with headroom; without any above 1."""
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
    # mirrored at the ends of the traffic: clipping would pile copies up there
    arrival_s = np.where(arrival_s < first_s, 2 * first_s - arrival_s, arrival_s)
    arrival_s = np.where(arrival_s > last_s, 2 * last_s - arrival_s, arrival_s)
    arrival_s = np.maximum(arrival_s, first_s)
    order = np.argsort(arrival_s, kind="stable")
    return replace(traffic.rows(rows[order]), arrival_s=arrival_s[order])
