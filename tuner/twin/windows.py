"""The windows that were replayed, as draws of what each cap gives. Pure.

Nothing here resamples requests. Repeats of one cap replay the same requests, so what differs
between two blocks is the machine; resampled requests would call two equal runs different in 80 to
95 % of cases (docs/decisions).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

import numpy as np

from tuner.replay.numbers import Measurement, Spread
from tuner.traffic.constants import WINDOW_DRAWS, WINDOW_SDS
from tuner.twin.samples import NUMBERS, Samples

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


def never_binds(run: Measurement) -> bool:
    """Whether neither the cap nor the memory ever kept a request waiting."""
    return run.running_peak < run.max_num_seqs and run.kv_bound_share == 0


def pooled(blocks: Sequence[Block]) -> dict[int, Measurement]:
    """Return cap → the newest of its measurements, with the means over those that were not cut,
    ascending; of a cap that was always cut over all."""
    result = {}
    for cap in sorted({block.trial.max_num_seqs for block in blocks}):
        every = [each.measurement for each in blocks if each.trial.max_num_seqs == cap]
        used = [each for each in every if each.cut is None and each.e2el_s is not None] or every
        changes: dict[str, Any] = {
            name: float(np.mean([getattr(each, name) for each in used]))
            for name in ("attainment", "goodput_rps")
        }
        for name in ("tpot_s", "e2el_s"):
            known = [astuple(spread) for each in used if (spread := getattr(each, name))]
            changes[name] = Spread(*np.mean(known, axis=0).tolist()) if known else None
        result[cap] = replace(used[-1], blocks=len(used), **changes)
    return result


def samples_of(blocks: Sequence[Block], caps: Collection[int] | None = None) -> Samples:
    """Return draws of the attainment, the goodput and p99 E2EL of every cap, or of some, at the
    recorded load: each cap moved by its noise. Caps that never bound are one configuration for this
    traffic, so they move together."""
    curve = {cap: each for cap, each in pooled(blocks).items() if caps is None or cap in caps}
    every = [*curve.values()]
    shifts = np.random.default_rng(0).standard_normal((2, WINDOW_DRAWS, len(every)))
    free = [i for i, each in enumerate(every) if each.cut is None and never_binds(each)]
    shifts[..., free] = shifts[..., free[:1]]
    shares_off, tails_off = shifts / np.sqrt([each.blocks for each in every])
    shares = np.array([each.attainment for each in every])
    tails_s = [math.nan if each.e2el_s is None else each.e2el_s.p99 for each in every]
    rates_rps = [each.arrival_rate_rps for each in every]
    drawn = dict.fromkeys(NUMBERS, np.full(shares_off.shape, math.nan))
    drawn["attainment"] = np.clip(shares + WINDOW_SDS[0] * shares_off, 0.0, 1.0)
    drawn["goodput_rps"] = drawn["attainment"] * rates_rps
    drawn["e2el_p99_s"] = tails_s * np.exp(tail_sd(blocks) * tails_off)
    return Samples(tuple(curve), np.stack([*drawn.values()], axis=-1)[:, None])


def tail_sd(blocks: Sequence[Block]) -> float:
    """Return the standard deviation of the log of a time of one block. A drift that was seen is
    noise too, because caps were measured at different times."""
    return math.hypot(WINDOW_SDS[1], drift(blocks) / 2)


def drift(blocks: Sequence[Block]) -> float:
    """Return how much longer a token took at the first cap when it was replayed again: 0.1 is 10 %.
    Zero where it was not, or no request ended."""
    again = [b.measurement.tpot_s for b in blocks if b.trial.purpose == "drift_replay"]
    first = blocks[0].measurement.tpot_s if again else None
    return again[-1].p50 / first.p50 - 1 if first and again[-1] else 0.0


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
