"""What every cap gives at one load, asked of the twin that a profile stores. Pure, and seeded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler.state import StepLaw
from tuner.profile.stored_twin import StoredTwin
from tuner.traffic.slo import Slo
from tuner.twin.load import scaled
from tuner.twin.simulation import Traffic, attainment, simulate

STATISTICS = ("goodput_rps", "ttft_p99_s", "tpot_p95_s", "e2el_p99_s")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number by the law itself, and between which ends 95 % of the laws as likely have it."""

    middle: float
    low: float
    high: float


LoadCurve = Mapping[int, Mapping[str, Estimate]]
"""Cap → name of a statistic → what it is; NaN where no request has one."""


def asked(twin: StoredTwin, slo: Slo, caps: Sequence[int], *, load: float, seed: int) -> LoadCurve:
    """Return what each cap gives at ``load`` times the stored traffic."""
    traffic = twin.traffic
    if load != 1.0:
        traffic = scaled(traffic, load, np.random.default_rng(seed))
    rate_rps = len(traffic) / twin.length_s
    return {cap: _estimates(traffic, twin, slo, cap, rate_rps) for cap in caps}


def _estimates(
    traffic: Traffic, twin: StoredTwin, slo: Slo, cap: int, rate_rps: float
) -> dict[str, Estimate]:
    def of(law: StepLaw) -> tuple[float, ...]:
        replay = simulate(traffic, law, twin.shape, max_num_seqs=cap)
        return (
            attainment(traffic, replay, slo) * rate_rps,
            _quantile(replay.ttft_s, 0.99),
            _quantile(replay.tpot_s, 0.95),
            _quantile(replay.e2el_s, 0.99),
        )

    middle = of(twin.law)
    samples = np.array([of(law) for law in twin.draws] or [middle])
    found = {}
    for number, name in enumerate(STATISTICS):
        known = samples[:, number][np.isfinite(samples[:, number])]
        low, high = np.quantile(known, (0.025, 0.975)) if len(known) else (np.nan, np.nan)
        value = middle[number]
        found[name] = Estimate(value, float(min(low, value)), float(max(high, value)))
    return found


def _quantile(values: np.ndarray, share: float) -> float:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, share)) if len(known) else np.nan
