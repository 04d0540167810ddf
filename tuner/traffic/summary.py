"""Summarise a trace before anything is run. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.trace.columns import Columns
from tuner.traffic.arrivals import (
    arrival_rate_rps,
    dispersion,
    duration_s,
    interarrival_cv,
    peak_arrivals,
    same_time_share,
    tick_ms,
)
from tuner.traffic.concurrency import (
    modelled_band,
    recorded_levels,
    recorded_running,
)
from tuner.traffic.levels import Held, Levels

PEAK_WINDOWS_S = (1.0, 10.0, 60.0)
DISPERSION_BINS_S = (1.0, 10.0)
"""Two time scales tell which bursts are meant: Azure's "code" has 14 times the variance of Poisson
arrivals in 1 s and 82 in 10 s (docs/traces.md). A bin of 60 s would need a trace of ten minutes."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Tokens a request, over the requests that were served; or requests in flight, over time."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    """The numbers of a trace."""

    requests: int
    served: int
    duration_s: float
    arrival_rate_rps: float | None
    """None, as the two below, where all requests arrive at one time."""

    interarrival_cv: float | None
    dispersion: dict[float, float]
    """Seconds → variance ÷ mean of the arrivals in so many seconds; none for a short trace."""

    tick_ms: float | None
    same_time_share: float
    peak_arrivals: dict[float, int]
    """Seconds → most arrivals in so many seconds."""

    input_tokens: Distribution | None
    """None where no request was served."""

    output_tokens: Distribution | None
    output_tokens_per_s: float | None
    recorded: Distribution | None
    """By the recorded ends; None where they are unknown."""

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
    """Return what the trace says; ``columns`` has at least one request."""
    arrival_s = columns.arrival_s
    lasted_s = duration_s(arrival_s)
    spread = {bin_s: dispersion(arrival_s, bin_s) for bin_s in DISPERSION_BINS_S}
    tokens = int(columns.of_served(columns.outputs()).sum(dtype=np.int64))
    prompt_tokens = int(columns.input_length.sum(dtype=np.int64))
    levels = recorded_levels(columns)
    recorded = concurrency(None if levels is None else levels.held())
    seen = modelled_band(columns) if recorded is None else {}
    band = {speed: of for speed, held in seen.items() if (of := concurrency(held))}
    return TrafficSummary(
        requests=len(columns),
        served=int(np.count_nonzero(columns.served)),
        duration_s=lasted_s,
        arrival_rate_rps=arrival_rate_rps(arrival_s),
        interarrival_cv=interarrival_cv(arrival_s),
        dispersion={bin_s: found for bin_s, found in spread.items() if found is not None},
        tick_ms=tick_ms(arrival_s),
        same_time_share=same_time_share(arrival_s),
        peak_arrivals={window_s: peak_arrivals(arrival_s, window_s) for window_s in PEAK_WINDOWS_S},
        input_tokens=_lengths(columns.of_served(columns.input_length)),
        output_tokens=_lengths(columns.of_served(columns.output_length)),
        output_tokens_per_s=tokens / lasted_s if lasted_s else None,
        recorded=recorded,
        levels=levels,
        running=concurrency(recorded_running(columns)) if recorded else None,
        littles_mean=_waited_s(columns) / lasted_s if recorded and lasted_s else None,
        band=band,
        prefix_share=None
        if columns.reused_tokens is None or not prompt_tokens
        else columns.reused_tokens / prompt_tokens,
    )


def _waited_s(columns: Columns) -> float:
    ends = columns.served & ~np.isnan(columns.e2e_s)
    return float((columns.e2e_s * columns.n)[ends].sum())


def concurrency(held: Held | None) -> Distribution | None:
    if held is None:
        return None
    p50, p90, p95, p99 = held.quantiles(0.50, 0.90, 0.95, 0.99)
    return Distribution(held.mean(), p50, p90, p95, p99, held.max())


def _lengths(tokens: NDArray[np.int32]) -> Distribution | None:
    if not len(tokens):
        return None
    p50, p90, p95, p99 = np.quantile(tokens, (0.50, 0.90, 0.95, 0.99)).tolist()
    return Distribution(float(tokens.mean()), p50, p90, p95, p99, int(tokens.max()))
