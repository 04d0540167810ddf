"""A trace before anything is run: its numbers, and warnings of what it cannot carry. Pure.

A request is in flight from its arrival to its end, waiting included, and counts n times. Its
distribution is over time and not over arrivals: quantile q is the least level that holds for a
share q of the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns, Floats
from tuner.trace.record import TraceHeader

SHARES = (0.50, 0.90, 0.95, 0.99)
BAND_S_PER_TOKEN = (0.010, 0.080)
"""Times per output token of a fast and of a slow server, for traces whose ends are unknown."""

MOST_COUNTED = 2**26
"""Sequences of a trace whose concurrency is counted."""

BLOCK = 2**20
"""Moments that are counted at once: all of ten million requests take too much memory."""

KNOWN_ENDS = 0.95
"""Share of the served requests whose end must be recorded, for the recorded concurrency."""

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

TICKS_MS = (
    60_000.0, 30_000.0, 20_000.0, 15_000.0, 10_000.0, 5000.0, 3000.0, 2000.0, 1000.0, 500.0, 250.0,
    200.0, 100.0, 50.0, 20.0, 10.0, 5.0, 2.0,
)  # fmt: skip
"""Grids that clocks and scrapes have."""

COARSE_TICK_MS = 500
"""A replay of bursts within such a tick would measure queueing that is the clock's, and not the
traffic's (docs/traces.md)."""

MOST_RATE_RPS = 1000.0
"""More is more often a mistaken unit than traffic."""

EITHER_UNIT = frozenset({"unknown", "mooncake", "guidellm", "timed_trace"})
"""Formats whose stamps may be in s or in ms; those of others are dates, or have their unit."""

EPOCH_S = (1.0e9, 4.0e9)
"""Seconds since 1970 of the years 2001 to 2096: stamps of now, and hardly of anything else."""

FEW_REQUESTS, SHORT_S = 100, 30.0
"""Of fewer requests one alone is more than the attainment that the choice calls equal
(``EQUAL_ATTAINMENT``). Higher limits would warn of traces that do carry a tuning."""

RECORDER = "record them with vllm serve --middleware tuner.capture.TraceRecorder"
BLOCK_SIZE = 16
"""vLLM's default block_size."""


# Requests in flight


