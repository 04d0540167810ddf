"""The requests of a trace that are replayed, and warnings about them."""

from collections.abc import Sequence
from pathlib import Path

from tuner.errors import TraceError
from tuner.trace.columns import columns_of
from tuner.trace.trace import Trace, TraceRequest
from tuner.traffic.routing import Router, busiest_part, route
from tuner.traffic.summary import describe
from tuner.traffic.trace_warnings import trace_warnings


def served_in(trace: Trace, path: Path) -> list[TraceRequest]:
    """Return the requests that were served. Raises TraceError when there is none."""
    served = [each for each in trace.requests if each.status in {"ok", "aborted"}]
    if not served:
        raise TraceError(f"{path}: no request that was served", hint="Capture some traffic first.")
    return served


def one_engines(
    requests: Sequence[TraceRequest], *, replicas: int, router: Router | None
) -> list[TraceRequest]:
    """Return the requests of the busiest of so many engines that share them."""
    if replicas == 1:
        return list(requests)
    parts = route(requests, replicas=replicas, router=router or "least", seed=0)
    return parts[busiest_part(parts)]


def warnings_about(trace: Trace) -> tuple[str, ...]:
    """Return the warnings about a trace, a sentence each."""
    columns = columns_of(trace.requests, block_size=trace.header.block_size)
    return tuple(trace_warnings(columns, describe(columns), trace.header))
