"""Today's traffic against the profile's: rate, lengths, prefix sharing. Pure.

Limits mark what matters in practice, not mere difference: beyond them the profile was not shown to
hold. Where the profile's own traffic varied more from one stretch to the next, they are wider.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from tuner.engines.scheduler.state import Ints
from tuner.live.prometheus import Histogram
from tuner.live.watch.monitor import Interval, Limits
from tuner.live.watch.today import arrivals
from tuner.live.watch.windows import ScrapeWindow, add_to, total
from tuner.profile.stored_twin import StoredTwin

Length = Literal["input_length", "output_length"]
LENGTHS: tuple[Length, ...] = get_args(Length)

Measure = Literal["rate", Length, "prefix_share"]

FEWER, MORE = 0.75, 1.25
"""Limits of rate and mean lengths, as shares of the profile's."""

LITTLE_MORE = 1.1
"""The limit of the rate where the profile's headroom failed: days differ by so much."""

PREFIX_SHARE = 0.10
"""Difference from the profile's share of prompt tokens out of the prefix cache that is accepted."""

DISTANCE = 0.15
"""Difference from the profile's shares of requests below any length that is accepted."""

SURE_D = 1.95
"""Kolmogorov's statistic of two equal samples is below this in 999 of 1,000 cases."""

STRETCH_S = 600.0
"""The profile's own traffic is asked how much stretches of this length differ."""


@dataclass(frozen=True, slots=True)
class ReferenceTraffic:
    """The profile's traffic, for one engine."""

    rate_rps: float
    lengths: Mapping[Length, Ints]
    limits: Mapping[Measure, Limits]
    """Of ratios to the profile's; of the prefix share itself. Without it where the trace said
    nothing of sharing."""


def reference(
    twin: StoredTwin, *, captured_rps: float, validated_load: float, headroom: float = 1.0
) -> ReferenceTraffic:
    """Return what today's traffic is held against. A ``headroom`` that was not validated has
    failed: then no more load is accepted than LITTLE_MORE.

    ``captured_rps`` is the rate of all that was tuned for; what is stored may be its busiest part.
    """
    traffic = twin.traffic
    rate_rps = len(traffic) / twin.length_s
    stretches = _stretches(twin)
    low = FEWER * min(1.0, captured_rps / rate_rps)
    high = LITTLE_MORE if headroom > validated_load else max(MORE, validated_load)
    share = float(traffic.cached_length.sum() / max(1, traffic.input_length.sum()))
    limits: dict[Measure, Limits] = {
        "rate": _limits(low, high, [rate for rate, _, _ in stretches]),
        "input_length": _limits(FEWER, MORE, [mean for _, mean, _ in stretches]),
        "output_length": _limits(FEWER, MORE, [mean for _, _, mean in stretches]),
    }
    if share > 0:
        limits["prefix_share"] = Limits(share - PREFIX_SHARE, share + PREFIX_SHARE)
    lengths: dict[Length, Ints] = {
        "input_length": traffic.input_length,
        "output_length": traffic.output_length,
    }
    return ReferenceTraffic(rate_rps, lengths, limits)


def _limits(low: float, high: float, own: Sequence[float]) -> Limits:
    return Limits(min([low, *own]), max([high, *own]))


def _stretches(twin: StoredTwin) -> list[tuple[float, float, float]]:
    """Return rate and mean lengths of each stretch of the stored traffic, over those of all."""
    traffic = twin.traffic
    ratios = []
    for place in range(int(twin.length_s // STRETCH_S)):
        part = traffic.between(place * STRETCH_S, (place + 1) * STRETCH_S)
        if len(part):
            ratios.append(
                (
                    len(part) / STRETCH_S / (len(traffic) / twin.length_s),
                    float(part.input_length.mean() / traffic.input_length.mean()),
                    float(part.output_length.mean() / traffic.output_length.mean()),
                )
            )
    return ratios


def reading(windows: Sequence[ScrapeWindow], profile: ReferenceTraffic) -> dict[Measure, float]:
    """Return what a batch of windows shows of each measure; what it does not show is left out."""
    steps = [one for window in windows for one in window.every_step]
    seconds = sum(window.length_s * len(window.steps) for window in windows)
    arrived = sum(arrived_in(window) for window in windows)
    values: dict[Measure, float] = {"rate": arrived / seconds / profile.rate_rps}
    for name in LENGTHS:
        lengths = total(steps, name)
        if lengths is not None and lengths.count >= 1:
            values[name] = lengths.total / lengths.count / float(profile.lengths[name].mean())
    queried = sum(one.counters.get("prefix_cache_queries", 0.0) for one in steps)
    if queried > 0:
        hit = sum(one.counters.get("prefix_cache_hits", 0.0) for one in steps)
        values["prefix_share"] = hit / queried
    return {name: value for name, value in values.items() if name in profile.limits}


def arrived_in(window: ScrapeWindow) -> int:
    """Return how many requests arrived in a window, at all engines."""
    count = 0
    for name, steps in window.steps.items():
        before = window.run_in[name][-1:]
        count += int(arrivals((*before, *steps))[len(before) :].sum())
    return count


@dataclass(slots=True)
class LengthsSeen:
    """The lengths of all requests that ended in the watch, against the profile's."""

    profile: ReferenceTraffic
    _today: dict[Length, Histogram] = field(default_factory=dict)

    def add(self, window: ScrapeWindow) -> None:
        for name in LENGTHS:
            add_to(self._today, name, total(window.every_step, name))

    def distance(self, name: Length) -> Interval | None:
        """Return the largest difference of the shares of requests below a length, and what it may
        be by chance (Kolmogorov and Smirnov); None before any request ended."""
        today = self._today.get(name)
        if today is None or not today.count:
            return None
        stored = self.profile.lengths[name]
        theirs = [float(np.mean(stored <= bound)) for bound in today.bounds]
        ours = [upto / today.count for upto in today.counts]
        value = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
        reach = SURE_D * math.sqrt(1 / today.count + 1 / len(stored))
        return Interval(value, max(0.0, value - reach), min(1.0, value + reach))

    @property
    def distant(self) -> list[Length]:
        """The lengths whose distribution is surely another one."""
        distances = {name: self.distance(name) for name in LENGTHS}
        return [name for name, one in distances.items() if one and one.low > DISTANCE]
