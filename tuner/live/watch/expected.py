"""A window of live traffic as the profile's twin expects it, and the server's slowdown. Pure.

The twin gets today's own requests, so that what it says is what the profile promises at today's
load. The slowdown is the factor on the step-time law at which the twin's mean gap between tokens is
the one that was counted. It accounts for the larger batches that a slower server runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.live.prometheus import Distribution, Histogram
from tuner.live.watch.today import traffic_like
from tuner.live.watch.windows import ScrapeWindow, share_above, total
from tuner.profile.stored_twin import StoredTwin
from tuner.twin.simulation import EngineShape, Traffic, simulate

LEAST_GAPS = 20
"""Fewer gaps between tokens in a window say nothing of its speed."""

LEAST_REQUESTS = 3
TAIL = 0.90
"""Tails are held against the bucket bound below which the twin expects so many at least."""

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

    preemptions: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A window held against the twin. None where too little happened."""

    slowdown: float | None
    """1 is the law's speed."""

    gap_s: float | None
    """Counted."""

    expected_gap_s: float | None
    """At the law's speed, and so promised."""

    ttft_excess: float | None
    """Share of requests with a longer TTFT than a bound, minus what the twin says of that bound at
    the speed that the server had."""

    e2el_tail: float | None
    """The same of E2EL, but at the law's speed: minus what is promised."""

    ttft_ratio: float | None
    """Mean TTFT over the one that the twin says at the law's speed."""

    expected: Expected
    """At the law's speed."""

    traffic: tuple[Traffic, ...]
    """What arrived in the window, engine by engine."""


def compared(
    window: ScrapeWindow,
    twin: StoredTwin,
    cap: int,
    bounds: Mapping[Distribution, float],
    *,
    seed: int,
) -> Compared:
    """Hold a window against the twin at a cap; ``bounds`` are those of the tails."""
    parts = [
        traffic_like((*window.run_in[name], *steps), twin.traffic, seed=seed)
        for name, steps in window.steps.items()
    ]

    def at(factor: float) -> Expected:
        return expected(parts, twin.law.slowed(factor), twin.shape, cap, window)

    lawful = at(1.0)
    gaps = _gaps(window)
    gap_s = gaps.total / gaps.count if gaps is not None and gaps.count >= LEAST_GAPS else None
    slowdown, then = _slowdown(at, lawful, gap_s)
    ttft = total(window.every_step, "ttft_s")
    mean_s = float(lawful.ttft_s.mean()) if len(lawful.ttft_s) >= LEAST_REQUESTS else math.nan
    enough = ttft is not None and ttft.count >= LEAST_REQUESTS and mean_s > 0
    return Compared(
        slowdown=slowdown,
        gap_s=gap_s,
        expected_gap_s=lawful.gap_s if math.isfinite(lawful.gap_s) else None,
        ttft_excess=_excess(ttft, then.ttft_s, bounds.get("ttft_s")),
        e2el_tail=_excess(total(window.every_step, "e2el_s"), lawful.e2el_s, bounds.get("e2el_s")),
        ttft_ratio=ttft.total / ttft.count / mean_s if enough and ttft is not None else None,
        expected=lawful,
        traffic=tuple(part.between(window.begin_s, window.end_s) for part in parts),
    )


def expected(
    parts: Sequence[Traffic], law: StepLaw, shape: EngineShape, cap: int, window: ScrapeWindow
) -> Expected:
    """Return what the twin says of the window when each engine gets its part."""
    lasting_s = gaps = running_s = preemptions = 0.0
    firsts, lasts = [np.zeros(0)], [np.zeros(0)]
    begin_s, end_s = window.begin_s, window.end_s
    for traffic in parts:
        if not len(traffic):
            continue
        replay = simulate(traffic, law, shape, max_num_seqs=cap)
        first_s = traffic.arrival_s + replay.ttft_s
        last_s = traffic.arrival_s + replay.e2el_s
        within_s = np.clip(np.minimum(last_s, end_s) - np.maximum(first_s, begin_s), 0, None)
        several = traffic.output_length > 1
        share = np.where(several, within_s / np.maximum(1e-9, last_s - first_s), 0.0)
        lasting_s += float(np.nansum(within_s))
        gaps += float(np.nansum(share * (traffic.output_length - 1)))
        scheduled_s = traffic.arrival_s + shape.lag_s + replay.queue_s
        ran_s = np.clip(np.minimum(last_s, end_s) - np.maximum(scheduled_s, begin_s), 0, None)
        running_s += float(np.nansum(ran_s))
        here = (last_s >= begin_s) & (last_s < end_s)
        preemptions += float(replay.preemptions[here].sum())
        lasts.append(replay.e2el_s[here])
        firsts.append(replay.ttft_s[(first_s >= begin_s) & (first_s < end_s)])
    return Expected(
        gap_s=lasting_s / gaps if gaps >= 1 else math.nan,
        ttft_s=np.concatenate(firsts),
        e2el_s=np.concatenate(lasts),
        running=running_s / window.length_s / max(1, len(parts)),
        preemptions=preemptions,
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


def tail_bounds(window: ScrapeWindow, twin: StoredTwin, cap: int) -> Mapping[Distribution, float]:
    """Return the bounds of the server's histograms below which the promised tails lie."""
    replay = simulate(twin.traffic, twin.law, twin.shape, max_num_seqs=cap)
    found: dict[Distribution, float] = {}
    said_s: Mapping[Distribution, Floats] = {"ttft_s": replay.ttft_s, "e2el_s": replay.e2el_s}
    for name, times_s in said_s.items():
        counted, known = total(window.every_step, name), times_s[~np.isnan(times_s)]
        if counted is not None and len(known):
            found[name] = tail_bound(known, counted.bounds)
    return found


def has_bounds(window: ScrapeWindow, bounds: Mapping[Distribution, float]) -> bool:
    """Whether the server's histograms have these bounds: another version may have others."""
    found = {name: total(window.every_step, name) for name in bounds}
    return all(one is None or bounds[name] in one.bounds for name, one in found.items())


def tail_bound(said_s: Floats, bounds: Sequence[float]) -> float:
    """Return the least bound of a histogram below which TAIL of these times lie at least."""
    return next(bound for bound in bounds if float(np.mean(said_s > bound)) <= 1 - TAIL)


def _excess(counted: Histogram | None, said_s: Floats, bound: float | None) -> float | None:
    """Return the counted share above a bound of the histogram minus the twin's."""
    if counted is None or bound is None or bound not in counted.bounds:
        return None
    if counted.count < LEAST_REQUESTS or len(said_s) < LEAST_REQUESTS:
        return None
    above = share_above(counted, bound)
    return None if above is None else above - float(np.mean(said_s > bound))
