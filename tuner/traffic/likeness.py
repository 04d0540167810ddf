"""Compare a part of a trace with the whole: what a replay of it stands for. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns, Floats, Ints

MIN_PARTS = 2.0
"""A part longer than the trace divided by this is hardly a part."""

UNLIKE = 0.15
"""Two samples whose distributions lie so far apart anywhere are of different lengths."""


TELLING = 0.3
"""Distance of samples by chance alone above which their distance says nothing."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """A part held against the whole trace."""

    start_s: float
    length_s: float
    requests: int
    load: float
    """Tokens asked for a second ÷ those of the whole."""

    rank: float
    """Share of all parts of this length in which fewer tokens are asked for, 0 to 1."""

    input_distance: float
    """Largest gap between the distributions of prompt lengths (Kolmogorov and Smirnov): 0 to 1."""

    output_distance: float
    distance_by_chance: float
    """What a random draw of as many requests stays below 95 times in 100."""

    @property
    def tells(self) -> bool:
        """Whether there are enough requests, about twenty, to say anything of their lengths."""
        return self.distance_by_chance <= TELLING

    @property
    def is_like(self) -> bool:
        """Whether its requests are like the whole's, however many there are of them."""
        return max(self.input_distance, self.output_distance) <= max(
            UNLIKE, self.distance_by_chance
        )


def likeness(columns: Columns, *, start_s: float, length_s: float) -> Likeness | None:
    """Return how [start_s, start_s + length_s) compares; None without a served request in it."""
    arrival_s, served = columns.arrival_s, columns.served
    first, last = np.searchsorted(arrival_s, [start_s, start_s + length_s])
    mine = slice(first, last)
    whole_s = float(arrival_s[-1] - arrival_s[0])
    size, of = (int(np.count_nonzero(each)) for each in (served[mine], served))
    if not size or not whole_s:
        return None
    before = columns.tokens_before()
    asked = int(before[last] - before[first])
    return Likeness(
        start_s=start_s,
        length_s=length_s,
        requests=int(last - first),
        load=asked / length_s / (float(before[-1]) / whole_s),
        rank=_rank(arrival_s, before, asked, length_s),
        input_distance=_distance(columns, columns.input_length, mine),
        output_distance=_distance(columns, columns.output_length, mine),
        # Of a sample from a finite whole; 1.36 is the 95 % point of Kolmogorov's distribution.
        distance_by_chance=1.36 * float(np.sqrt((of - size) / (of * size))),
    )


def _rank(arrival_s: Floats, before: Ints, asked: int, length_s: float) -> float:
    """Hold a part against those that begin at every twentieth of its length."""
    count = min(100_000, max(1, int((arrival_s[-1] - arrival_s[0] - length_s) / length_s * 20)))
    starts_s = np.linspace(arrival_s[0], max(arrival_s[0], arrival_s[-1] - length_s), count)
    ends = np.searchsorted(arrival_s, starts_s + length_s, side="left")
    begins = np.searchsorted(arrival_s, starts_s, side="left")
    return float(np.mean(before[ends] - before[begins] < asked))


def _distance(columns: Columns, lengths: NDArray[np.int32], part: slice) -> float:
    """Return Kolmogorov's and Smirnov's distance of a part's lengths from all."""
    mine = np.sort(lengths[part][columns.served[part]])
    every = np.sort(columns.of_served(lengths))
    gaps = [
        np.searchsorted(mine, mine, side) / len(mine)
        - np.searchsorted(every, mine, side) / len(every)
        for side in ("left", "right")
    ]
    return float(np.abs(gaps).max())