@dataclass(frozen=True, slots=True)
class Distribution:
    """Tokens a request, over the requests that were served; or requests in flight, over time."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int


def concurrency(
    begins_s: Floats, ends_s: Floats, *, start_s: float, end_s: float
) -> Distribution | None:
    """Return how many of the intervals hold in [start_s, end_s), over time; None for no time.

    ``begins_s`` and ``ends_s`` ascend, each for itself. At one time ends come before begins, so
    that nothing is in flight for no time.
    """
    at_s = np.concatenate(([start_s, end_s], begins_s, ends_s))
    np.clip(at_s, start_s, end_s, out=at_s)
    at_s.sort()
    at_s = at_s[np.append(True, at_s[1:] > at_s[:-1])]
    if len(at_s) < 2:
        return None
    held_s = np.zeros(len(begins_s) + 1)
    for first in range(0, len(at_s) - 1, BLOCK):
        edges_s = at_s[first : first + BLOCK + 1]
        begun = np.searchsorted(begins_s, edges_s[:-1], side="right")
        levels = begun - np.searchsorted(ends_s, edges_s[:-1], side="right")
        counted_s = np.bincount(levels, np.diff(edges_s))
        held_s[: len(counted_s)] += counted_s
    held_s = np.trim_zeros(held_s, "b")
    reached = np.cumsum(held_s) / held_s.sum()
    p50, p90, p95, p99 = np.searchsorted(reached, np.array(SHARES) * (1 - 1e-12)).tolist()
    mean = float(np.arange(len(held_s)) @ held_s / held_s.sum())
    return Distribution(mean, p50, p90, p95, p99, len(held_s) - 1)


def recorded(columns: Columns, *, running: bool = False) -> Distribution | None:
    """Return the requests in flight by recorded ends; of those ``running``: from first scheduled
    on, which is what max_num_seqs bounds.

    It is counted while the trace neither fills up nor drains: from the first arrival + the p99
    duration to the last arrival; in all of a trace that is shorter than its requests. None where
    too few times are recorded. Preempted requests count as served.
    """
    known = columns.served & ~np.isnan(columns.e2e_s)
    if running:
        known &= ~np.isnan(columns.queue_s)
    n, fewest = columns.n[known], max(1, KNOWN_ENDS * np.count_nonzero(columns.served))
    if len(n) < fewest or n.sum(dtype=np.int64) > MOST_COUNTED:
        return None
    first_s, last_s = columns.arrival_s[[0, -1]].tolist()
    p99_s = float(np.quantile(columns.e2e_s[known], 0.99))
    begins_s, ends_s = columns.arrival_s[known], (columns.arrival_s + columns.e2e_s)[known]
    if running:
        begins_s = np.minimum(begins_s + columns.queue_s[known], ends_s)
    if (n != 1).any():
        begins_s, ends_s = begins_s.repeat(n), ends_s.repeat(n)
    begins_s.sort()
    ends_s.sort()
    start_s = first_s + p99_s * (p99_s < (last_s - first_s) / 2)
    return concurrency(begins_s, ends_s, start_s=start_s, end_s=last_s)


# All the numbers


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

    running: Distribution | None
    """Of these the ones that were being served; None where their waits are unknown."""

    littles_mean: float | None
    """Arrival rate times mean recorded duration: what the mean concurrency should be."""

    band: list[float]
    """Where the ends are unknown: the mean in flight on a fast and on a slow server, by Little's
    law. No server keeps one speed at any load: it is a preview, and never a target."""

    prefix_share: float | None
    """Prompt tokens that an endless prefix cache would know ÷ all; None without hash ids."""


def describe(columns: Columns) -> TrafficSummary:
    """Return the numbers of a trace; ``columns`` has at least one request."""
    arrival_s, reused, size = columns.arrival_s, columns.reused_tokens, len(columns)
    lasted_s = float(arrival_s[-1] - arrival_s[0])
    gaps_s = np.diff(arrival_s)
    same_time = int(np.count_nonzero(gaps_s == 0))
    cv = float(gaps_s.std() / gaps_s.mean()) if lasted_s else None
    del gaps_s  # ten million requests fit into a gigabyte
    in_flight = recorded(columns)
    held_s = float(np.nansum((columns.e2e_s * columns.n)[columns.served])) if in_flight else 0.0
    prompt_tokens = int(columns.input_length.sum(dtype=np.int64))
    band: list[float] = []
    if in_flight is None and lasted_s:
        prompts = columns.of_served(columns.input_length).sum(dtype=np.int64)
        generated = float(columns.tokens().sum() - prompts)
        band = [generated * each_s / lasted_s for each_s in BAND_S_PER_TOKEN]
    return TrafficSummary(
        requests=size,
        served=int(np.count_nonzero(columns.served)),
        duration_s=lasted_s,
        arrival_rate_rps=(size - 1) / lasted_s if lasted_s else None,
        interarrival_cv=cv,
        dispersion={
            bin_s: dispersion(arrival_s, bin_s)
            for bin_s in DISPERSION_BINS_S
            if lasted_s >= MIN_BINS * bin_s
        },
        tick_ms=tick_ms(arrival_s),
        same_time_share=same_time / size,
        peak_arrivals={
            span_s: int((np.searchsorted(arrival_s, arrival_s + span_s) - np.arange(size)).max())
            for span_s in PEAK_WINDOWS_S
        },
        input_tokens=_lengths(columns.of_served(columns.input_length)),
        output_tokens=_lengths(columns.of_served(columns.output_length)),
        recorded=in_flight,
        running=in_flight and recorded(columns, running=True),
        littles_mean=held_s / lasted_s if in_flight and lasted_s else None,
        band=band,
        prefix_share=None if reused is None or not prompt_tokens else reused / prompt_tokens,
    )


def tick_ms(arrival_s: Floats) -> float | None:
    """Return the grid that arrival times lie on, jitter of 1 ms allowed; None without one. Bursts
    within a tick are the clock's and not the traffic's."""
    since_us = np.unique(np.round((arrival_s[:FIRST] - arrival_s[0]) * 1e6))[1:]
    for tick in TICKS_MS if len(since_us) >= MIN_TICKS else ():
        beside_us = np.abs((since_us + tick * 500) % (tick * 1000) - tick * 500)
        is_on_grid = np.mean(beside_us <= min(JITTER_US, tick * 50)) >= ON_GRID
        if is_on_grid and tick * 1000 <= since_us[-1] / (MIN_TICKS - 1):
            return tick
    return None


def dispersion(arrival_s: Floats, bin_s: float) -> float:
    """Return variance ÷ mean of the arrivals in each ``bin_s`` seconds. Unlike the CV of the gaps
    it shows at which time scale traffic is bursty."""
    size = int((arrival_s[-1] - arrival_s[0]) / bin_s)
    bins = np.floor((arrival_s - arrival_s[0]) / bin_s)
    bins = bins[: np.searchsorted(bins, size)]
    last = np.append(bins[1:] != bins[:-1], True)
    counts = np.diff(np.flatnonzero(last), prepend=-1)  # the empty need no memory
    mean = float(counts.sum()) / size
    return float((counts.astype(float) ** 2).sum() / size - mean**2) / mean


def _lengths(tokens: NDArray[np.int32]) -> Distribution | None:
    if not len(tokens):
        return None
    p50, p90, p95, p99 = np.quantile(tokens, SHARES).tolist()
    return Distribution(float(tokens.mean()), p50, p90, p95, p99, int(tokens.max()))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a trace beside the whole."""

    start_s: float
    length_s: float
    requests: int
    load: float
    """Tokens requested a second ÷ those of the whole."""


