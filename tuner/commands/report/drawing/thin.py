"""Lines over time made of fewer points, with their peaks kept. Pure."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_POINTS = 2000
"""Of one line, on any page."""


def thinned(x: Floats, y: Floats, *, most: int) -> tuple[Floats, Floats]:
    """Return at most ``most`` points of a line: the first and the last, and of each of equal
    stretches of x the lowest and the highest. What is no number is left out.

    A picture is some hundred pixels wide: of a stretch that is narrower than one, its lowest and
    its highest point are all that can be seen.
    """
    assert most >= 4
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) <= most:
        return x, y
    stretches = (most - 2) // 2
    span = float(x[-1] - x[0]) or 1.0
    place = np.minimum(stretches - 1, ((x - x[0]) / span * stretches).astype(np.int64))
    order = np.lexsort((y, place))
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    kept = np.unique(np.concatenate(([0, len(x) - 1], order[first], order[last])))
    return x[kept], y[kept]


def steps(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return a line that keeps each value until the next, as points to be joined."""
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
