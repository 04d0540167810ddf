"""Would today's traffic, with the profile's headroom, choose another cap? Asks the twin in the
profile. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.profile.stored_twin import StoredTwin
from tuner.traffic.slo import Slo
from tuner.twin.draws import PRINTED
from tuner.twin.objective import choose
from tuner.twin.simulation import Traffic

SURE = 0.95

FEW = 20
"""Laws that are asked first, half of which are enough of the 200 that a profile keeps."""


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
    headroom: float = 1.0,
    slowdown: float = 1.0,
    most: int = PRINTED,
) -> CapCheck:
    """Ask about this traffic, and ``headroom`` times of it, on a machine that is so many times
    slower than the law; under so many of the laws that might be true at most."""
    asked = sorted({one for one in caps if one < len(twin.law.decode_s)} | {cap})
    weighed = twin.weighed(traffic, slo, asked, headroom=headroom, slowdown=slowdown, most=most)
    best = choose(weighed.values, weighed.raised, requests=len(traffic))
    return CapCheck(
        best=best,
        rightness=weighed.rightness.get(cap, 0.0),
        attainment=weighed.values[cap][0],
        best_attainment=weighed.values[best][0],
        requests=len(traffic),
    )


def is_answerable(
    twin: StoredTwin, slo: Slo, cap: int, caps: Sequence[int], *, headroom: float = 1.0
) -> bool:
    """Whether the stored twin, asked about the stored traffic, gives the profile's own choice; all
    laws are asked only where a few leave it open."""
    asked = (twin.traffic, twin, slo, cap, caps)
    laws = min(PRINTED, len(twin.laws))
    right = min(FEW, laws) * choice_for(*asked, headroom=headroom, most=FEW).rightness
    if 0 < (1 - SURE) * laws < right:
        return True
    return not choice_for(*asked, headroom=headroom).is_another


def joined(parts: Sequence[Traffic], most: int) -> Traffic:
    """Return the newest ``most`` requests of parts that follow each other, from 0 s on."""
    columns = [
        np.concatenate([getattr(part, name) for part in parts])[-most:]
        for name in ("arrival_s", "input_length", "output_length", "cached_length")
    ]
    first_s = float(columns[0][0]) if len(columns[0]) else 0.0
    return Traffic(columns[0] - first_s, columns[1], columns[2], columns[3])
