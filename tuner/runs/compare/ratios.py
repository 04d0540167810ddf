"""Ratios between approaches, paired by block, with their uncertainty. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tuner.twin.uncertainty import t_quantile

FEW = 20
"""With fewer finished requests than these a ratio has no interval."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of one approach in one block, and the requests that it is of."""

    value: float
    finished: frozenset[int]
    """Rows of the requests; the same in every approach's replay of a block."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number over the baseline's, with its 95 % interval; None where that cannot be told."""

    value: float
    low: float | None
    high: float | None


Blocks = Mapping[int, Sample]
"""Block → what was seen in it."""


def ratios(
    samples: Mapping[str, Blocks], baseline: str, *, counted: bool = False
) -> dict[str, Ratio]:
    """Return approach → its number over the baseline's, the geometric mean of the blocks' ratios.

    Blocks and approaches are taken out of the logarithms (two-way layout); the noise s of what is
    left is pooled over all of them, and the interval of a ratio over B blocks reaches
    t·sqrt(2 s²/B), by Student's t. A count cannot be surer than counting allows: where the numbers
    are ``counted``, the variance is no less than that of a ratio of paired proportions,
    (requests that only one of the two finished) / (finished by one · by the other).

    Empty where the baseline has nothing.
    """
    base = samples.get(baseline, {})
    s2, freedom = _noise(samples)
    found = {}
    for name, blocks in samples.items():
        both = sorted(blocks.keys() & base.keys())
        total = sum(base[block].value for block in both)
        if total <= 0:
            continue
        pairs = [(blocks[block].value, base[block].value) for block in both]
        if not all(one > 0 and other > 0 for one, other in pairs):
            found[name] = Ratio(sum(one for one, _ in pairs) / total, None, None)
            continue
        middle = sum(math.log(one / other) for one, other in pairs) / len(pairs)
        low = high = None
        mine = {(block, row) for block in both for row in blocks[block].finished}
        its = {(block, row) for block in both for row in base[block].finished}
        if name != baseline and freedom >= 2 and min(len(mine), len(its)) >= FEW:
            variance = 2 * s2 / len(both)
            if counted:
                variance = max(variance, max(1, len(mine ^ its)) / (len(mine) * len(its)))
            reach = t_quantile(freedom) * math.sqrt(variance)
            low, high = math.exp(middle - reach), math.exp(middle + reach)
        found[name] = Ratio(math.exp(middle), low, high)
    return found


def _noise(samples: Mapping[str, Blocks]) -> tuple[float, int]:
    """Return the variance of the logarithms around approach and block, and its degrees of freedom.

    Cells may be missing.
    """
    cells = [
        (name, block, math.log(sample.value))
        for name, blocks in samples.items()
        for block, sample in blocks.items()
        if sample.value > 0
    ]
    if not cells:
        return 0.0, 0
    names, numbers = ({cell[i]: None for cell in cells} for i in (0, 1))
    design = np.array(
        [
            [name == one for one in names] + [block == one for one in numbers]
            for name, block, _ in cells
        ],
        dtype=float,
    )
    logs = np.array([cell[2] for cell in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
    freedom = len(logs) - int(rank)
    squares = float(((logs - design @ fitted) ** 2).sum())
    return (squares / freedom if freedom else 0.0), freedom
