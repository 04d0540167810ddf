"""The settings of a sweep, as the user asked for it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tuner.traffic.requirements import Requirement, parse_requirements
from tuner.traffic.slo import Slo
from tuner.traffic.window import parse_duration_s
from tuner.traffic.workload import parse_step_s

Confirm = Literal["inproc", "server"]


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The settings of a sweep."""

    ceiling: int
    slo: Slo | None
    """None: derived on the engine itself."""

    window: str
    """The part of the trace that is tuned for: ``all``, ``busiest`` or ``START+LEN``."""

    step_s: float
    """How long a step replays at most, in seconds."""

    budget_s: float
    """Engine time to spend, starts and replays together."""

    headroom: float
    closed_sessions: bool
    """A turn waits for the one before it. Then the windows decide: the twin knows open loops
    only."""

    trace_block_size: int
    """Tokens that one hash id of the trace stands for."""

    confirm: Confirm = "inproc"
    """Whether the engine that confirms the choice is one like the ladder's, or stands behind a
    server."""

    requirements: tuple[Requirement, ...] = ()
    """What breaks one is not chosen."""

    replicas: int = 1
    """Servers that share the trace's traffic, by this router; one of them is tuned."""

    router: str | None = None


def settings_in(plan: Mapping[str, Any], *, slo: Slo | None) -> SweepSettings:
    """Return the settings of a run from its plan: the options as the user wrote them, under this
    SLO.

    Raises UsageError for a value that cannot be, and KeyError, TypeError or ValueError for what is
    no plan.
    """
    headroom = float(plan["headroom"])
    return SweepSettings(
        ceiling=int(plan["ceiling"]),
        slo=slo,
        window=str(plan["window"]),
        step_s=parse_step_s(plan["step"]),
        budget_s=parse_duration_s(plan["budget"], option="--budget"),
        headroom=headroom,
        closed_sessions=bool(plan.get("closed_sessions")),
        trace_block_size=int(plan["trace_block_size"]),
        confirm="server" if plan.get("confirm") == "server" else "inproc",
        requirements=parse_requirements(list(plan.get("require", ())), headroom=headroom),
        replicas=int(plan.get("replicas", 1)) // int(plan.get("ranks", 1)),
        router=plan.get("router"),
    )
