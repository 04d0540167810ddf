"""Describe arrivals: rate, burstiness, the clock's grid, the busiest time. Pure."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Floats, Ints, columns_of
from tuner.trace.trace import TraceRequest

MIN_TICKS = 10
"""Distinct times below which nothing is said of a grid: any two are on one."""

MIN_BINS = 10
"""Fewer counts have no variance to speak of; more would leave out short traces."""

FULL = 16
"""Arrivals a bin from which on it takes less time to look for the edges of bins."""

ON_GRID = 0.95
"""Share of the distinct times that must be on the grid; clocks jitter and jump."""

JITTER_US = 2000.0
"""Two stamps that are each off by 1 ms."""

TELLING = 2**17
"""So many arrivals show a grid if there is one."""

SAMPLE = 2**20
"""So many are looked at at a time."""

STRIDE = 16
"""Arrivals from one start of a window to the next, at first."""

FINEST_TICK_MS = 2
"""A grid of 1 ms is a clock that counts in ms, and harmless."""

SHORTEST_S = 1e-3
"""Of a stretch whose requests arrive at once."""

ROUND_TICKS_MS = (10, 100, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000)
"""Grids that clocks and scrapes often have; where stamps jitter, gaps alone do not show them."""


def duration_s(arrival_s: Floats) -> float:
    return float(arrival_s[-1] - arrival_s[0])


def arrival_rate_rps(arrival_s: Floats) -> float | None:
    """Return 1 ÷ the mean gap; None when all arrive at once."""
    lasted_s = duration_s(arrival_s)
    return (len(arrival_s) - 1) / lasted_s if lasted_s else None


def interarrival_cv(arrival_s: Floats) -> float | None:
    """Return standard deviation ÷ mean of the gaps: 1 for Poisson arrivals, more for bursts."""
    gaps_s = np.diff(arrival_s)
    if not (mean_s := duration_s(arrival_s) / max(1, len(gaps_s))):
        return None
    gaps_s -= mean_s
    gaps_s *= gaps_s
    return float(np.sqrt(gaps_s.mean())) / mean_s


def tick_ms(arrival_s: Floats) -> float | None:
    """Return the grid that arrival times lie on, jitter of 1 ms allowed; None without one.

    Bursts within a tick are the clock's and not the traffic's.
    """
    arrival_s = arrival_s[:TELLING]
    gaps_us = np.diff(np.round((arrival_s - arrival_s[0]) * 1e6).astype(np.int64))
    gaps_us = gaps_us[gaps_us > 0]
    if len(gaps_us) < MIN_TICKS:
        return None
    since_us = np.cumsum(gaps_us)
    ticks = np.round(gaps_us / np.median(gaps_us)).sum()  # if most gaps are one tick
    mean_ms = float(np.round(since_us[-1] / ticks / 1000)) if ticks else 0.0
    exact_ms = float(np.gcd.reduce(gaps_us)) / 1000
    candidates = {exact_ms, mean_ms, *map(float, ROUND_TICKS_MS)}
    for tick in sorted(candidates, reverse=True):
        if tick < FINEST_TICK_MS or tick * 1000 > since_us[-1] / (MIN_TICKS - 1):
            continue
        beside_us = np.abs((since_us + tick * 500) % (tick * 1000) - tick * 500)
        if np.mean(beside_us <= min(JITTER_US, tick * 50)) >= ON_GRID:
            return tick
    return None


def dispersion(arrival_s: Floats, bin_s: float) -> float | None:
    """Return variance ÷ mean of the arrivals in each ``bin_s`` seconds: 1 for Poisson arrivals.

    Unlike the CV of the gaps it says at which time scale traffic is bursty. None for a trace of
    fewer than MIN_BINS whole bins.
    """
    whole = int(duration_s(arrival_s) / bin_s)
    if whole < MIN_BINS:
        return None
    if whole * FULL < len(arrival_s):
        bins = np.arange(whole + 1)
    else:  # the empty need no memory
        bins = ((arrival_s - arrival_s[0]) / bin_s).astype(np.int64)
        bins = bins[np.flatnonzero(np.diff(bins, prepend=-1))]
    before = np.searchsorted(arrival_s, arrival_s[0] + bins * bin_s)
    counts = np.diff(before).astype(np.float64)
    mean = float(before[-1]) / whole
    return float((counts**2).sum() / whole - mean**2) / mean


def same_time_share(arrival_s: Floats) -> float:
    """Return the share of the requests that arrive at the very time of the one before."""
    return int(np.count_nonzero(arrival_s[1:] == arrival_s[:-1])) / len(arrival_s)


def peak_arrivals(arrival_s: Floats, window_s: float) -> int:
    """Return the most arrivals in any ``window_s`` seconds."""
    first, last = _fullest(arrival_s, lambda places: places, window_s)
    return last - first


def _fullest(arrival_s: Floats, before: Callable[[Ints], Ints], window_s: float) -> tuple[int, int]:
    """Return [first, last) of the arrivals within ``window_s`` seconds that weigh most, of equals
    the first.

    ``before`` says what all earlier ones weigh. Every STRIDE-th start is looked at, then those in
    between where there may be more.
    """
    starts = np.arange(0, len(arrival_s), STRIDE)
    ends = np.searchsorted(arrival_s, arrival_s[starts] + window_s, side="left")
    earlier = before(starts)
    most = (before(ends) - earlier).max()
    could = before(np.append(ends[1:], len(arrival_s))) - earlier >= most
    first = last = 0
    heaviest = -1
    for group in np.array_split(starts[could], 1 + int(could.sum()) * STRIDE // SAMPLE):
        begins = (group[:, None] + np.arange(STRIDE)).ravel()
        begins = begins[begins < len(arrival_s)]
        upto = np.searchsorted(arrival_s, arrival_s[begins] + window_s, side="left")
        weights = before(upto) - before(begins)
        at = int(weights.argmax())
        if weights[at] > heaviest:
            heaviest, first, last = weights[at], int(begins[at]), int(upto[at])
    return first, last


def busiest_window(requests: Sequence[TraceRequest], length_s: float) -> tuple[float, float]:
    """Return the [start, end) of ``length_s`` in which the most tokens are asked for.

    Tokens are those of prompts and outputs of requests that were served. Of equals the first.
    """
    columns = columns_of(requests, block_size=1)
    return busiest(columns.arrival_s, columns.tokens_before(), length_s)


def busiest(arrival_s: Floats, before: Ints, length_s: float) -> tuple[float, float]:
    """``busiest_window`` on columns; ``before`` as in ``Columns.tokens_before``."""
    start_s = float(arrival_s[_fullest(arrival_s, before.__getitem__, length_s)[0]])
    # A window that reaches past the end of the trace moves back: it would be idle there.
    latest_s = float(arrival_s[-1]) - length_s + 1e-6
    start_s = max(float(arrival_s[0]), min(start_s, latest_s))
    return start_s, start_s + length_s


def busiest_rows(arrival_s: Floats, tokens: NDArray[np.int64], most: int) -> slice:
    """Return the rows of the stretch of ``most`` requests with the most tokens a second; of equals
    the first, and all rows where there are no more.

    Not of the most tokens: a night of long prompts has more of them, hours apart.
    """
    if len(arrival_s) <= most:
        return slice(0, len(arrival_s))
    before = np.concatenate([[0], np.cumsum(tokens)])
    took_s = arrival_s[most - 1 :] - arrival_s[: len(arrival_s) - most + 1]
    first = int(np.argmax((before[most:] - before[:-most]) / np.maximum(took_s, SHORTEST_S)))
    return slice(first, first + most)
