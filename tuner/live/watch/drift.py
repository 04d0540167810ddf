"""Today's traffic against the profile's: rate, lengths, prefix sharing, burstiness. Pure.

Limits mark what matters in practice, not mere difference: beyond them the profile was not shown to
hold. Where the profile's own traffic varied more from one stretch to the next, they are wider.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from tuner.engines.scheduler.state import Floats, Ints
from tuner.live.prometheus import Distribution, Histogram
from tuner.live.watch.sequential import LEVEL, Interval, Monitor, MonitorLimits
from tuner.live.watch.today import arrivals
from tuner.live.watch.windows import ScrapeStep, ScrapeWindow, added, total
from tuner.profile.stored_twin import StoredTwin

Length = Literal["input_length", "output_length"]
LENGTHS: tuple[Length, ...] = get_args(Length)

Measure = Literal["rate", Length, "prefix_share"]
MEASURES: tuple[Measure, ...] = get_args(Measure)

FEWER, MORE = 0.75, 1.25
"""Limits of rate and mean lengths, as shares of the profile's."""

LITTLE_MORE = 1.1
"""The limit of the rate where the profile's headroom failed: days differ by so much."""

PREFIX_SHARE = 0.10
"""Difference from the profile's share of prompt tokens out of the prefix cache that is accepted."""

DISTANCE = 0.15
"""Difference from the profile's shares of requests below any length that is accepted."""

LEAST_EXPECTED = 10.0
"""Requests that a reading of the traffic waits for: fewer are mostly chance."""

LONGEST_READING_S = 120.0
STRETCH_S = 600.0
"""The profile's own traffic is asked how much stretches of this length differ."""

RATIO_REACH = 0.75
"""Distance to either side of its limits up to which one reading of a ratio counts."""


@dataclass(frozen=True, slots=True)
class ReferenceTraffic:
    """The profile's traffic, for one engine."""

    rate_rps: float
    input_length: float
    output_length: float
    prefix_share: float
    inputs: Ints
    outputs: Ints
    arrival_s: Floats
    limits: Mapping[Measure, MonitorLimits]


def reference(
    twin: StoredTwin, *, captured_rps: float, validated_load: float, headroom: float = 1.0
) -> ReferenceTraffic:
    """Return what today's traffic is held against. A ``headroom`` that was not validated has
    failed: then no more load is accepted than LITTLE_MORE.

    ``captured_rps`` is the rate of all that was tuned for; what is stored may be its busiest part.
    """
    traffic = twin.traffic
    rate_rps = len(traffic) / twin.length_s
    inputs, outputs = traffic.input_length, traffic.output_length
    stretches = _stretches(twin)
    low = FEWER * min(1.0, captured_rps / rate_rps)
    high = LITTLE_MORE if headroom > validated_load else max(MORE, validated_load)
    share = float(traffic.cached_length.sum() / max(1, inputs.sum()))
    return ReferenceTraffic(
        rate_rps=rate_rps,
        input_length=float(inputs.mean()),
        output_length=float(outputs.mean()),
        prefix_share=share,
        inputs=inputs,
        outputs=outputs,
        arrival_s=traffic.arrival_s,
        limits={
            "rate": _ratio_limits(low, high, [rate for rate, _, _ in stretches]),
            "input_length": _ratio_limits(FEWER, MORE, [mean for _, mean, _ in stretches]),
            "output_length": _ratio_limits(FEWER, MORE, [mean for _, _, mean in stretches]),
            "prefix_share": MonitorLimits(share - PREFIX_SHARE, share + PREFIX_SHARE, reach=0.2),
        },
    )


def _ratio_limits(low: float, high: float, own: Sequence[float]) -> MonitorLimits:
    return MonitorLimits(min([low, *own]), max([high, *own]), RATIO_REACH)


