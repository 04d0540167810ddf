"""Does an engine keep what its profile promises? Gates on a replay, each with its limit. Pure.

The promise is what the twin in the profile says of the very windows that were replayed, because the
trace may be another than the one that was tuned for, and the windows are only a part of it. A limit
is the end of the twin's 95 % interval, with a tolerance for changes of the machine's speed on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.profile.stored_twin import StoredTwin
from tuner.profile.summary import LOW
from tuner.profile.tolerances import ATTAINMENT_TOLERANCE, SLACK_S
from tuner.replay.measure import Measurement, Spread, spread
from tuner.trace.trace import TraceRequest
from tuner.traffic.requirements import TIMES, Requirement
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.twin.draws import Draw, ends_of
from tuner.twin.simulation import Traffic, met, traffic_of

if TYPE_CHECKING:
    from tuner.engines.scheduler.state import Floats


@dataclass(frozen=True, slots=True)
class Gate:
    """One promise, and whether it was kept. Times in milliseconds, shares from 0 to 1."""

    name: str
    measured: float
    promised: float
    limit: float
    """The worst that still counts as kept: a lower bound of the attainment, else an upper one."""

    kept: bool
    limit_is: str
    """Where the limit is from, in words."""

    is_promise: bool = True
    """Whether the limit is what the profile promises; otherwise it is what was asked for."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """The numbers of one draw over all windows."""

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
    how: dict[str, Any] = {
        "hash_block_size": hash_block_size,
        "hit_share": hit_share,
        "kv_tokens": twin.shape.kv_tokens,
    }
    parts = [(window, traffic_of(sent, **how)) for window, sent in windows]
    runs = twin.draws([traffic for _, traffic in parts])
    draws = [_expected(one, twin, slo, cap, parts) for one in runs]
    preempted = float(np.median([one.preempted for one in draws]))
    most = max(one.preempted for one in draws)
    return [
        _share_gate(measured.attainment_bound, draws),
        *(
            gate
            for name in ("ttft_s", "tpot_s", "e2el_s")
            if (gate := _time_gate(name, measured, draws, tolerance)) is not None
        ),
        _at_most(
            "preemptions",
            measured.preemptions,
            promised=repeats * preempted,
            limit=repeats * most * (1 + tolerance),
            tolerance=tolerance,
        ),
    ]


def required_gates(requirements: Sequence[Requirement], measured: Measurement) -> list[Gate]:
    """Return a gate for each requirement of the captured load that the engine's clients, or the
    engine itself, tell of."""
    found = []
    for one in requirements:
        value = None if one.at_headroom else one.value_in(measured)
        if value is not None:
            unit = 1e3 if one.name in TIMES else 1.0
            name = f"{one.name}_{one.statistic}" if one.statistic else one.name
            found.append(
                Gate(
                    name=f"{name}_ms" if one.name in TIMES else name,
                    measured=value * unit,
                    promised=one.limit * unit,
                    limit=one.limit * unit,
                    kept=one.is_met_by(value),
                    limit_is=f"required: {one}",
                    is_promise=False,
                )
            )
    return found


def least_gate(measured: Measurement) -> Gate:
    """Return the gate of a server of which nothing is promised, and nothing is required."""
    attained = measured.attainment_bound
    return Gate(
        name="attainment",
        measured=attained,
        promised=LOW,
        limit=LOW,
        kept=attained >= LOW,
        limit_is="what any server is asked for; --require says otherwise",
        is_promise=False,
    )


def _share_gate(attained: float, draws: Sequence[_Expected]) -> Gate:
    """Gate on the share served within the SLO."""
    shares = np.array([one.attainment for one in draws])
    promised, (low, _) = float(np.median(shares)), ends_of(shares)
    floor = max(0.0, low - ATTAINMENT_TOLERANCE)
    bound = f"its 95 % bound less {100 * ATTAINMENT_TOLERANCE:g} points"
    return Gate("attainment", attained, promised, floor, attained >= floor, bound)


def _time_gate(
    name: str, measured: Measurement, draws: Sequence[_Expected], tolerance: float
) -> Gate | None:
    """Gate on the p95 of a time; None where nothing has one."""
    seen: Spread | None = getattr(measured, name)
    tails = [one.p95 for draw in draws if (one := getattr(draw, name)) is not None]
    if seen is None or not tails:
        return None
    _, high_s = ends_of(np.array(tails))
    of_time = name.removesuffix("_s")
    return _at_most(
        f"{of_time}_p95_ms",
        seen.p95 * 1e3,
        promised=float(np.median(tails)) * 1e3,
        limit=(high_s * (1 + tolerance) + SLACK_S[of_time]) * 1e3,
        tolerance=tolerance,
    )


def _at_most(
    name: str, measured: float, *, promised: float, limit: float, tolerance: float
) -> Gate:
    bound = f"its 95 % bound plus {100 * tolerance:g} %"
    return Gate(name, float(measured), float(promised), limit, measured <= limit, bound)


def _expected(
    run: Draw,
    twin: StoredTwin,
    slo: Slo,
    cap: int,
    parts: Sequence[tuple[Window, Traffic]],
) -> _Expected:
    columns: dict[str, list[Floats]] = {"ttft_s": [], "tpot_s": [], "e2el_s": []}
    weights: list[Floats] = []
    good = total = 0.0
    preempted, clock = 0, run.slowdown.clock()
    for window, traffic in parts:
        replay = run.replay(traffic, twin.shape, max_num_seqs=cap, clock=clock)
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
