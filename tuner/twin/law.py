"""The step-time law, fitted from iteration logs. Pure.

  t = f(n) + c·P + c2·P² + p0·p + d·X + e·Y

with n decode sequences, P prefill tokens, p prefill sequences, X context tokens and Y the context
that prefills read; f piecewise linear between the batch sizes that were seen and never falling; no
coefficient negative.

The machine's speed varies while it is measured. The log of a duration is taken to be the law's,
plus the slowdown of its block of time, plus noise: weighted non-negative least squares with a
partially pooled effect for each block (a mixed model), iterated with Huber's weights. So what is
compared within a block counts most, which a ramp does for every batch size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import Floats, Ints, StepLaw
from tuner.engines.seam import IterationLog
from tuner.traffic.constants import (
    BELIEVED_BLOCKS,
    BELIEVED_SPEED_SHARE,
    DENSE_KNOTS,
    FEWEST_ITERATIONS,
    HUBER,
    HUBER_ROUNDS,
    LAW_BLOCK_S,
    MIN_ITERATIONS,
    MIN_SPEED_SD,
    NEAR_ENOUGH,
    PRINTED_DRAWS,
)

MOST_BLOCKS = 1e6
"""Of one log."""

RIDGE = 1e-9
"""Of columns scaled to length 1: two that are alike share what they explain."""

PENALTY = 1e-12
"""Price of a coefficient, as a share of the largest target. SciPy up to 1.17 returns nonsense where
a column would explain nothing but a rounding error (scipy/scipy#26180)."""


@dataclass(frozen=True, slots=True)
class FittedLaw:
    law: StepLaw
    laws: tuple[StepLaw, ...]
    """PRINTED_DRAWS laws that these measurements might as well have given: a parametric bootstrap,
    refits to the same iterations under new noise of iterations and of the machine's speed."""

    knots: Ints
    """Batch sizes between which f is linear."""

    slowdown: Floats
    """Of each block of time, as a factor on the law."""

    speed_sd: float
    """Standard deviation of the machine's log speed between blocks of time. Few blocks may be alike
    by chance, so it is pooled with BELIEVED_BLOCKS of a machine whose iterations vary as much."""

    @property
    def extrapolated_from(self) -> int:
        """The largest batch size that was seen: beyond it f continues as in its upper half."""
        return int(self.knots[-1])


def fit_law(logs: Sequence[IterationLog], *, max_num_seqs: int) -> FittedLaw:
    """Fit the law to everything measured, in order of time, and tabulate it up to ``max_num_seqs``,
    and to beyond the largest batch size that was seen. At least one log has an iteration."""
    knots = knots_of(np.concatenate([log["decode_seqs"] for log in logs]))
    inside = [(log["decode_seqs"] >= knots[0]) & (log["decode_seqs"] <= knots[-1]) for log in logs]
    logs = [log[rows] for log, rows in zip(logs, inside, strict=True) if rows.any()]
    work = np.concatenate(logs)
    numbers = list[Floats]()
    for place, log in enumerate(logs):
        number = (log["start_s"] - log["start_s"][0]) // LAW_BLOCK_S
        # what is left of a log belongs to its last block
        numbers.append(MOST_BLOCKS * place + np.minimum(number, max(0.0, number[-1] - 1)))
    _, first, block = np.unique(np.concatenate(numbers), return_index=True, return_inverse=True)
    design, scale = _design(work, knots)
    took_s = np.maximum(work["duration_s"].astype(float), 1e-9)

    def sums(values: Floats) -> Floats:
        """Return the sums over each block, of rows or of numbers."""
        return np.asarray(np.add.reduceat(values, first, axis=0))

    relative = design / took_s[:, None]
    coefficients = nnls(relative.T @ relative, relative.sum(axis=0))
    weight, slowdown, noise_sd = np.ones(len(work)), np.zeros(len(first)), 0.0
    information, target = np.eye(len(scale)), coefficients
    for _ in range(HUBER_ROUNDS):
        lawful_s = np.maximum(design @ coefficients, 1e-9)
        residual = np.log(took_s / lawful_s)
        slowdown = sums(weight * residual) / sums(weight)
        around = np.abs(residual - slowdown[block])
        noise_sd = max(1e-4, 1.4826 * float(np.median(around)))
        weight = np.minimum(1.0, HUBER * noise_sd / np.maximum(around, 1e-12)) / noise_sd**2
        off = np.abs(slowdown - np.median(slowdown))
        # a block far out (a noisy neighbor) shows nothing of the machine's usual speed
        prior = np.maximum(off, max(MIN_SPEED_SD, 1.4826 * float(np.median(off)))) ** 2
        # the normal equations of one Gauss-Newton step, the blocks' effects integrated out
        derivative = design / lawful_s[:, None]
        goal = residual + derivative @ coefficients
        weighted = weight[:, None] * derivative
        by_block, shrink = sums(weighted), 1 / (sums(weight) + 1 / prior)
        information = weighted.T @ derivative - by_block.T @ (shrink[:, None] * by_block)
        target = weighted.T @ goal - by_block.T @ (shrink * sums(weight * goal))
        coefficients = nnls(information, target)
    floor = 1e-9 * np.diag(np.diag(information) + 1e-12)
    spread = np.linalg.cholesky((information + information.T) / 2 + floor)
    noise = np.random.default_rng(0).standard_normal((PRINTED_DRAWS, len(target)))
    most = max(max_num_seqs, int(knots[-1]) + 1)
    law, *laws = (
        _tabulated(each / scale, knots, most)
        for each in (coefficients, *(nnls(information, each) for each in target + noise @ spread.T))
    )
    believed = BELIEVED_BLOCKS * (BELIEVED_SPEED_SHARE * noise_sd) ** 2
    variance = (believed + len(first) * slowdown.var()) / (BELIEVED_BLOCKS + len(first))
    return FittedLaw(law, tuple(laws), knots, np.exp(slowdown), math.sqrt(variance))


def _design(work: IterationLog, knots: Ints) -> tuple[Floats, Floats]:
    """Return the law's columns, each at most 1, and what they are divided by: f's value at the
    first knot, its rise to each further one, and the other terms."""
    decode_seqs, prefill = work["decode_seqs"], work["prefill_tokens"].astype(float)
    rises = [np.clip((decode_seqs - low) / (high - low), 0, 1) for low, high in pairwise(knots)]
    rest = [prefill, prefill**2, work["prefill_seqs"], work["context_tokens"]]
    if work["prefill_context"].any():  # no prompt in pieces, none found in part: nothing to tell
        rest.append(work["prefill_context"])
    design = np.column_stack((np.ones(len(work)), *rises, *rest))
    scale = np.maximum(design.max(axis=0), 1e-12)
    return design / scale, scale


def knots_of(decode_seqs: NDArray[np.integer]) -> Ints:
    """Return the batch sizes that were seen often enough to be told apart, at least one. Sizes that
    were seen seldom are pooled until they have MIN_ITERATIONS, and the largest of them is the knot.

    >>> knots_of(np.repeat([1, 2, 3, 4, 5, 6], [4, 8, 8, 8, 8, 8])).tolist()
    [2, 5]
    """
    sizes, counts = np.unique(decode_seqs, return_counts=True)
    knots, seen = list[int](), 0
    for size, number in zip(sizes.tolist(), counts.tolist(), strict=True):
        seen += number
        is_apart = not knots or size <= DENSE_KNOTS or size >= knots[-1] * NEAR_ENOUGH
        if (number >= FEWEST_ITERATIONS and not knots) or (seen >= MIN_ITERATIONS and is_apart):
            knots.append(size)
            seen = 0
    return np.array(knots or [sizes[np.argmax(counts)]], np.int64)


def _tabulated(coefficients: Floats, knots: Ints, most: int) -> StepLaw:
    """Tabulate f up to ``most``; below the knots as at the first, above with the slope of their
    upper half."""
    at_knots, sizes = np.cumsum(coefficients[: len(knots)]), np.arange(most + 1)
    last, half = knots[-1], max(knots[0], knots[-1] / 2)
    slope_s = (at_knots[-1] - np.interp(half, knots, at_knots)) / max(1, last - half)
    decode_s = np.interp(sizes, knots, at_knots) + slope_s * np.maximum(0, sizes - last)
    return StepLaw(decode_s, *coefficients[len(knots) :].tolist())


def prompt_s(law: StepLaw, tokens: float, *, decode_seqs: int = 0) -> float:
    """Return the time of an iteration with one prompt of so many tokens."""
    of_tokens = law.prefill_token_s * tokens + law.prefill_token_squared_s * tokens**2
    return float(law.decode_s[decode_seqs]) + of_tokens + law.prefill_seq_s


def nnls(gram: Floats, target: Floats) -> Floats:
    """Return the x >= 0 that minimizes ||A x - b||, for gram = A'A (n, n) and target = A'b (n,).

    A column of zeros gets the coefficient 0.
    """
    from scipy import optimize  # noqa: PLC0415 - 0.7 s, and only what fits a law needs it

    length = np.sqrt(np.diag(gram))
    scale = np.where(length > 0, length, 1.0)
    root = np.linalg.cholesky(gram / np.outer(scale, scale) + RIDGE * np.eye(len(scale)))
    scaled = target / scale
    goal = np.linalg.solve(root, scaled - PENALTY * np.abs(scaled).max())
    return np.asarray(optimize.nnls(root.T, goal)[0] / scale)
