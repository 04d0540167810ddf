"""Compare a part of a trace with the whole: what a replay of it stands for. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns, Floats, Ints
from tuner.traffic.levels import DENSE

MIN_PARTS = 2.0
"""A part longer than the trace divided by this is hardly a part."""

UNLIKE = 0.15
"""Two samples whose distributions lie so far apart anywhere are of different lengths."""


TELLING = 0.3
"""Where chance alone moves samples farther apart than this, their distance says nothing."""


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
    inside = (arrival_s >= start_s) & (arrival_s < start_s + length_s)
    mine = inside & served
    whole_s = float(arrival_s[-1] - arrival_s[0])
    tokens = columns.tokens()
    if not mine.any() or not whole_s:
        return None
    size, of = int(mine.sum()), int(served.sum())
    return Likeness(
        start_s=start_s,
        length_s=length_s,
        requests=int(inside.sum()),
        load=float(tokens[inside].sum()) / length_s / (float(tokens.sum()) / whole_s),
        rank=_rank(columns, tokens, int(tokens[inside].sum()), length_s),
        input_distance=_distance(columns.input_length[mine], columns.input_length[served]),
        output_distance=_distance(columns.output_length[mine], columns.output_length[served]),
        # Of a sample from a finite whole; 1.36 is the 95 % point of Kolmogorov's distribution.
        distance_by_chance=1.36 * float(np.sqrt((of - size) / (of * size))),
    )


def _rank(columns: Columns, tokens: Ints, asked: int, length_s: float) -> float:
    """Hold a part against those that begin at every twentieth of its length."""
    arrival_s = columns.arrival_s
    before = np.concatenate([[0], np.cumsum(tokens)])
    count = min(100_000, max(1, int((arrival_s[-1] - arrival_s[0] - length_s) / length_s * 20)))
    starts_s = np.linspace(arrival_s[0], max(arrival_s[0], arrival_s[-1] - length_s), count)
    ends = np.searchsorted(arrival_s, starts_s + length_s, side="left")
    begins = np.searchsorted(arrival_s, starts_s, side="left")
    return float(np.mean(before[ends] - before[begins] < asked))


def _distance(part: NDArray[np.int32], whole: NDArray[np.int32]) -> float:
    mine, all_ = counted(part), counted(whole)
    return max(
        float(
            np.abs(
                mine.share_upto(mine.numbers, inclusive=inclusive)
                - all_.share_upto(mine.numbers, inclusive=inclusive)
            ).max()
        )
        for inclusive in (False, True)
    )


@dataclass(frozen=True, slots=True)
class Counted:
    """Numbers in order, and how often each is there: ten million lengths need not be sorted."""

    numbers: Ints
    times: Ints

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return what ``numpy.quantile`` does, between two numbers in proportion."""
        upto = np.cumsum(self.times)
        at = np.array(shares) * (upto[-1] - 1)
        below = np.floor(at)
        low = self.numbers[np.searchsorted(upto, below, side="right")]
        high = self.numbers[np.searchsorted(upto, np.minimum(below + 1, upto[-1] - 1), "right")]
        return [*map(float, low + (high - low) * (at - below))]

    def share_upto(self, numbers: Ints, *, inclusive: bool) -> Floats:
        """Return for each number the share of all that are below it, or at it."""
        before = np.concatenate([[0], np.cumsum(self.times)])
        side = np.searchsorted(self.numbers, numbers, side="right" if inclusive else "left")
        shares: Floats = before[side] / before[-1]
        return shares


def counted(numbers: NDArray[Any]) -> Counted:
    """Count whole numbers from 0, of which there is one at least."""
    if int(numbers.max()) >= DENSE:
        return Counted(*np.unique_counts(numbers.astype(np.int64)))
    times = np.bincount(numbers)
    there = np.flatnonzero(times)
    return Counted(there, times[there])
