"""Warn of what a trace cannot carry: one sentence each, with what to do. Pure."""

import numpy as np

from tuner.trace.columns import Columns
from tuner.trace.record import TraceHeader
from tuner.traffic.arrivals import SAMPLE
from tuner.traffic.summary import TrafficSummary

COARSE_TICK_MS = 500
"""A replay of bursts within such a tick would measure queueing that is the clock's, and not the
traffic's (docs/traces.md)."""

MAX_RATE_RPS = 1000.0
MIN_RATE_RPS = 0.002
"""Rates beyond these are more often a mistaken unit than traffic."""

EITHER_UNIT = frozenset({"unknown", "mooncake", "aiperf", "guidellm", "timed_trace"})
"""Formats whose stamps may be in s or in ms."""

EPOCH_S = (1.0e9, 4.0e9)
"""Seconds since 1970 of the years 2001 to 2096: stamps of now, and hardly of anything else."""

FEW_REQUESTS, SHORT_S = 100, 30.0
"""Of fewer requests one alone is more than the attainment that the choice calls equal
(``EQUAL_ATTAINMENT``). Higher limits would warn of traces that do carry a tuning."""

UNIFORM_SPREAD = 0.02
"""Standard deviation of lengths as a share of their mean: so little is made up, and no traffic."""

ENGINE_BLOCK_SIZE = 16
"""vLLM's default block_size."""


def trace_warnings(
    columns: Columns, traffic: TrafficSummary, header: TraceHeader
) -> tuple[str, ...]:
    found = [
        _unit(columns, traffic, header),
        _tick(traffic),
        _size(traffic),
        _uniform(columns, traffic),
        _not_served(traffic),
        _ends(traffic),
        _little(traffic),
        _missing(header),
        _replicas(columns),
        _prefixes(traffic, header),
    ]
    return tuple(text for text in found if text)


def _unit(columns: Columns, traffic: TrafficSummary, header: TraceHeader) -> str | None:
    rate = traffic.arrival_rate_rps
    first_s = float(columns.arrival_s[0])
    if header.source not in EITHER_UNIT:  # their stamps are dates, or say their unit
        return (
            f"{rate:,.0f} req/s is more than most clusters see: look at the stamps of its rows"
            if rate is not None and rate > MAX_RATE_RPS
            else None
        )
    if EPOCH_S[0] <= first_s * 1000 <= EPOCH_S[1]:
        return (
            "the first stamp looks like seconds since 1970 that were read as ms: "
            "import with --time-unit s"
        )
    if rate is not None and rate > MAX_RATE_RPS:
        return (
            f"{rate:,.0f} req/s is more than most clusters see: if the stamps are in s, "
            f"import with --time-unit s and it is {rate / 1000:,.1f} req/s"
        )
    if rate is not None and rate < MIN_RATE_RPS and traffic.requests > 10:
        return (
            f"one request every {1 / rate:,.0f}s is less than most servers see: if the stamps are "
            f"in ms, import with --time-unit ms"
        )
    return None


def _tick(traffic: TrafficSummary) -> str | None:
    if traffic.tick_ms is None or traffic.tick_ms < COARSE_TICK_MS:
        return None
    return (
        f"arrivals lie on a grid of {traffic.tick_ms:,.0f} ms: bursts within it are the clock's, "
        f"not the traffic's; import with --spread-ticks"
    )


def _size(traffic: TrafficSummary) -> str | None:
    if traffic.served >= FEW_REQUESTS and traffic.duration_s >= SHORT_S:
        return None
    one = traffic.served == 1
    return (
        f"{traffic.served:,} served request{'' if one else 's'} in {traffic.duration_s:,.1f}s "
        f"{'is' if one else 'are'} too few to carry a "
        f"tuning: capture at least {FEW_REQUESTS} and {SHORT_S:.0f}s, better the busiest hour"
    )


def _uniform(columns: Columns, traffic: TrafficSummary) -> str | None:
    lengths = columns.of_served(columns.output_length)
    lengths = lengths[:: max(1, len(lengths) // SAMPLE)]
    if len(lengths) < FEW_REQUESTS or lengths.std() > UNIFORM_SPREAD * lengths.mean():
        return None
    assert traffic.output_tokens is not None
    return (
        f"every output is about {traffic.output_tokens.mean:,.0f} tokens long: uniform lengths "
        f"finish together, and what they promise is not what real traffic gets; capture real ones"
    )


def _not_served(traffic: TrafficSummary) -> str | None:
    lost = traffic.requests - traffic.served
    if not lost:
        return None
    were = "request was" if lost == 1 else "requests were"
    return (
        f"{lost:,} {were} failed or rejected and will not be replayed: demand was higher; "
        f"sweep with a larger --headroom"
    )


def _ends(traffic: TrafficSummary) -> str | None:
    if traffic.recorded or not traffic.band:
        return None
    return (
        "ends are not recorded: the concurrency is a band over 10 to 80 ms per output token, "
        "for a preview only; import an export that has durations"
    )


def _little(traffic: TrafficSummary) -> str | None:
    if traffic.recorded is None or traffic.littles_mean is None:
        return None
    mean, expected = traffic.recorded.mean, traffic.littles_mean
    if abs(mean - expected) <= 0.25 * max(mean, expected) or max(mean, expected) < 1:
        return None
    return (
        f"mean concurrency {mean:,.1f} is far from arrival rate x mean duration {expected:,.1f}: "
        f"the load changes a lot, or stamps and durations are of different clocks or units; look "
        f"at both in the file that was imported"
    )


def _missing(header: TraceHeader) -> str | None:
    if "aborts" not in header.missing:
        return None
    return (
        "the source cannot show aborted requests: the load is understated by what they took; sweep "
        "with a larger --headroom"
    )


def _replicas(columns: Columns) -> str | None:
    servers = len(np.unique(columns.replica[columns.replica >= 0]))
    if servers < 2:
        return None
    return (
        f"the traffic of {servers} servers: one of them gets a part of it; take it with tuner "
        f"trace cut --replica busiest, or route anew with --replicas {servers}"
    )


def _prefixes(traffic: TrafficSummary, header: TraceHeader) -> str | None:
    if traffic.prefix_share is None:
        return (
            "no hash_ids: prompts will be unique, prefix reuse 0 is a lower bound; record them "
            "with vllm serve --middleware tuner.capture.TraceRecorder"
        )
    if header.block_size <= ENGINE_BLOCK_SIZE:
        return None
    return (
        f"the trace knows shared prefixes in blocks of {header.block_size} tokens, the engine "
        f"caches blocks of {ENGINE_BLOCK_SIZE}: prefix reuse is understated; record finer ones "
        "with vllm serve --middleware tuner.capture.TraceRecorder"
    )
