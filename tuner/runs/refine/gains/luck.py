"""What of a replay is not the configuration's: the machine's speed then, and the windows' traffic.

A control variate. Pure.

The twin replays the same windows at the speed that the machine had then. How that differs from what
it says of all of the traffic at the usual speeds is luck, and is taken out before two replays are
compared; of equal engines raw differences would look significant most of the time (docs/decisions).
Of attainment what is taken out is a difference: a window that serves half of the traffic's share
would double every error of a ratio.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import StepLaw
from tuner.replay.measure import Spread, spread
from tuner.replay.records import Replay
from tuner.runs.refine.objective import Numbers, Objective
from tuner.traffic.slo import Slo
from tuner.twin.check import driven, observed
from tuner.twin.simulation import EngineShape, Traffic, TwinReplay, met


@dataclass(frozen=True, slots=True)
class Served:
    """What the twin says of one configuration in one window."""

    traffic: Traffic
    replay: TwinReplay
    scored: NDArray[np.bool_]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the twin says of some windows together, as far as aims look at it."""

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
    ``usual``, what the twin says of all of the traffic; see ``beside``."""
    return beside(aims, seen([_driven(replay, law, shape) for replay in replays], slo), usual)


def beside(aims: Sequence[Objective], now: Seen, usual: Numbers) -> tuple[float, ...]:
    """Return per aim how much better windows are than all of the traffic: of attainment the
    difference, of others the log ratio; 0 where there is no telling.

    Of use in differences alone: some windows do not ask for tokens at the rate of all.
    """
    found = []
    for aim in aims:
        if aim.is_share:
            found.append(now.attainment - usual.attainment)
            continue
        here, there = aim.log(now), aim.log(usual)
        found.append(0.0 if here is None or there is None else here - there)
    return tuple(found)


def seen(windows: Sequence[Served], slo: Slo) -> Seen:
    """Return what the twin says of windows, pooled as ``measure`` pools what was measured."""
    heavy = np.concatenate([np.full(int(one.scored.sum()), one.weight) for one in windows])
    good = sum(
        one.weight * float(met(one.traffic, one.replay, slo)[one.scored].sum()) for one in windows
    )

    def over(name: str) -> Spread | None:
        values = np.concatenate([getattr(one.replay, name)[one.scored] for one in windows])
        known = ~np.isnan(values)
        return spread(values[known], heavy[known])

    return Seen(
        attainment=good / float(heavy.sum()) if len(heavy) else 0.0,
        output_tokens_per_s=sum(
            one.weight * one.replay.output_tokens / max(1e-9, one.replay.duration_s)
            for one in windows
        ),
        ttft_s=over("ttft_s"),
        tpot_s=over("tpot_s"),
        e2el_s=over("e2el_s"),
    )


def _driven(replay: Replay, law: StepLaw, shape: EngineShape) -> Served:
    """Return the twin's replay of the same at the speed that the machine had then."""
    window = observed(replay)
    if not window.cut:  # what the engine finished last, the twin may finish a moment later
        window = replace(window, end_s=math.inf)
    return Served(window.traffic, driven(window, law, shape), window.scored, replay.weight)
