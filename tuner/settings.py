"""What the user asked of a sweep. Types only."""

from dataclasses import dataclass

from tuner.slo import Slo


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What the user asked of a run."""

    ceiling: int
    slo: Slo | None
    """None: derived on the engine itself."""

    window: str
    step_s: float
    """Longest window a step replays, in seconds, unless ``window`` names another."""

    budget_s: float
    """Engine time to spend, starts and replays together."""

    headroom: float
    fresh: bool
    seed: int
    trace_block_size: int
    """Tokens that one hash id of the trace stands for."""
