"""When a gain over the knee is proven. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.runs.refine.gains.ratio import NOT_LOST, Ratio
from tuner.runs.refine.objective import GOODPUT, TAIL, Objective
from tuner.twin.uncertainty import GOOD_TAIL

MEMORY = "memory"
"""Of a proof: serves alike with less of it."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What is gained for certain, and how probable that is."""

    of: str
    """Name of the aim, or MEMORY."""

    sureness: float


@dataclass(frozen=True, slots=True)
class Paired:
    """What the pairs say: refined / knee of every aim."""

    ratios: dict[str, Ratio]
    proven: Proof | None
    """None keeps the knee."""

    pairs: int


def proving(objective: Objective) -> tuple[Objective, ...]:
    """Return the aims of which any that is better proves a gain."""
    return (GOODPUT, TAIL) if objective is GOODPUT else (objective,)


def proof(
    objective: Objective, ratios: Mapping[str, Ratio], *, frees_memory: bool = False
) -> Proof | None:
    """Return what proves a gain, None where nothing does.

    The aim itself must be better for certain, and goodput not lost. Where the aim is goodput, a
    shorter tail at no less goodput is a gain too; and so is less memory, where neither is lost.
    """
    goodput, tail = ratios.get(GOODPUT.name), ratios.get(TAIL.name)
    if goodput is None or goodput.low < NOT_LOST:
        return None
    for aim in proving(objective):
        found = ratios.get(aim.name)
        if found is not None and found.is_better:
            return Proof(found.name, found.sureness)
    if frees_memory and tail is not None and tail.high <= GOOD_TAIL:
        return Proof(MEMORY, min(goodput.kept, tail.kept))
    return None
