"""Summarize a trace before anything is run. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns, Floats
from tuner.traffic.concurrency import Distribution, Levels, modeled_band, recorded_levels

PEAK_WINDOWS_S = (1.0, 10.0, 60.0)
DISPERSION_BINS_S = (1.0, 10.0)
"""Two time scales show which bursts are meant. A bin of 60 s would need a trace of ten minutes."""

MIN_TICKS, MIN_BINS = 10, 10
"""Distinct times and counts below which there is no grid and no variance to speak of."""

ON_GRID = 0.95
"""Share of the distinct times that must be on the grid; clocks jitter and jump."""

JITTER_US = 2000.0
"""Two stamps that are each off by 1 ms."""

FIRST = 2**17
"""So many arrivals show a grid if there is one."""

TICKS_MS = (60_000, 30_000, 15_000, 10_000, 5_000, 2_000, 1_000, 500, 100, 10)
"""Grids that clocks and scrapes often have; where stamps jitter, gaps alone do not show them."""


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    """The numbers of a trace."""

    requests: int
    served: int
    duration_s: float
    arrival_rate_rps: float | None
    """None, as the two below, where all requests arrive at one time."""

    interarrival_cv: float | None
    """Standard deviation ÷ mean of the gaps: 1 for Poisson arrivals, more for bursts."""

    dispersion: dict[float, float]
    """Seconds → variance ÷ mean of the arrivals in so many seconds, 1 for Poisson arrivals; none
    for a short trace."""

    tick_ms: float | None
    same_time_share: float
    """Share of the requests that arrive at the very time of the one before."""

    peak_arrivals: dict[float, int]
    """Seconds → most arrivals in so many seconds."""

    input_tokens: Distribution | None
    """None where no request was served."""

    output_tokens: Distribution | None
    recorded: Distribution | None
    """In flight, by the recorded ends; None where they are unknown."""

    levels: Levels | None
    """What ``recorded`` sums up."""

    running: Distribution | None
    """Of these the ones that were being served; None where their waits are unknown."""

    littles_mean: float | None
    """Arrival rate times mean recorded duration: what the mean concurrency should be."""

    band: dict[float, Distribution]
    """Where the ends are unknown: seconds per output token → concurrency at that speed."""

    prefix_share: float | None
    """Prompt tokens that an endless prefix cache would know ÷ all; None without hash ids."""


def describe(columns: Columns) -> TrafficSummary:
    """Return the numbers of a trace; ``columns`` has at least one request."""
    arrival_s, reused = columns.arrival_s, columns.reused_tokens
    lasted_s = float(arrival_s[-1] - arrival_s[0])
    gaps_s = np.diff(arrival_s)
    same_time = int(np.count_nonzero(gaps_s == 0))
    cv = float(gaps_s.std() / gaps_s.mean()) if lasted_s else None
    del gaps_s  # ten million requests fit into a gigabyte
    spread = {bin_s: dispersion(arrival_s, bin_s) for bin_s in DISPERSION_BINS_S}
    levels = recorded_levels(columns)
    running = None if levels is None else recorded_levels(columns, running=True)
    known = columns.served & ~np.isnan(columns.e2e_s)
    held_s = float((columns.e2e_s * columns.n)[known].sum())
    prompt_tokens = int(columns.input_length.sum(dtype=np.int64))
    return TrafficSummary(
        requests=len(columns),
        served=int(np.count_nonzero(columns.served)),
        duration_s=lasted_s,
        arrival_rate_rps=(len(columns) - 1) / lasted_s if lasted_s else None,
        interarrival_cv=cv,
        dispersion={bin_s: each for bin_s, each in spread.items() if each is not None},
        tick_ms=tick_ms(arrival_s),
        same_time_share=same_time / len(columns),
        peak_arrivals={window_s: _most_in(arrival_s, window_s) for window_s in PEAK_WINDOWS_S},
        input_tokens=_lengths(columns.of_served(columns.input_length)),
        output_tokens=_lengths(columns.of_served(columns.output_length)),
        recorded=None if levels is None else levels.distribution(),
        levels=levels,
        running=None if running is None else running.distribution(),
        littles_mean=held_s / lasted_s if levels is not None and lasted_s else None,
        band=modeled_band(columns) if levels is None else {},
        prefix_share=None if reused is None or not prompt_tokens else reused / prompt_tokens,
    )


def tick_ms(arrival_s: Floats) -> float | None:
    """Return the grid of 2 ms or more that arrival times lie on, jitter of 1 ms allowed; None
    without one. Bursts within a tick are the clock's and not the traffic's."""
    since_us = np.round((arrival_s[:FIRST] - arrival_s[0]) * 1e6).astype(np.int64)
    gaps_us = np.diff(np.unique(since_us))
    if len(gaps_us) < MIN_TICKS:
        return None
    since_us = np.cumsum(gaps_us)
    exact_ms = float(np.gcd.reduce(gaps_us)) / 1000
    for tick in sorted({exact_ms, *map(float, TICKS_MS)}, reverse=True):
        if tick < 2 or tick * 1000 > since_us[-1] / (MIN_TICKS - 1):
            continue
        beside_us = np.abs((since_us + tick * 500) % (tick * 1000) - tick * 500)
        if np.mean(beside_us <= min(JITTER_US, tick * 50)) >= ON_GRID:
            return tick
    return None


def dispersion(arrival_s: Floats, bin_s: float) -> float | None:
    """Return variance ÷ mean of the arrivals in each ``bin_s`` seconds. Unlike the CV of the gaps
    it shows at which time scale traffic is bursty. None for fewer than MIN_BINS whole bins."""
    size = int((arrival_s[-1] - arrival_s[0]) / bin_s)
    if size < MIN_BINS:
        return None
    bins = arrival_s - arrival_s[0]
    bins /= bin_s
    np.floor(bins, out=bins)
    bins = bins[: np.searchsorted(bins, size)]
    last = np.append(bins[1:] != bins[:-1], True)
    counts = np.diff(np.flatnonzero(last), prepend=-1)  # the empty need no memory
    mean = float(counts.sum()) / size
    return float((counts.astype(float) ** 2).sum() / size - mean**2) / mean


def _most_in(arrival_s: Floats, window_s: float) -> int:
    """Return the most arrivals in any ``window_s`` seconds."""
    most = np.searchsorted(arrival_s, arrival_s + window_s, side="left")
    most -= np.arange(len(most))
    return int(most.max())


def _lengths(tokens: NDArray[np.int32]) -> Distribution | None:
    if not len(tokens):
        return None
    p50, p90, p95, p99 = np.quantile(tokens, (0.50, 0.90, 0.95, 0.99)).tolist()
    return Distribution(float(tokens.mean()), p50, p90, p95, p99, int(tokens.max()))
