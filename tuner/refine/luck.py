"""What of a replay is not the configuration's: the machine's speed then, and the windows' traffic.

A control variate. Pure.

The twin replays the same windows at the speed that the machine had then. How that differs from what
it says of all of the traffic at the usual speed is luck, and is taken out before two replays are
compared; of equal engines raw differences would look significant most of the time (docs/decisions).
Of attainment what is taken out is a difference: a window that serves half of the traffic's share
would double every error of a ratio.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.measure import Spread, spread
from tuner.records import Replay
from tuner.refine.objective import Numbers, Objective
from tuner.scheduler.state import Floats, StepLaw
from tuner.slo import Slo
from tuner.twin.check import driven, observed
from tuner.twin.simulation import EngineShape, met


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the twin says of some windows, as far as aims look at it."""

    attainment: float
    output_tokens_per_s: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2el_s: Spread | None


def luck(  # noqa: PLR0913, PLR0917 - what was replayed, and by which twin
    aims: Sequence[Objective],
    replays: Sequence[Replay],
    law: StepLaw,
    shape: EngineShape,
    slo: Slo,
    usual: Numbers,
) -> tuple[float, ...]:
    """Return per aim how much better these replays of one configuration should have been than
    ``usual``, what the twin says of all of the traffic: of attainment the difference, of others the
    log ratio; 0 where there is no telling.

    Of use in differences alone: some windows do not ask for tokens at the rate of all.
    """
    now = _pooled(replays, law, shape, slo)
    found = []
    for aim in aims:
        if aim.is_share:
            found.append(now.attainment - usual.attainment)
            continue
        here, there = aim.log(now), aim.log(usual)
        found.append(0.0 if here is None or there is None else here - there)
    return tuple(found)


def _pooled(replays: Sequence[Replay], law: StepLaw, shape: EngineShape, slo: Slo) -> _Seen:
    good = total = tokens = 0.0
    columns: dict[str, list[Floats]] = {"ttft_s": [], "tpot_s": [], "e2el_s": []}
    weights = []
    for replay in replays:
        window = observed(replay)
        if not window.cut:  # what the engine finished last, the twin may finish a moment later
            window = replace(window, end_s=math.inf)
        twin = driven(window, law, shape)
        scored = window.scored
        good += replay.weight * float(met(window.traffic, twin, slo)[scored].sum())
        total += replay.weight * float(scored.sum())
        tokens += replay.weight * twin.output_tokens / max(1e-9, twin.duration_s)
        weights.append(np.full(int(scored.sum()), replay.weight))
        for name, values in columns.items():
            values.append(getattr(twin, name)[scored])
    heavy = np.concatenate(weights)

    def over(name: str) -> Spread | None:
        values = np.concatenate(columns[name])
        known = ~np.isnan(values)
        return spread(values[known], heavy[known])

    share = good / total if total else 0.0
    return _Seen(share, tokens, over("ttft_s"), over("tpot_s"), over("e2el_s"))