def _stretches(twin: StoredTwin) -> list[tuple[float, float, float]]:
    """Return rate and mean lengths of each stretch of the stored traffic, over those of all."""
    traffic = twin.traffic
    count = int(twin.length_s // STRETCH_S)
    found = []
    for place in range(count):
        part = traffic.between(place * STRETCH_S, (place + 1) * STRETCH_S)
        if len(part):
            found.append(
                (
                    len(part) / STRETCH_S / (len(traffic) / twin.length_s),
                    float(part.input_length.mean() / traffic.input_length.mean()),
                    float(part.output_length.mean() / traffic.output_length.mean()),
                )
            )
    return found


@dataclass(slots=True)
class TrafficWatch:
    """Today's traffic, window by window."""

    reference: ReferenceTraffic
    monitors: dict[Measure, Monitor] = field(init=False)
    requests: int = 0
    _pending: list[ScrapeWindow] = field(default_factory=list)
    _lengths: dict[Distribution, Histogram] = field(default_factory=dict)
    _counts: "_Dispersion" = field(default_factory=lambda: _Dispersion())  # noqa: PLW0108 - below

    def __post_init__(self) -> None:
        spreads: Mapping[Measure, float] = {
            "rate": 0.3, "input_length": 0.3, "output_length": 0.3, "prefix_share": 0.05,
        }  # fmt: skip
        self.monitors = {
            name: Monitor(limits, spreads[name])
            for name, limits in self.reference.limits.items()
            # a trace without prefix ids says nothing of sharing
            if name != "prefix_share" or self.reference.prefix_share > 0
        }

    def add(self, window: ScrapeWindow) -> bool:
        """Take a window in; return whether what is said of the traffic changed."""
        arrived = sum(int(counts.sum()) for counts in _arrived(window))
        self.requests += arrived
        self._counts.add(arrived / len(window.steps), window.length_s)
        for name in LENGTHS:
            self._add_lengths(name, window)
        self._pending.append(window)
        length_s = sum(one.length_s for one in self._pending)
        due = self.reference.rate_rps * length_s * len(window.steps) >= LEAST_EXPECTED
        if not due and length_s < LONGEST_READING_S:
            return False
        values = _reading(self._pending, self.reference)
        self._pending = []
        changed = [
            monitor.add(values[name]) for name, monitor in self.monitors.items() if name in values
        ]
        return any(changed)

    def interval(self, name: Measure) -> Interval | None:
        return self.monitors[name].interval()

    def distance(self, name: Length) -> Interval | None:
        """Return the largest difference of the shares of requests below a length.

        The interval holds at all times at once: 0.85 sqrt((log log(e n) + 0.8 log(1612 / LEVEL)) /
        n) for today's n requests (Howard and Ramdas, "Sequential estimation of quantiles", 2022),
        and Dvoretzky's, Kiefer's and Wolfowitz's inequality for the stored ones.
        """
        today = self._lengths.get(name)
        if today is None or not today.count:
            return None
        lengths = self.reference.inputs if name == "input_length" else self.reference.outputs
        stored = [float(np.mean(lengths <= bound)) for bound in today.bounds]
        shares = [upto / today.count for upto in today.counts]
        value = max(abs(a - b) for a, b in zip(stored, shares, strict=True))
        size = today.count
        reach = 0.85 * math.sqrt(
            (math.log(math.log(math.e * size)) + 0.8 * math.log(1612 / LEVEL)) / size
        ) + math.sqrt(math.log(2 / LEVEL) / (2 * len(lengths)))
        return Interval(value, max(0.0, value - reach), min(1.0, value + reach))

    def burstiness(self) -> tuple[float, float] | None:
        """Return variance / mean of the arrivals in a window: today's, and the profile's."""
        today = self._counts.index
        if today is None:
            return None
        stored = self.reference.arrival_s
        edges = np.arange(0.0, stored[-1], self._counts.length_s)
        counts = np.histogram(stored, edges)[0] if len(edges) > 2 else np.zeros(0)
        return (today, float(counts.var() / counts.mean())) if counts.sum() else None

    def _add_lengths(self, name: Length, window: ScrapeWindow) -> None:
        found = total(window.every_step, name)
        if found is None:
            return
        before = self._lengths.get(name)
        self._lengths[name] = found if before is None else added(before, found)


@dataclass(slots=True)
class _Dispersion:
    """Mean and variance of counts as they come (Welford)."""

    size: int = 0
    mean: float = 0.0
    squares: float = 0.0
    length_s: float = 1.0

    def add(self, count: float, length_s: float) -> None:
        self.size += 1
        self.length_s = length_s
        off = count - self.mean
        self.mean += off / self.size
        self.squares += off * (count - self.mean)

    @property
    def index(self) -> float | None:
        return self.squares / self.size / self.mean if self.size > 1 and self.mean > 0 else None


def _arrived(window: ScrapeWindow) -> list[Ints]:
    return [
        arrivals((*window.run_in[name][-1:], *steps))[len(window.run_in[name][-1:]) :]
        for name, steps in window.steps.items()
    ]


def _reading(windows: Sequence[ScrapeWindow], profile: ReferenceTraffic) -> dict[Measure, float]:
    """Return what these windows say of each measure; what they do not is left out."""
    steps: list[ScrapeStep] = [one for window in windows for one in window.every_step]
    seconds = sum(window.length_s * len(window.steps) for window in windows)
    arrived = sum(int(counts.sum()) for window in windows for counts in _arrived(window))
    found: dict[Measure, float] = {"rate": arrived / seconds / profile.rate_rps}
    means = (profile.input_length, profile.output_length)
    for name, mean in zip(LENGTHS, means, strict=True):
        lengths = total(steps, name)
        if lengths is not None and lengths.count >= LEAST_EXPECTED / 2:
            found[name] = lengths.total / lengths.count / mean
    queried = sum(one.counters.get("prefix_cache_queries", 0.0) for one in steps)
    if queried > 0:
        hit = sum(one.counters.get("prefix_cache_hits", 0.0) for one in steps)
        found["prefix_share"] = hit / queried
    return found
