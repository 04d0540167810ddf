"""The settings of a comparison, as the user asked for it. Pure."""

from dataclasses import dataclass

from tuner.engines.workers.seam import Approach
from tuner.runs.compare.load_levels import LENGTHS, Lengths, Level


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay to make: which traffic, within a block and an approach."""

    load: str
    lengths: Lengths


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """The settings of a comparison."""

    approaches: tuple[Approach, ...]
    levels: tuple[Level, ...]
    untuned: int
    window: str
    step_s: float
    repeats: int
    budget_s: float
    sweep_share: float
    """Of the budget, kept for the sweep that finds the tuned value; 0 where none is needed."""

    seed: int
    trace_block_size: int

    @property
    def cells(self) -> list[Cell]:
        return [Cell(level.name, lengths) for level in self.levels for lengths in LENGTHS]

    def starts_and_replays(self) -> tuple[int, int]:
        """Return how many a run takes that nothing interrupts."""
        starts = sum(2 if one.name == "two-workers" else 1 for one in self.approaches)
        replays = len(self.approaches) * len(self.cells)
        return self.repeats * starts, self.repeats * replays