def stretch(columns: Columns, *, start_s: float, length_s: float) -> Stretch | None:
    """Return the part from ``start_s`` on beside the whole; None without a served request in it."""
    arrival_s, tokens = columns.arrival_s, columns.tokens()
    inside = (arrival_s >= start_s) & (arrival_s < start_s + length_s)
    whole_s = float(np.ptp(arrival_s))
    if not columns.served[inside].any() or not whole_s:
        return None
    load = float(tokens[inside].sum() / length_s / (tokens.sum() / whole_s))
    return Stretch(start_s, length_s, int(np.count_nonzero(inside)), load)


# Warnings


def trace_warnings(  # noqa: C901 - one after the other
    columns: Columns, traffic: TrafficSummary, header: TraceHeader
) -> Iterator[str]:
    rate, is_either = traffic.arrival_rate_rps or 0.0, header.source in EITHER_UNIT
    if is_either and EPOCH_S[0] <= float(columns.arrival_s[0]) * 1000 <= EPOCH_S[1]:
        yield (
            "the first stamp looks like seconds since 1970 that were read as ms: "
            "import with --time-unit s"
        )
    elif rate > MOST_RATE_RPS:
        cure = f"if the stamps are in s, import with --time-unit s and it is {rate / 1000:,.1f}"
        cure = f"{cure} req/s" if is_either else "look at the stamps of its rows"
        yield f"{rate:,.0f} req/s is more than most clusters see: {cure}"
    if traffic.tick_ms is not None and traffic.tick_ms >= COARSE_TICK_MS:
        yield (
            f"arrivals lie on a grid of {traffic.tick_ms:,.0f} ms: bursts within it are the "
            "clock's, not the traffic's; import with --spread-ticks"
        )
    served, lost = traffic.served, traffic.requests - traffic.served
    if served < FEW_REQUESTS or traffic.duration_s < SHORT_S:
        yield (
            f"{served:,} served request{'s' * (served != 1)} in {traffic.duration_s:,.1f}s, too few"
            f" to carry a tuning: capture at least {FEW_REQUESTS} and {SHORT_S:.0f}s, better the "
            "busiest hour"
        )
    if lost:
        yield (
            f"{lost:,} {'request was' if lost == 1 else 'requests were'} failed or rejected and "
            "will not be replayed: demand was higher; sweep with a larger --headroom"
        )
    if traffic.band:
        yield (
            "ends are not recorded: the concurrency is a band over 10 to 80 ms per output token, "
            "for a preview only; import an export that has durations"
        )
    if "aborts" in header.missing:
        yield (
            "the source cannot show aborted requests: the load is understated by what they took; "
            "sweep with a larger --headroom"
        )
    if (servers := len(np.unique(columns.replica[columns.replica >= 0]))) > 1:
        yield (
            f"the traffic of {servers} servers: one of them gets a part of it; take it with tuner "
            f"trace cut --replica busiest, or route anew with --replicas {servers}"
        )
    if traffic.prefix_share is None:
        yield f"no hash_ids: prompts will be unique, prefix reuse 0 is a lower bound; {RECORDER}"
    elif header.block_size > BLOCK_SIZE:
        yield (
            f"the trace knows shared prefixes in blocks of {header.block_size} tokens, the engine "
            f"caches blocks of {BLOCK_SIZE}: prefix reuse is understated; {RECORDER}"
        )
