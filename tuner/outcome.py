"""What a sweep found, before it is written anywhere. Types only."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.engines.seam import EngineFacts
from tuner.measure import Measurement
from tuner.reasons import Verdict
from tuner.slo import Slo
from tuner.uncertainty import Block
from tuner.window import Window


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Everything a run found."""

    verdict: Verdict
    slo: Slo
    window: Window
    curve: tuple[Measurement, ...]
    """One a cap, its blocks pooled."""

    blocks: tuple[Block, ...]
    confirmed: Measurement | None
    """The chosen cap on its own fresh engine at the captured load."""

    with_headroom: Measurement | None
    """The same at ``headroom`` times the load."""

    facts: EngineFacts
    """Of the confirming engine where there was one, else of the ladder's."""

    starts_s: tuple[float, ...]
    replay_s: float
    dropped: Mapping[str, int]
    warnings: tuple[str, ...]
