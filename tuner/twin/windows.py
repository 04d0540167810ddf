"""The windows that were replayed, as draws of what each cap gives. Pure.

Nothing here resamples requests. Repeats of one cap replay the same requests, so what differs
between two blocks is the machine; resampled requests would call two equal runs different in 80 to
95 % of cases (docs/decisions).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Literal

import numpy as np

from tuner.replay.numbers import Measurement, Spread
from tuner.traffic.constants import WINDOW_DRAWS, WINDOW_SDS
from tuner.traffic.requirements import KV, TIMES
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

    @property
    def is_whole(self) -> bool:
        return self.measurement.cut is None and self.measurement.e2el_s is not None


def never_binds(run: Measurement) -> bool:
    """Whether neither the cap nor the memory ever kept a request waiting."""
    return run.running_peak < run.max_num_seqs and run.kv_bound_share == 0


def pooled(blocks: Sequence[Block]) -> dict[int, Measurement]:
    """Return cap → the newest of its measurements, with the means over its whole ones, ascending;
    of a cap that was always cut over all."""
    result = {}
    for cap in sorted({block.trial.max_num_seqs for block in blocks}):
        every = [block for block in blocks if block.trial.max_num_seqs == cap]
        used = [each.measurement for each in every if each.is_whole]
        used = used or [each.measurement for each in every]
        result[cap] = replace(
            used[-1],
            blocks=len(used),
            attainment=float(np.mean([each.attainment for each in used])),
            goodput_rps=float(np.mean([each.goodput_rps for each in used])),
            tpot_s=_mean([each.tpot_s for each in used]),
            e2el_s=_mean([each.e2el_s for each in used]),
        )
    return result


def _mean(spreads: Sequence[Spread | None]) -> Spread | None:
    """Return the geometric means of some distributions."""
    known = [astuple(spread) for spread in spreads if spread is not None]
    if not known:
        return None
    return Spread(*np.exp(np.log(np.maximum(known, 1e-9)).mean(axis=0)).tolist())


def numbers_of(run: Measurement) -> list[float]:
    """Return NUMBERS of a measurement; NaN where nothing tells."""
    result = dict.fromkeys(NUMBERS, math.nan)
    result |= {"attainment": run.attainment, "goodput_rps": run.goodput_rps}
    if run.kv_cache_usage is not None:  # the engine reported its iterations
        result |= {"preemptions": run.preemptions, "running_peak": run.running_peak}
        result |= {f"{KV}_{name}": value for name, value in asdict(run.kv_cache_usage).items()}
    for time in TIMES:
        spread: Spread | None = getattr(run, f"{time}_s")
        if spread is not None:
            result |= {f"{time}_{name}_s": value for name, value in asdict(spread).items()}
    return [float(result[name]) for name in NUMBERS]


def samples_of(blocks: Sequence[Block], caps: Sequence[int] | None = None) -> Samples:
    """Return draws of the means of every cap, or of some, at the recorded load: each cap moved by
    its noise. Caps that never bound are one configuration for this traffic, so they move
    together."""
    curve = {cap: each for cap, each in pooled(blocks).items() if caps is None or cap in caps}
    values = np.array([numbers_of(each) for each in curve.values()])
    shifts = np.random.default_rng(0).standard_normal((WINDOW_DRAWS, len(curve), 2))
    free = [i for i, each in enumerate(curve.values()) if each.cut is None and never_binds(each)]
    shifts[:, free] = shifts[:, free[:1]]
    shifts /= np.sqrt([each.blocks for each in curve.values()])[:, None]
    drawn = np.repeat(values[None], WINDOW_DRAWS, axis=0)
    moved = np.clip(drawn[..., 0] + WINDOW_SDS[0] * shifts[..., 0], 0.0, 1.0)
    drawn[..., 1] *= moved / np.maximum(drawn[..., 0], 1e-9)
    drawn[..., 0] = moved
    times = [i for i, name in enumerate(NUMBERS) if name.endswith("_s")]
    drawn[..., times] *= np.exp(tail_sd(blocks) * shifts[..., 1:])
    return Samples(tuple(curve), drawn[:, None])


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
