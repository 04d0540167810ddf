"""The requests of a trace that are replayed, warnings about them, and what is required of them."""

from collections.abc import Sequence
from pathlib import Path

from tuner.errors import TraceError
from tuner.profile.profile import ServingProfile
from tuner.trace.trace import Trace, TraceRequest
from tuner.traffic.description import describe, trace_warnings
from tuner.traffic.load import Router, busiest_part, route
from tuner.traffic.requirements import Requirement, parse_requirements
from tuner.traffic.window import is_served


def served_in(trace: Trace, path: Path) -> list[TraceRequest]:
    """Return the requests that were served. Raises TraceError when there is none."""
    served = [each for each in trace.requests if is_served(each)]
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
    return busiest_part(parts)


def warnings_about(trace: Trace) -> list[str]:
    """Return the warnings about a trace, a sentence each."""
    traffic = describe(trace.columns)
    return [*trace.warnings, *trace_warnings(trace.columns, traffic, trace.header)]


def required_of(
    profile: ServingProfile, require: Sequence[str], *, headroom: float
) -> tuple[Requirement, ...]:
    """Return what ``--require`` says, or else what was required of the profile. Raises
    UsageError."""
    before = [each.text for each in profile.decision.requirements]
    return parse_requirements(require or before, headroom=headroom)
