"""The windows that were replayed, as draws of what each cap gives. Pure.

Nothing here resamples requests. Repeats of one cap replay the same requests, so what differs
between two blocks is the machine; resampled requests would call two equal runs different in 80 to
95 % of cases (docs/decisions).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Literal

import numpy as np

from tuner.replay.numbers import Measurement, Spread
from tuner.traffic.constants import WINDOW_DRAWS, WINDOW_SDS, WINDOW_SDS_WEIGHT
from tuner.traffic.requirements import TIMES
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


def own_of(curve: Mapping[int, Measurement]) -> Samples:
    """Return the numbers of caps as they were measured; a cap that was cut has the most that it
    could attain, and no more."""
    caps = tuple(curve)
    values = np.array([numbers_of(each) for each in curve.values()])
    rates_rps = [each.arrival_rate_rps for each in curve.values()]
    shape = (1, 1, len(caps), len(NUMBERS))
    return Samples(caps, values.reshape(shape), (rates_rps[0] if rates_rps else 0.0,))


def numbers_of(run: Measurement) -> list[float]:
    """Return NUMBERS of a measurement; NaN where nothing tells."""
    result = dict.fromkeys(NUMBERS, math.nan)
    if run.cut is not None:
        return [*(result | {"attainment": run.attainment_bound}).values()]
    result["attainment"] = run.attainment
    if (usage := run.kv_cache_usage) is not None:  # the engine reported its iterations
        result |= {"preemptions": run.preemptions, "running_peak": run.running_peak}
        result |= {f"kv_cache_usage_{name}": value for name, value in asdict(usage).items()}
    for time in TIMES:
        spread: Spread | None = getattr(run, f"{time}_s")
        if spread is not None:
            result |= {f"{time}_{name}_s": value for name, value in asdict(spread).items()}
    return [float(result[name]) for name in NUMBERS]


def noise(blocks: Sequence[Block], name: str) -> tuple[float, float]:
    """Return (standard deviation of one block, degrees of freedom) of the attainment, or of the
    logarithm of a time.

    Pooled over the repeats of every cap with a prior. A drift that was seen is noise too, because
    caps were measured at different times.
    """
    is_share, place = name == "attainment", NUMBERS.index(name)
    prior_sd = WINDOW_SDS[0 if is_share else 1]
    freedom, squares = WINDOW_SDS_WEIGHT, WINDOW_SDS_WEIGHT * prior_sd**2
    for cap in {block.trial.max_num_seqs for block in blocks}:
        mine = [block for block in blocks if block.trial.max_num_seqs == cap]
        # repeats that were cut by chance, at different heights, show noise of the share
        used = [b for b in mine if b.is_whole or (is_share and not b.measurement.ruled_out)]
        values = np.array([numbers_of(block.measurement)[place] for block in used])
        values = values[~np.isnan(values)] if is_share else np.log(values[values > 0])
        if len(values) > 1:
            squares += float(np.var(values)) * len(values)
            freedom += len(values) - 1
    drifted = 0.0 if is_share else drift(blocks) / 2
    return math.hypot(math.sqrt(squares / freedom), drifted), freedom


def drift(blocks: Sequence[Block]) -> float:
    """Return how much slower the first cap was at the end than at first, at equal batch size.

    0.1 is 10 % slower. Zero when it was not replayed again or nothing can be compared.
    """
    again = [b.measurement for b in blocks if b.trial.purpose == "drift_replay"]
    before = {each.decode_seqs: each for each in blocks[0].measurement.batch_times} if again else {}
    ratios = [
        (after.median_s / before[after.decode_seqs].median_s, after.iterations)
        for after in (again[-1].batch_times if again else ())
        if after.decode_seqs in before and before[after.decode_seqs].median_s > 0
    ]
    if not ratios:
        return 0.0
    values, weights = zip(*ratios, strict=True)
    return float(np.average(values, weights=weights)) - 1


def samples_of(blocks: Sequence[Block]) -> tuple[Samples, Samples]:
    """Return the means of every cap at the recorded load, and draws of them: each cap moved by its
    noise (Student's t).

    Caps that never bound are one configuration for this traffic, so they move together. A cap that
    was cut has the most that it could attain, with the shortest tail.
    """
    curve = pooled(blocks)
    own = own_of(curve)
    tails = own.values[..., NUMBERS.index("e2el_p99_s")]
    tails[np.isnan(tails)] = np.nanmin(tails) if not np.isnan(tails).all() else 1.0
    rng = np.random.default_rng(0)
    (share_sd, freedom), (time_sd, _) = noise(blocks, "attainment"), noise(blocks, "e2el_p99_s")
    shifts = rng.standard_t(freedom, (WINDOW_DRAWS, 1, len(curve), 2))
    free = [i for i, each in enumerate(curve.values()) if each.cut is None and never_binds(each)]
    shifts[..., free, :] = shifts[..., free[:1], :]
    shifts /= np.sqrt([each.blocks for each in curve.values()])[:, None]
    drawn = np.repeat(own.values, WINDOW_DRAWS, axis=0)
    share = NUMBERS.index("attainment")
    drawn[..., share] = np.clip(drawn[..., share] + share_sd * shifts[..., 0], 0.0, 1.0)
    times = [i for i, name in enumerate(NUMBERS) if name.endswith("_s")]
    drawn[..., times] *= np.exp(time_sd * shifts[..., 1:])
    return own, replace(own, values=drawn)


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
