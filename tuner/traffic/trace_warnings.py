"""Warn of what a trace cannot carry: one sentence each, with what to do. Pure."""

from collections.abc import Iterator

import numpy as np

from tuner.trace.columns import Columns
from tuner.trace.record import TraceHeader
from tuner.traffic.summary import TrafficSummary

COARSE_TICK_MS = 500
"""A replay of bursts within such a tick would measure queueing that is the clock's, and not the
traffic's (docs/traces.md)."""

MOST_RATE_RPS, LEAST_RATE_RPS = 1000.0, 0.002
"""Rates beyond these are more often a mistaken unit than traffic."""

EITHER_UNIT = frozenset({"unknown", "mooncake", "aiperf", "guidellm", "timed_trace"})
"""Formats whose stamps may be in s or in ms; those of others are dates, or have their unit."""

EPOCH_S = (1.0e9, 4.0e9)
"""Seconds since 1970 of the years 2001 to 2096: stamps of now, and hardly of anything else."""

FEW_REQUESTS, SHORT_S = 100, 30.0
"""Of fewer requests one alone is more than the attainment that the choice calls equal
(``EQUAL_ATTAINMENT``). Higher limits would warn of traces that do carry a tuning."""

UNIFORM_SPREAD = 0.02
"""Standard deviation of lengths as a share of their mean: so little is made up, and no traffic."""

LITTLE_APART = 0.25
"""Share by which recorded concurrency and Little's law may differ."""

RECORDER = "record them with vllm serve --middleware tuner.capture.TraceRecorder"
BLOCK_SIZE = 16
"""vLLM's default block_size."""


def trace_warnings(  # noqa: C901 - one after the other
    columns: Columns, traffic: TrafficSummary, header: TraceHeader
) -> Iterator[str]:
    yield from _unit(columns, traffic, header)
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
    lengths = columns.of_served(columns.output_length)
    if len(lengths) >= FEW_REQUESTS and lengths.std() <= UNIFORM_SPREAD * lengths.mean():
        yield (
            f"every output is about {lengths.mean():,.0f} tokens long: uniform lengths finish "
            "together, and what they promise is not what real traffic gets; capture real ones"
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
    if traffic.recorded is not None and traffic.littles_mean is not None:
        mean, expected = traffic.recorded.mean, traffic.littles_mean
        if abs(mean - expected) > LITTLE_APART * max(mean, expected) and max(mean, expected) >= 1:
            yield (
                f"mean concurrency {mean:,.1f} is far from arrival rate x mean duration "
                f"{expected:,.1f}: the load changes a lot, or stamps and durations are of "
                "different clocks or units; look at both in the file that was imported"
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


def _unit(columns: Columns, traffic: TrafficSummary, header: TraceHeader) -> Iterator[str]:
    """Yield what makes the unit of the stamps look mistaken."""
    rate, is_either = traffic.arrival_rate_rps, header.source in EITHER_UNIT
    if is_either and EPOCH_S[0] <= float(columns.arrival_s[0]) * 1000 <= EPOCH_S[1]:
        yield (
            "the first stamp looks like seconds since 1970 that were read as ms: "
            "import with --time-unit s"
        )
    elif rate is not None and rate > MOST_RATE_RPS:
        cure = f"if the stamps are in s, import with --time-unit s and it is {rate / 1000:,.1f}"
        cure = f"{cure} req/s" if is_either else "look at the stamps of its rows"
        yield f"{rate:,.0f} req/s is more than most clusters see: {cure}"
    elif is_either and rate is not None and rate < LEAST_RATE_RPS and traffic.requests > 10:
        yield (
            f"one request every {1 / rate:,.0f}s is less than most servers see: if the stamps are "
            f"in ms, import with --time-unit ms"
        )
