"""Least squares with coefficients of 0 or more, from the normal equations. Pure."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def nnls(gram: Floats, target: Floats) -> Floats:
    """Return the x >= 0 that minimises ||A x - b|| for gram = A'A and target = A'b.

    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23)
    on the normal equations, as Bro and de Jong (J. Chemometrics 11, 1997) put it. The columns are
    scaled to length 1; one without a row is left out.
    """
    scale = np.sqrt(np.diag(gram))
    usable = scale > 0
    scale = np.where(usable, scale, 1.0)
    gram = gram / np.outer(scale, scale) + 1e-9 * np.eye(len(scale))
    target = target / scale
    x = np.zeros(len(scale))
    passive = np.zeros(len(scale), bool)
    for _ in range(10 * len(scale)):
        gradient = np.where(usable & ~passive, target - gram @ x, -np.inf)
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-9 * np.abs(target).max():
            break
        passive[best] = True
        x = _solve_passive(gram, target, x, passive)
    return np.asarray(x / scale)


def _solve_passive(gram: Floats, target: Floats, x: Floats, passive: NDArray[np.bool_]) -> Floats:
    """Return the best x on the passive set, which loses what would become negative."""
    while True:
        trial = np.zeros(len(x))
        trial[passive] = np.linalg.solve(gram[np.ix_(passive, passive)], target[passive])
        below = passive & (trial <= 0)
        if not below.any():
            return trial
        step = np.min(x[below] / (x[below] - trial[below]))
        x = np.where(passive, x + step * (trial - x), 0.0)
        passive &= x > 1e-15
        x = np.where(passive, x, 0.0)
