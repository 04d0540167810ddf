"""The windows' numbers and their noise, pooled over repeats. Pure.

Nothing here resamples requests. Repeats of one cap replay the same requests, so what differs
between two blocks is the machine; resampled requests would call two equal runs different in 80 to
95 % of cases (docs/decisions).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tuner.replay.measure import Measurement
from tuner.twin.choice import NUMBERS, Samples
from tuner.twin.objective import Values

PRIOR_SD = {"attainment": 0.01, "goodput_rps": 0.02, "tpot_p95_ms": 0.08, "e2el_p99_ms": 0.08}
PRIOR_WEIGHT = 2.0
"""Standard deviations of one block before repeats were seen (attainment absolutely, the others
relatively), and the degrees of freedom that this belief is worth. Repeats at one cap of a real
engine on a shared machine vary by 8 to 9 % (docs/deciding.md)."""

WINDOW_DRAWS = 2000

Purpose = Literal["ramp", "short", "drift_ramp", "ladder", "repeat", "drift_replay", "tie_break"]
"""Purpose of a trial: to time every batch size; for the iterations of a cap that cannot be the
answer; to see whether the machine is still the same; the rungs of the ladder, and what repeats
them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement to make: at which cap, and why."""

    max_num_seqs: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Block:
    """One trial and what it showed. The decision sees blocks in the order they were measured."""

    trial: Trial
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Point:
    """The estimate for one cap: means over its whole blocks, or its cut ones if all were cut."""

    cap: int
    blocks: int
    cut: bool
    attainment: float
    log_tail: float
    """Mean log of p99 E2EL in seconds; infinite when every block was cut."""

    goodput_rps: float
    log_tpot: float | None
    """Mean log of p95 TPOT in seconds; None when no reply had two tokens."""

    last: Measurement


_STATISTICS: Mapping[str, Callable[[Measurement], float | None]] = {
    "attainment": lambda one: one.attainment,
    "goodput_rps": lambda one: math.log(one.goodput_rps) if one.goodput_rps > 0 else None,
    "tpot_p95_ms": lambda one: math.log(one.tpot_s.p95 * 1e3) if one.tpot_s else None,
    "e2el_p99_ms": lambda one: math.log(one.e2el_s.p99 * 1e3) if one.e2el_s else None,
}
"""Statistics that have intervals; all but attainment on a log scale, because they vary in
proportion."""


def never_binds(one: Measurement) -> bool:
    """Whether neither the cap nor the memory ever kept a request waiting."""
    return one.running_peak < one.max_num_seqs and one.kv_bound_share == 0


def whole(blocks: Sequence[Block]) -> dict[int, list[Measurement]]:
    """Return cap → its measurements that were not cut."""
    by_cap: dict[int, list[Measurement]] = {}
    for block in blocks:
        if block.measurement.cut is None and block.measurement.e2el_s is not None:
            by_cap.setdefault(block.trial.max_num_seqs, []).append(block.measurement)
    return by_cap


def points(blocks: Sequence[Block]) -> list[Point]:
    """Return one point a cap, ascending."""
    alive, found = whole(blocks), []
    for cap in sorted({block.trial.max_num_seqs for block in blocks}):
        kept = alive.get(cap, [])
        used = kept or [one.measurement for one in blocks if one.trial.max_num_seqs == cap]
        tails = [math.log(one.e2el_s.p99) for one in kept if one.e2el_s is not None]
        tpots = [math.log(one.tpot_s.p95) for one in kept if one.tpot_s is not None]
        found.append(
            Point(
                cap=cap,
                blocks=len(kept),
                cut=not kept,
                attainment=float(np.mean([one.attainment for one in used])),
                log_tail=float(np.mean(tails)) if tails else math.inf,
                goodput_rps=float(np.mean([one.goodput_rps for one in used])),
                log_tpot=float(np.mean(tpots)) if tpots else None,
                last=used[-1],
            )
        )
    return found


def noise(blocks: Sequence[Block], statistic: str) -> tuple[float, float]:
    """Return (standard deviation of one block, degrees of freedom) of a statistic.

    Pooled over the repeats of every cap with the prior. A drift that was seen is noise too,
    because caps were measured at different times.
    """
    value = _STATISTICS[statistic]
    freedom, squares = PRIOR_WEIGHT, PRIOR_WEIGHT * PRIOR_SD[statistic] ** 2
    for cap in {block.trial.max_num_seqs for block in blocks}:
        values = _values(blocks, cap, value)
        if statistic == "attainment":  # repeats that were cut by chance, at different heights
            mine = [one.measurement for one in blocks if one.trial.max_num_seqs == cap]
            values += [one.attainment_bound for one in mine if one.cut and not one.ruled_out]
        if len(values) > 1:
            squares += float(np.var(values)) * len(values)
            freedom += len(values) - 1
    drifted = drift(blocks) / 2 if statistic in {"tpot_p95_ms", "e2el_p99_ms"} else 0.0
    return math.hypot(math.sqrt(squares / freedom), drifted), freedom


def _values(
    blocks: Sequence[Block], cap: int, value: Callable[[Measurement], float | None]
) -> list[float]:
    return [v for one in whole(blocks).get(cap, []) if (v := value(one)) is not None]


def drift(blocks: Sequence[Block]) -> float:
    """Return how much slower the first cap was at the end than at first, at equal batch size.

    0.1 is 10 % slower. Zero when it was not replayed again or nothing can be compared.
    """
    again = [b.measurement for b in blocks if b.trial.purpose == "drift_replay"]
    before = {one.decode_seqs: one for one in blocks[0].measurement.batch_times} if again else {}
    ratios = [
        (after.median_s / before[after.decode_seqs].median_s, after.iterations)
        for after in (again[-1].batch_times if again else ())
        if after.decode_seqs in before and before[after.decode_seqs].median_s > 0
    ]
    if not ratios:
        return 0.0
    values, weights = zip(*ratios, strict=True)
    return float(np.average(values, weights=weights)) - 1


def samples_of(blocks: Sequence[Block]) -> tuple[Values, Samples]:
    """Return the recorded load's values of every cap, and draws of them: each cap moved by its
    noise (Student's t).

    Caps that never bound are one configuration for this traffic, so they move together. A cap that
    was cut is given the most that it could attain, with the shortest tail.
    """
    curve = points(blocks)
    shortest = min(point.log_tail for point in curve)
    values = {
        point.cap: (point.last.attainment_bound, shortest)
        if point.cut
        else (point.attainment, point.log_tail)
        for point in curve
    }
    sds = [noise(blocks, name)[0] for name in ("attainment", "e2el_p99_ms")]
    freedom = noise(blocks, "attainment")[1]
    shifts = np.random.default_rng(0).standard_t(freedom, (WINDOW_DRAWS, len(curve), 2))
    free = [i for i, point in enumerate(curve) if not point.cut and never_binds(point.last)]
    shifts[:, free] = shifts[:, free[:1]]
    counts = np.array([max(1, point.blocks) for point in curve])
    drawn = np.full((WINDOW_DRAWS, 1, len(curve), len(NUMBERS)), np.nan)
    middle = np.array([values[point.cap] for point in curve])
    drawn[:, 0, :, :2] = middle + np.array(sds) * shifts / np.sqrt(counts)[:, None]
    return values, Samples(tuple(values), drawn)


def intervals(blocks: Sequence[Block], cap: int) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each statistic at a cap over repeats of this very traffic.

    They are of the machine's noise, not of other days' traffic. Empty for a cap that was cut.
    """
    found = {}
    for name, value in _STATISTICS.items():
        values = _values(blocks, cap, value)
        if values:
            sd, freedom = noise(blocks, name)
            reach = t_quantile(freedom) * sd / math.sqrt(len(values))
            low, high = float(np.mean(values)) - reach, float(np.mean(values)) + reach
            is_share = name == "attainment"
            found[name] = (
                (max(0.0, low), min(1.0, high)) if is_share else (math.exp(low), math.exp(high))
            )
    return found


def relative_changes(
    blocks: Sequence[Block], below: int, cap: int
) -> dict[str, tuple[float, float, float]]:
    """Return what ``cap`` gives more than ``below``, as a share with its 95 % interval (value, low,
    high), of every statistic that varies in proportion. Empty where one of the two was cut."""
    found = {}
    for name, value in _STATISTICS.items():
        one, other = (_values(blocks, each, value) for each in (below, cap))
        if name != "attainment" and one and other:
            sd, freedom = noise(blocks, name)
            reach = t_quantile(freedom) * sd * math.sqrt(1 / len(one) + 1 / len(other))
            middle = float(np.mean(other) - np.mean(one))
            low, high = math.expm1(middle - reach), math.expm1(middle + reach)
            found[name] = (math.expm1(middle), low, high)
    return found


def t_quantile(freedom: float) -> float:
    """Return the end of a two-sided 95 % interval of Student's t.

    >>> round(t_quantile(3), 3)
    3.182
    """
    from scipy import special  # noqa: PLC0415 - 0.6 s, and only what states an interval needs it

    return float(special.stdtrit(freedom, 0.975))


def t_share(freedom: float, value: float) -> float:
    """Return how probable it is that Student's t is smaller."""
    from scipy import special  # noqa: PLC0415 - see t_quantile

    return float(special.stdtr(freedom, value))
