"""The step-time law, fitted from iteration logs. Pure.

  t = f(n) + c·P + c2·P² + p0·p + d·X + e·Y

with n decode sequences, P prefill tokens, p prefill sequences, X context tokens and Y the context
that prefills read; f piecewise linear between the batch sizes that were seen and never falling; no
coefficient negative.

The machine's speed varies while it is measured. The log of a duration is taken to be the law's,
plus the slowdown of its block of time, plus noise; slowdown is correlated over a minute, so that
neighbouring blocks count as hardly more than one, and what is compared within a block counts most.
This is generalised least squares with random effects (McCulloch and Searle, Generalized, Linear,
and Mixed Models, chapter 6), iterated with Huber's weights; a block that stands far out (a noisy
neighbour) tells nothing of the machine speed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import Floats, Ints, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.device_use import OTHERS_LIMIT
from tuner.traffic.constants import (
    CORRELATION_S,
    DENSE_KNOTS,
    FAR_OUT,
    FEWEST_ITERATIONS,
    HUBER,
    HUBER_ROUNDS,
    LAW_BLOCK_S,
    LEAST_BUSY_S,
    LOG_STEEPNESS_SD,
    MIN_ITERATIONS,
    MIN_SPEED_SD,
    SPEED_BEYOND,
    SPEED_MOVED,
    START_SHARE,
)

RIDGE = 1e-9
"""Of columns scaled to length 1: two that are alike share what they explain."""

PENALTY = 1e-12
"""Price of a coefficient, as a share of the largest target. SciPy up to 1.17 returns nonsense where
a column would explain nothing but a rounding error (scipy/scipy#26180)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Iterations measured in one go."""

    log: IterationLog
    start_s: float
    """When the log's time 0 was, on one clock for all segments."""

    engine: int
    """Which engine start it was."""


class Laws(Protocol):
    """A step-time law, and others that the measurements make as likely."""

    @property
    def law(self) -> StepLaw: ...

    @property
    def extrapolated_from(self) -> int:
        """The largest batch size that was seen."""

    def draws(self, count: int) -> Sequence[StepLaw]: ...


@dataclass(frozen=True, slots=True)
class FittedLaw:
    law: StepLaw
    knots: Ints
    """Batch sizes between which f is linear."""

    noise_sd: float
    """Of an iteration's log duration around its block's."""

    speed_sd: float
    """Of a block's log slowdown around machine speed."""

    slowdown: Floats
    """Per block, as a factor on the law."""

    speed_range: tuple[float, float]
    """Between which factors on the law its speed may lie: 1 and 1, unless the machine was busy."""

    _scale: Floats
    _information: Floats
    _target: Floats
    _drawn: list[StepLaw] = field(default_factory=list, init=False, repr=False, compare=False)
    """What was drawn before: one sweep asks for the same some ten times."""

    @property
    def extrapolated_from(self) -> int:
        """The largest batch size that was seen: beyond it f continues as in its upper half."""
        return int(self.knots[-1])

    def draws(self, count: int) -> list[StepLaw]:
        """Return laws that these measurements might as well have given: a parametric bootstrap.

        Each is a refit to the same iterations under new noise of iterations and of the speed, at a
        speed of ``speed_range``. Of more draws the first are the same.
        """
        if len(self._drawn) < count:
            self._drawn[:] = self._draws(count)
        return self._drawn[:count]

    def _draws(self, count: int) -> list[StepLaw]:
        rng = np.random.default_rng(0)
        size = len(self._target)
        floor = 1e-9 * np.diag(np.diag(self._information) + 1e-12)
        spread = np.linalg.cholesky(self._information + floor)
        targets = self._target + rng.standard_normal((count, size)) @ spread.T
        steeper = np.exp(np.random.default_rng((0, 1)).normal(0.0, LOG_STEEPNESS_SD, count))
        most = len(self.law.decode_s) - 1
        result = nnls_of_each(self._information, targets)
        low, high = (math.log(factor) for factor in self.speed_range)
        speeds = np.exp(np.random.default_rng((0, 2)).uniform(low, high, count))
        return [
            law_of(each / self._scale, self.knots, most, steeper=factor).slowed(speed)
            for each, factor, speed in zip(result, steeper.tolist(), speeds.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Work:
    """The iterations of all segments, in order of their blocks."""

    duration_s: Floats
    design: Floats  # one column per coefficient, each at most 1
    scale: Floats
    knots: Ints
    block: Ints  # per iteration
    first: Ints  # per block: its first iteration
    block_s: Floats  # per block: its middle
    engine: Ints  # per block

    def sums(self, values: Floats) -> Floats:
        """Return the sums over each block, of rows or of numbers."""
        total: Floats = np.add.reduceat(values, self.first, axis=0)
        return total


def fit_law(segments: Sequence[Segment], *, max_num_seqs: int, taken: float = 0.0) -> FittedLaw:
    """Fit the law to everything measured, and tabulate it up to ``max_num_seqs``, and to beyond
    the largest batch size that was seen. ``taken`` is the share of the cores that others took.

    At least one segment has an iteration.
    """
    work = _work_of(segments)
    distance_s = np.abs(work.block_s[:, None] - work.block_s[None, :])
    alike = np.exp(-distance_s / CORRELATION_S)
    alike += START_SHARE**2 * (work.engine[:, None] == work.engine[None, :])
    relative = work.design / work.duration_s[:, None]
    coefficients = nnls(relative.T @ relative, relative.sum(axis=0))
    noise = _Noise(work, _residual(work, coefficients), np.ones(len(work.duration_s)))
    information, target = _equations(work, coefficients, noise, alike)
    for _ in range(HUBER_ROUNDS):
        coefficients = nnls(information, target)
        noise = _Noise(work, _residual(work, coefficients), noise.weight)
        information, target = _equations(work, coefficients, noise, alike)
    most = max(max_num_seqs, int(work.knots[-1]) + 1)
    law = law_of(nnls(information, target) / work.scale, work.knots, most)
    return FittedLaw(
        law=law,
        speed_range=_speed_range(segments, law, taken),
        knots=work.knots,
        noise_sd=noise.sd,
        speed_sd=noise.speed_sd,
        slowdown=np.exp(noise.slowdown),
        _scale=work.scale,
        _information=information,
        _target=target,
    )


def _speed_range(segments: Sequence[Segment], law: StepLaw, taken: float) -> tuple[float, float]:
    """Return between which factors on the law the machine's speed lay, replay by replay; 1 and 1
    where that is its usual noise. Without the others it might have been faster by their share."""
    factors = [
        float(segment.log["duration_s"].sum() / law.durations_s(segment.log).sum())
        for segment in segments
        if segment.log["duration_s"].sum() >= LEAST_BUSY_S
    ]
    low = high = 1.0
    if factors and max(factors) > SPEED_MOVED * min(factors):
        low, high = min(factors), max(factors)
    if taken > OTHERS_LIMIT:
        low = min(low, 1 - taken)
    beyond = (high / low) ** SPEED_BEYOND
    return low / beyond, high * beyond


def _residual(work: _Work, coefficients: Floats) -> Floats:
    """Return the logarithm of the durations over the law's."""
    lawful_s = np.maximum(work.design @ coefficients, 1e-9)
    return np.asarray(np.log(work.duration_s / lawful_s))


class _Noise:
    """The machine's noise, from the residuals of a law."""

    def __init__(self, work: _Work, residual: Floats, weight: Floats) -> None:
        self.slowdown = work.sums(weight * residual) / work.sums(weight)
        around = np.abs(residual - self.slowdown[work.block])
        self.sd = max(1e-4, 1.4826 * float(np.median(around)))
        self.weight = np.minimum(1.0, HUBER * self.sd / np.maximum(around, 1e-12)) / self.sd**2
        off = np.abs(self.slowdown - centre(self.slowdown))
        self.speed_sd = max(MIN_SPEED_SD, 1.4826 * float(np.median(off)))
        self.apart = off > FAR_OUT * self.speed_sd


def _equations(
    work: _Work, coefficients: Floats, noise: _Noise, alike: Floats
) -> tuple[Floats, Floats]:
    """Return the normal equations of one Gauss-Newton step, the blocks' slowdown integrated out.

    By Woodbury's identity, with J the derivative of the log law, W the weights, Z the blocks and C
    the covariance of their slowdown: J'WJ - J'WZ (C^-1 + Z'WZ)^-1 Z'WJ.
    """
    covariance = noise.speed_sd**2 * alike + np.diag(noise.apart + 1e-8)
    lawful_s = np.maximum(work.design @ coefficients, 1e-9)
    derivative = work.design / lawful_s[:, None]
    goal = np.log(work.duration_s / lawful_s) + derivative @ coefficients
    weighted = noise.weight[:, None] * derivative
    by_block = work.sums(weighted)
    blocks = np.diag(work.sums(noise.weight))
    inner = np.linalg.inv(np.linalg.inv(covariance) + blocks)
    information = weighted.T @ derivative - by_block.T @ inner @ by_block
    target = weighted.T @ goal - by_block.T @ inner @ work.sums(noise.weight * goal)
    return (information + information.T) / 2, target


def _work_of(segments: Sequence[Segment]) -> _Work:
    logs = [segment.log for segment in segments if len(segment.log)]
    knots = knots_of(np.concatenate([log["decode_seqs"] for log in logs]))
    kept, blocks, middles_s, engines = [], [], list[float](), list[int]()
    for segment in segments:
        log = segment.log
        log = log[(log["decode_seqs"] >= knots[0]) & (log["decode_seqs"] <= knots[-1])]
        if not len(log):
            continue
        offset_s = log["start_s"] - log["start_s"][0]
        last = max(0, int(offset_s[-1] // LAW_BLOCK_S) - 1)
        block = np.minimum((offset_s // LAW_BLOCK_S).astype(np.int64), last)
        present, block = np.unique(block, return_inverse=True)
        begin_s = segment.start_s + float(log["start_s"][0])
        kept.append(log)
        blocks.append(block + len(middles_s))
        middles_s += (begin_s + (present + 0.5) * LAW_BLOCK_S).tolist()
        engines += [segment.engine] * len(present)
    log, block = np.concatenate(kept), np.concatenate(blocks)
    prefill = log["prefill_tokens"].astype(float)
    rest = [prefill, prefill**2, log["prefill_seqs"], log["context_tokens"]]
    if log["prefill_context"].any():  # no prompt in pieces, none found in part: nothing to tell
        rest.append(log["prefill_context"])
    design = np.column_stack((hinges(log["decode_seqs"], knots), *rest))
    scale = np.maximum(design.max(axis=0), 1e-12)
    return _Work(
        duration_s=np.maximum(log["duration_s"].astype(float), 1e-9),
        design=design / scale,
        scale=scale,
        knots=knots,
        block=block,
        first=np.searchsorted(block, np.arange(len(middles_s))),
        block_s=np.array(middles_s),
        engine=np.array(engines),
    )


def centre(values: Floats) -> float:
    """Return Tukey's biweight location: the mean of those that agree, without those far out."""
    middle = float(np.median(values))
    reach = 5 * 1.4826 * max(1e-3, float(np.median(np.abs(values - middle))))
    for _ in range(30):
        distance = np.minimum(1.0, np.abs(values - middle) / reach)
        middle = float(np.average(values, weights=(1 - distance**2) ** 2 + 1e-12))
    return middle


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
        is_apart = not knots or size <= DENSE_KNOTS or size >= knots[-1] * 17 / 16
        if (number >= FEWEST_ITERATIONS and not knots) or (seen >= MIN_ITERATIONS and is_apart):
            knots.append(size)
            seen = 0
    return np.array(knots or sizes[[int(np.argmax(counts))]].tolist(), np.int64)


def hinges(decode_seqs: NDArray[np.integer], knots: Ints) -> Floats:
    """Return the columns of f: its value at the first knot, then its rise to each further one."""
    columns = [np.ones(len(decode_seqs))]
    for low, high in pairwise(knots.tolist()):
        columns.append(np.clip((decode_seqs - low) / (high - low), 0.0, 1.0))
    return np.column_stack(columns)


def law_of(
    coefficients: Floats, knots: Ints, max_num_seqs: int, *, steeper: float = 1.0
) -> StepLaw:
    """Tabulate f up to ``max_num_seqs``; outside the knots with the slope of the half near by."""
    at_knots = np.cumsum(coefficients[: len(knots)])
    first, last = int(knots[0]), int(knots[-1])

    def slope_s(low: float, high: float) -> float:
        rise_s = np.interp(high, knots, at_knots) - np.interp(low, knots, at_knots)
        return float(rise_s) / (high - low) if high > low else 0.0

    sizes = np.arange(max_num_seqs + 1)
    below_s = slope_s(first, (first + last) / 2) * np.maximum(0, first - sizes)
    above_s = steeper * slope_s(max(first, last / 2), last) * np.maximum(0, sizes - last)
    decode_s = np.maximum(0.0, np.interp(sizes, knots, at_knots) - below_s) + above_s
    return StepLaw(decode_s, *(float(value) for value in coefficients[len(knots) :]))


def prompt_s(law: StepLaw, tokens: float, *, decode_seqs: int = 0) -> float:
    """Return the time of an iteration with one prompt of so many tokens."""
    of_tokens = law.prefill_token_s * tokens + law.prefill_token_squared_s * tokens**2
    return float(law.decode_s[decode_seqs]) + of_tokens + law.prefill_seq_s


def nnls(gram: Floats, target: Floats) -> Floats:
    """Return the x >= 0 that minimises ||A x - b||, for gram = A'A (n, n) and target = A'b (n,).

    A column of zeros gets the coefficient 0.
    """
    (result,) = nnls_of_each(gram, target[None])
    return result


def nnls_of_each(gram: Floats, targets: Floats) -> list[Floats]:
    """Return the same for every row of targets, in less time."""
    from scipy import optimize  # noqa: PLC0415 - 0.7 s, and only what fits a law needs it

    length = np.sqrt(np.diag(gram))
    scale = np.where(length > 0, length, 1.0)
    root = np.linalg.cholesky(gram / np.outer(scale, scale) + RIDGE * np.eye(len(scale)))
    scaled = (target / scale for target in targets)
    goals = (np.linalg.solve(root, each - PENALTY * np.abs(each).max()) for each in scaled)
    return [np.asarray(optimize.nnls(root.T, goal)[0] / scale) for goal in goals]
