"""Would today's traffic choose another cap? Asked of the twin in the profile. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.profile.stored_twin import StoredTwin
from tuner.traffic.slo import Slo
from tuner.twin.choice import good_caps, value_of
from tuner.twin.simulation import Traffic, simulate
from tuner.twin.uncertainty import choose

SURE = 0.95


@dataclass(frozen=True, slots=True)
class CapCheck:
    """The twin's view of the caps for some traffic."""

    best: int
    """By the law itself."""

    rightness: float
    """Share of the laws that might be true under which the profile's cap is right, or as good."""

    attainment: float
    """At the profile's cap, as the next one at the best."""

    best_attainment: float
    requests: int

    @property
    def holds(self) -> bool:
        return self.rightness >= SURE

    @property
    def is_another(self) -> bool:
        return self.rightness <= 1 - SURE


def choice_for(  # noqa: PLR0913 - what the twin is asked
    traffic: Traffic,
    twin: StoredTwin,
    slo: Slo,
    cap: int,
    caps: Sequence[int],
    *,
    slowdown: float = 1.0,
) -> CapCheck:
    """Ask about this traffic on a machine that is so many times slower than the law."""
    asked = sorted({one for one in caps if one < len(twin.law.decode_s)} | {cap})
    every = []
    for law in (twin.law, *twin.draws):
        now = law.slowed(slowdown)
        every.append(
            {
                one: value_of(traffic, simulate(traffic, now, twin.shape, max_num_seqs=one), slo)
                for one in asked
            }
        )
    values, drawn = every[0], every[1:] or every
    best = choose(values)
    return CapCheck(
        best=best,
        rightness=float(np.mean([cap in good_caps(one) for one in drawn])),
        attainment=values[cap][0],
        best_attainment=values[best][0],
        requests=len(traffic),
    )


def is_answerable(twin: StoredTwin, slo: Slo, cap: int, caps: Sequence[int]) -> bool:
    """Whether the stored twin, asked about the stored traffic, gives the profile's own choice."""
    return not choice_for(twin.traffic, twin, slo, cap, caps).is_another


def joined(parts: Sequence[Traffic], most: int) -> Traffic:
    """Return the newest ``most`` requests of parts that follow each other, from 0 s on."""
    columns = [
        np.concatenate([getattr(part, name) for part in parts])[-most:]
        for name in ("arrival_s", "input_length", "output_length", "cached_length")
    ]
    first_s = float(columns[0][0]) if len(columns[0]) else 0.0
    return Traffic(columns[0] - first_s, columns[1], columns[2], columns[3])
