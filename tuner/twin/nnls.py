"""Least squares with coefficients of 0 or more, from the normal equations. Pure."""

import numpy as np

from tuner.engines.scheduler.state import Floats

RIDGE = 1e-9
"""Of columns scaled to length 1: two that are alike share what they explain."""


def nnls(gram: Floats, target: Floats) -> Floats:
    """Return the x >= 0 that minimises ||A x - b||, for gram = A'A (n, n) and target = A'b (n,).

    A column of zeros gets the coefficient 0.
    """
    from scipy import optimize  # noqa: PLC0415 - 0.7 s, and only what fits a law needs it

    length = np.sqrt(np.diag(gram))
    scale = np.where(length > 0, length, 1.0)
    root = np.linalg.cholesky(gram / np.outer(scale, scale) + RIDGE * np.eye(len(scale)))
    found, _ = optimize.nnls(root.T, np.linalg.solve(root, target / scale))
    return np.asarray(found / scale)
