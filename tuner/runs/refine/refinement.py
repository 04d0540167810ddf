"""What a refinement is asked to do, and what it found."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.profile.schema import ServingProfile
from tuner.runs.outcome import SweepOutcome
from tuner.runs.refine.gains.proof import Paired
from tuner.runs.refine.knobs import Configuration, Space
from tuner.runs.refine.objective import Objective, Told
from tuner.runs.refine.study.importance import Importance
from tuner.runs.refine.tried import Tried
from tuner.runs.settings import SweepSettings
from tuner.traffic.window import Window
from tuner.traffic.workload import Workload


@dataclass(frozen=True, slots=True)
class Plan:
    """What is refined, and how."""

    profile: ServingProfile
    space: Space
    objectives: Sequence[Objective]
    settings: SweepSettings
    start_s: float
    """How long an engine start takes, by the profile."""

    curve: Sequence[Told]
    """What the profile has measured already."""

    max_model_len: int
    is_same_trace: bool
    """Whether it is the trace that the profile was tuned for."""

    warnings: Sequence[str] = ()
    """What is said before it begins."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """What the run found."""

    chosen: Configuration
    """The knee where nothing seemed better."""

    paired: Paired | None
    pairs: tuple[tuple[Window, ...], ...]
    """What each pair replayed; none where nothing was compared."""

    outcome: SweepOutcome | None
    """For a profile of the refined engine; None where the knee is kept."""

    reason: str
    tried: tuple[Tried, ...]
    front: tuple[Tried, ...]
    """Of two aims: what no other trial beats in both."""

    importances: tuple[tuple[str, tuple[Importance, ...]], ...]
    """Per aim."""

    workload: Workload
    complete: bool
    starts_s: tuple[float, ...]
    replay_s: float
    pruned: int
    """Trials of this run that the twin or the certified cut ended."""

    of_others: int
    """Trials that others who share the study have measured."""

    failed: tuple[str, ...]
    warnings: tuple[str, ...]
