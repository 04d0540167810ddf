"""A window of live traffic as the profile's twin predicts it, and the server's slowdown. Pure.

The twin gets today's own requests, so that it predicts what the profile promises at today's
load. The slowdown is the factor on the step-time law at which the twin's mean gap between tokens is
the one that was counted. It accounts for the larger batches that a slower server runs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.live.prometheus import Histogram
from tuner.live.watch.today import traffic_like
from tuner.live.watch.windows import ScrapeWindow, share_above, total
from tuner.profile.stored_twin import StoredTwin
from tuner.twin.simulation import Traffic

LEAST_GAPS = 20
"""Fewer gaps between tokens in a window say nothing of its speed."""

LEAST_REQUESTS = 3
TAIL = 0.90
"""Late first tokens are those above the bucket bound below which so many are predicted."""

ROUNDS = 3
MOST_SLOWDOWN = 8.0
CLOSE = 0.005
"""Relative error of the mean gap at which the slowdown is found."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The twin's numbers for a window, at one slowdown, over all engines."""

    gap_s: float
    """Mean gap between the tokens of a request; NaN where none is expected."""

    ttft_s: Floats
    """Of the requests whose first token came in the window."""

    e2el_s: Floats
    """Of those that ended in it."""

    running: float
    """Mean over the window, per engine."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A window beside what the twin predicts for it. None where too little happened."""

    slowdown: float | None
    """1 is the law's speed."""

    gap_s: float | None
    """Counted."""

    expected_gap_s: float | None
    """At the law's speed, and so promised."""

    ttft_excess: float | None
    """Share of requests with a longer TTFT than a bound, minus what the twin predicts for that
    bound at the speed that the server had."""

    expected: Expected
    """At the law's speed."""

    traffic: tuple[Traffic, ...]
    """What arrived in the window, engine by engine."""


def compared(
    window: ScrapeWindow, twin: StoredTwin, cap: int, ttft_bound_s: float | None, *, seed: int
) -> Compared:
    """Compare a window with the twin at a cap; late first tokens are those above the bound."""
    parts = [
        traffic_like((*window.run_in[name], *steps), twin.traffic, seed=seed)
        for name, steps in window.steps.items()
    ]

    def at(factor: float) -> Expected:
        return expected(parts, twin, twin.law.slowed(factor), cap, window)

    lawful = at(1.0)
    gaps = _gaps(window)
    gap_s = gaps.total / gaps.count if gaps is not None and gaps.count >= LEAST_GAPS else None
    slowdown, then = _slowdown(at, lawful, gap_s)
    return Compared(
        slowdown=slowdown,
        gap_s=gap_s,
        expected_gap_s=lawful.gap_s if math.isfinite(lawful.gap_s) else None,
        ttft_excess=_excess(total(window.every_step, "ttft_s"), then.ttft_s, ttft_bound_s),
        expected=lawful,
        traffic=tuple(part.between(window.begin_s, window.end_s) for part in parts),
    )


def expected(
    parts: Sequence[Traffic], twin: StoredTwin, law: StepLaw, cap: int, window: ScrapeWindow
) -> Expected:
    """Return what the twin predicts for the window when each engine gets its part."""
    lasting_s = gaps = running_s = 0.0
    firsts, lasts = [np.zeros(0)], [np.zeros(0)]
    begin_s, end_s = window.begin_s, window.end_s
    for traffic in parts:
        if not len(traffic):
            continue
        replay = twin.replayed(traffic, law, max_num_seqs=cap)
        first_s = traffic.arrival_s + replay.ttft_s
        last_s = traffic.arrival_s + replay.e2el_s
        within_s = np.clip(np.minimum(last_s, end_s) - np.maximum(first_s, begin_s), 0, None)
        several = traffic.output_length > 1
        share = np.where(several, within_s / np.maximum(1e-9, last_s - first_s), 0.0)
        lasting_s += float(np.nansum(within_s))
        gaps += float(np.nansum(share * (traffic.output_length - 1)))
        scheduled_s = traffic.arrival_s + twin.shape.lag_s + replay.queue_s
        ran_s = np.clip(np.minimum(last_s, end_s) - np.maximum(scheduled_s, begin_s), 0, None)
        running_s += float(np.nansum(ran_s))
        here = (last_s >= begin_s) & (last_s < end_s)
        lasts.append(replay.e2el_s[here])
        firsts.append(replay.ttft_s[(first_s >= begin_s) & (first_s < end_s)])
    return Expected(
        gap_s=lasting_s / gaps if gaps >= 1 else math.nan,
        ttft_s=np.concatenate(firsts),
        e2el_s=np.concatenate(lasts),
        running=running_s / window.length_s / max(1, len(parts)),
    )


def _gaps(window: ScrapeWindow) -> Histogram | None:
    """Return the gaps between tokens; of a server that does not tell, its requests' mean gaps."""
    return total(window.every_step, "itl_s") or total(window.every_step, "tpot_s")


def _slowdown(
    at: Callable[[float], Expected], lawful: Expected, gap_s: float | None
) -> tuple[float | None, Expected]:
    """Return the slowdown at which the twin's mean gap is the counted one, and the twin there."""
    if gap_s is None or not (lawful.gap_s > 0) or gap_s <= 0:
        return None, lawful
    below = (0.0, math.log(lawful.gap_s))
    factor = _clipped(math.log(gap_s / lawful.gap_s))
    now = lawful
    for _ in range(ROUNDS):
        now = at(math.exp(factor))
        if not now.gap_s > 0:
            return None, lawful
        found = math.log(now.gap_s)
        if abs(math.log(gap_s) - found) < CLOSE:
            break
        steepness = (found - below[1]) / (factor - below[0]) if factor != below[0] else 1.0
        below = (factor, found)
        factor = _clipped(factor + (math.log(gap_s) - found) / min(3.0, max(0.5, steepness)))
    return math.exp(factor), now


def _clipped(log_slowdown: float) -> float:
    most = math.log(MOST_SLOWDOWN)
    return min(most, max(-most, log_slowdown))


def ttft_bound_s(window: ScrapeWindow, twin: StoredTwin, cap: int) -> float | None:
    """Return the least bound of the server's histogram below which TAIL of the profile's requests
    get their first token; None where it has no histogram."""
    counted = total(window.every_step, "ttft_s")
    if counted is None:
        return None
    times_s = twin.replayed(twin.traffic, twin.law, max_num_seqs=cap).ttft_s
    known_s = times_s[~np.isnan(times_s)]
    return next(
        (bound for bound in counted.bounds if float(np.mean(known_s > bound)) <= 1 - TAIL), None
    )


def _excess(counted: Histogram | None, predicted_s: Floats, bound: float | None) -> float | None:
    """Return the counted share above a bound of the histogram minus the twin's."""
    if counted is None or bound is None or bound not in counted.bounds:
        return None
    if counted.count < LEAST_REQUESTS or len(predicted_s) < LEAST_REQUESTS:
        return None
    above = share_above(counted, bound)
    return None if above is None else above - float(np.mean(predicted_s > bound))
