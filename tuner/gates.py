"""Does an engine keep what its profile promises? Gates on a replay, each with its limit. Pure.

What is promised is what the twin in the profile says of the very windows that were replayed, with
its 95 % interval, and a tolerance for the machine's wandering on top: the trace may be another than
the one that was tuned for, and the windows are only a part of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.measure import Measurement, Spread, spread
from tuner.scheduler_state import Floats, StepLaw
from tuner.slo import Slo
from tuner.trace import TraceRequest
from tuner.twin import Traffic, met, simulate, traffic_of
from tuner.twin_store import StoredTwin
from tuner.window import Window

ATTAINMENT_TOLERANCE = 0.02
HALF = 0.5
"""Share of requests that an engine worth rolling out serves within the SLO at least."""

SLACK_S = {"ttft_s": 0.005, "tpot_s": 0.0005, "e2el_s": 0.005}
"""A time so little longer is no broken promise, whatever its share."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One promise, and whether it was kept. Times in milliseconds, shares from 0 to 1."""

    name: str
    measured: float
    promised: float
    limit: float
    """The worst that still counts as kept: a lower bound of the attainment, else an upper one."""

    kept: bool


@dataclass(frozen=True, slots=True)
class _Expected:
    """What one law gives over all windows."""

    attainment: float
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2el_s: Spread | None
    preempted: int


def gates(  # noqa: PLR0913 - what was promised, and what was measured of it
    twin: StoredTwin,
    slo: Slo,
    cap: int,
    windows: Sequence[tuple[Window, Sequence[TraceRequest]]],
    measured: Measurement,
    *,
    hash_block_size: int,
    hit_share: float,
    tolerance: float,
    repeats: int = 1,
) -> list[Gate]:
    """Return every gate for the windows, each with the requests that it sends.

    ``measured`` pools ``repeats`` replays of all of them.
    """
    parts = [
        (window, traffic_of(sent, hash_block_size=hash_block_size, hit_share=hit_share))
        for window, sent in windows
    ]
    middle = _expected(twin.law, twin, slo, cap, parts)
    draws = [_expected(law, twin, slo, cap, parts) for law in twin.draws]
    low = float(np.quantile([one.attainment for one in draws], 0.025))
    floor = min(low, middle.attainment) - ATTAINMENT_TOLERANCE
    found = [
        Gate(
            "slo",
            measured.attainment_bound,
            middle.attainment,
            HALF,
            kept=measured.attainment_bound >= HALF,
        ),
        Gate(
            "attainment",
            measured.attainment_bound,
            middle.attainment,
            max(0.0, floor),
            kept=measured.attainment_bound >= floor,
        ),
    ]
    for name, seen in (
        ("ttft_s", measured.ttft_s),
        ("tpot_s", measured.tpot_s),
        ("e2el_s", measured.e2el_s),
    ):
        promised: Spread | None = getattr(middle, name)
        if seen is None or promised is None:
            continue
        tails = [one.p95 for draw in draws if (one := getattr(draw, name)) is not None]
        high = max(promised.p95, float(np.quantile(tails, 0.975)))
        limit_s = high * (1 + tolerance) + SLACK_S[name]
        title = f"{name.removesuffix('_s')}_p95_ms"
        found.append(
            Gate(
                title,
                seen.p95 * 1e3,
                promised.p95 * 1e3,
                limit_s * 1e3,
                kept=seen.p95 <= limit_s,
            )
        )
    most = max([middle.preempted, *(one.preempted for one in draws)])
    allowed = repeats * most * (1 + tolerance)
    found.append(
        Gate(
            "preemptions",
            float(measured.preemptions),
            float(repeats * middle.preempted),
            allowed,
            kept=measured.preemptions <= allowed,
        )
    )
    return found


def _expected(
    law: StepLaw,
    twin: StoredTwin,
    slo: Slo,
    cap: int,
    parts: Sequence[tuple[Window, Traffic]],
) -> _Expected:
    columns: dict[str, list[Floats]] = {"ttft_s": [], "tpot_s": [], "e2el_s": []}
    weights: list[Floats] = []
    good = total = 0.0
    preempted = 0
    for window, traffic in parts:
        replay = simulate(traffic, law, twin.shape, max_num_seqs=cap)
        scored = traffic.arrival_s >= window.start_s
        good += window.weight * float(met(traffic, replay, slo)[scored].sum())
        total += window.weight * float(scored.sum())
        preempted += int(replay.preemptions.sum())
        weights.append(np.full(int(scored.sum()), window.weight))
        for name, values in columns.items():
            values.append(getattr(replay, name)[scored])
    heavy = np.concatenate(weights)

    def over(name: str) -> Spread | None:
        values = np.concatenate(columns[name])
        known = ~np.isnan(values)
        return spread(values[known], heavy[known])

    return _Expected(
        attainment=good / total if total else 1.0,
        ttft_s=over("ttft_s"),
        tpot_s=over("tpot_s"),
        e2el_s=over("e2el_s"),
        preempted=preempted,
    )
