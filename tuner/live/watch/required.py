"""Requirements held against a live server, window by window. Pure.

A quantile is held as a share: ``p99 ttft <= 500ms`` is broken where surely more than 1 % of the
requests take longer than 500 ms, or than the next bound of the server's histogram. What nothing
may exceed (``preemptions == 0``, ``peak kv_cache_usage``) is broken by the first that does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.live.prometheus import Distribution
from tuner.live.watch.sequential import Monitor, MonitorLimits, State
from tuner.live.watch.windows import ScrapeWindow, share_above, total
from tuner.traffic.requirements import KV, Requirement

REACH = 0.1
"""Of a share: so far beyond its limit a window counts, or as far as the limit is from none."""

HISTOGRAMS: dict[str, Distribution] = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "itl": "itl_s",
    "e2el": "e2el_s",
    "queue": "queue_s",
}


def why_not(one: Requirement) -> str | None:
    """Say why a server that runs cannot be held to a requirement; None where it can.

    >>> from tuner.traffic.requirements import parse_requirement
    >>> why_not(parse_requirement("p99 ttft <= 500ms at headroom"))
    'the load is what it is'
    """
    if one.at_headroom:
        return "the load is what it is"
    if one.name in {"attainment", "goodput"}:
        return "a server does not tell which requests keep the SLO"
    if one.name == "preemptions" and one.limit > 0:
        return "it is a number of the whole trace; only == 0 can be watched"
    return None


@dataclass(slots=True)
class WatchedRequirement:
    """One requirement, and what the windows say of it so far."""

    requirement: Requirement
    windows: int = 0
    """That told something of it."""

    bound_s: float | None = None
    """Of the histogram, at which a quantile is held."""

    _monitor: Monitor = field(init=False)
    _sum: float = 0.0
    _count: float = 0.0
    _worst: float = 0.0

    def __post_init__(self) -> None:
        share = self._share
        limit, reach = (1.0, 1.0) if share is None else (share, max(REACH, share))
        self._monitor = Monitor(MonitorLimits(float("-inf"), limit, reach), 0.1)

    def add(self, window: ScrapeWindow) -> None:
        """Take a window in."""
        found = self._found(window)
        if found is None or not found[1]:
            return
        self.windows += 1
        value, count = found
        self._sum += value * count
        self._count += count
        self._worst = max(self._worst, value)
        self._monitor.add(value / (self.requirement.limit or 1.0) if self._share is None else value)

    @property
    def state(self) -> State:
        """Surely broken ("above"), surely kept ("within"), or unknown.

        It is kept only where the windows say so and all requests together do: in most windows few
        may come.
        """
        one = self.requirement
        if not self.windows:
            return "unknown"
        if self._is_of_each:
            return "within" if one.is_met_by(self._worst) else "above"
        state, middle = self._monitor.state, self._sum / self._count
        keeps = one.is_met_by(middle) if self._share is None else middle <= self._share
        return "unknown" if state == "within" and not keeps else state

    @property
    def evidence(self) -> float:
        """Share of the evidence that it takes to call it kept, from 0 to 1."""
        return self._monitor.evidence

    def __str__(self) -> str:
        words = {"above": "broken", "within": "kept"}.get(self.state, "not sure yet")
        return f"{self.requirement}: {words} ({self.seen})"

    @property
    def seen(self) -> str:
        """Say what was seen, in words with the number."""
        one = self.requirement
        if not self.windows:
            return "the server did not tell it"
        if self._is_of_each:
            return f"{one.shown(self._sum if one.name == 'preemptions' else self._worst)} seen"
        middle = self._sum / self._count
        if self._share is None:
            return f"{one.shown(middle)} seen"
        beyond = one.shown(one.limit if self.bound_s is None else self.bound_s)
        what = "of the readings are above" if one.name == KV else "take longer than"
        return f"{middle:.2%} {what} {beyond}, {self._share:.0%} may"

    @property
    def _share(self) -> float | None:
        """The share that may be beyond the limit, of a quantile."""
        quantile = self.requirement.statistic
        return (
            1 - float(quantile[1:]) / 100
            if quantile.startswith("p9") or quantile == "p50"
            else None
        )

    @property
    def _is_of_each(self) -> bool:
        return self.requirement.name == "preemptions" or self.requirement.statistic == "peak"

    def _found(self, window: ScrapeWindow) -> tuple[float, float] | None:
        """Return a window's value, and of how many requests or readings it is; None untold."""
        one, steps = self.requirement, window.every_step
        if one.name == "preemptions":
            known = [
                step.counters["preemptions"] for step in steps if "preemptions" in step.counters
            ]
            return (sum(known), 1.0) if known else None
        if one.name == KV:
            usage = [step.kv_cache_usage for step in steps if step.kv_cache_usage is not None]
            return (self._of_usage(usage), float(len(usage))) if usage else None
        counted = total(steps, HISTOGRAMS[one.name])
        if counted is None or not counted.count:
            return None
        if self._share is None:
            return counted.total / counted.count, counted.count
        bound = next(bound for bound in counted.bounds if bound >= one.limit)
        above = share_above(counted, bound)
        if above is None or bound == counted.bounds[-1]:  # its buckets do not reach so far
            return None
        self.bound_s = bound
        return above, counted.count

    def _of_usage(self, usage: Sequence[float]) -> float:
        if self.requirement.statistic == "peak":
            return max(usage)
        if self._share is None:
            return float(np.mean(usage))
        return float(np.mean([not self.requirement.is_met_by(one) for one in usage]))


def watched(requirements: Sequence[Requirement]) -> list[WatchedRequirement]:
    """Return what a server that runs can be held to, nothing known of it yet."""
    return [WatchedRequirement(one) for one in requirements if why_not(one) is None]
