"""Windows of a server's counters: the differences between scrapes of its /metrics. Pure.

All numbers are increments: of counters, and of the buckets of histograms. They add up exactly, so
a window's distribution is that of all that happened in it, never an average of averages.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal, TypeVar

from tuner.live.prometheus import Counter, Distribution, Histogram, ServerMetrics

Name = TypeVar("Name", bound=str)

LATE = 5
"""Intervals between scrapes that a step may last. A longer one says too little of when things
happened, and belongs to no window."""

NORMAL_975 = 1.96

KEPT_STEPS = 1024
"""Steps of one engine that are remembered at most."""

RESTART_S = 1.0
"""Start times that differ by less are one start: they are rounded."""

MOST_RUNNING = 1e6
MOST_A_STEP = 20_000.0
"""Requests at a time, or in one step, beyond which a counter has jumped: no engine has so many."""

KEPT_STARTS = 64
"""Starts of a process that are remembered at most."""


@dataclass(frozen=True, slots=True)
class ScrapeStep:
    """One engine from one scrape to the next. Times are of the one who scrapes."""

    begin_s: float
    end_s: float
    in_flight: float
    """Running and waiting at the begin; 0 where the engine was restarted since."""

    running: float
    """At the end, as are the next two."""

    waiting: float
    kv_cache_usage: float | None
    counters: Mapping[Counter, float]
    finish_reasons: Mapping[str, float]
    distributions: Mapping[Distribution, Histogram]
    restarted: bool

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def finished(self) -> float:
        return sum(self.finish_reasons.values())

    @property
    def is_possible(self) -> bool:
        names: tuple[Distribution, ...] = ("ttft_s", "e2el_s", "input_length", "output_length")
        found = (self.distributions[name].count for name in names if name in self.distributions)
        return max([self.finished, *found]) <= MOST_A_STEP

    @property
    def failed(self) -> float:
        """Requests that ended otherwise than by their last token."""
        return sum(self.finish_reasons.get(reason, 0.0) for reason in ("abort", "error"))


def step(before: ServerMetrics, after: ServerMetrics, begin_s: float, end_s: float) -> ScrapeStep:
    """Return what came between two scrapes of one engine.

    A server that was restarted between them counts from 0 again: all of ``after`` is new. What the
    earlier scrape did not tell has no increment.
    """
    restarted = was_restarted(before, after)
    earlier = _nothing(after) if restarted else before
    return ScrapeStep(
        begin_s=begin_s,
        end_s=end_s,
        in_flight=_requests(earlier, "running") + _requests(earlier, "waiting"),
        running=_requests(after, "running"),
        waiting=_requests(after, "waiting"),
        kv_cache_usage=after.gauges.get("kv_cache_usage"),
        counters={
            name: value - earlier.counters[name]
            for name, value in after.counters.items()
            if name in earlier.counters
        },
        finish_reasons={
            reason: value - earlier.finish_reasons.get(reason, 0.0)
            for reason, value in after.finish_reasons.items()
            if restarted or earlier.finish_reasons
        },
        distributions={
            name: one.since(earlier.distributions[name])
            for name, one in after.distributions.items()
            if name in earlier.distributions
        },
        restarted=restarted,
    )


def _requests(metrics: ServerMetrics, name: Literal["running", "waiting"]) -> float:
    return min(MOST_RUNNING, max(0.0, metrics.gauges.get(name, 0.0)))


def was_restarted(before: ServerMetrics, after: ServerMetrics) -> bool:
    """Whether a counter fell, or the process says that it started at another time."""
    if (
        before.started_s is not None
        and after.started_s is not None
        and abs(after.started_s - before.started_s) > RESTART_S
    ):
        return True
    return any(
        name in after.counters and after.counters[name] < value
        for name, value in before.counters.items()
    ) or any(
        name in after.distributions and after.distributions[name].count < one.count
        for name, one in before.distributions.items()
    )


def _nothing(after: ServerMetrics) -> ServerMetrics:
    """Return the server as it was at its start."""
    return ServerMetrics(
        gauges={},
        counters=dict.fromkeys(after.counters, 0.0),
        distributions={
            name: Histogram(one.bounds, (0.0,) * len(one.bounds), 0.0)
            for name, one in after.distributions.items()
        },
    )


def total(steps: Iterable[ScrapeStep], name: Distribution) -> Histogram | None:
    """Return a distribution over several steps; None where none of them has it."""
    found = [one.distributions[name] for one in steps if name in one.distributions]
    return reduce(added, found) if found else None


def added(one: Histogram, other: Histogram) -> Histogram:
    """Return two distributions as one."""
    if one.bounds != other.bounds:  # a restart with other buckets: the newer ones go on
        return other
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return Histogram(one.bounds, counts, one.total + other.total)


def add_to(
    totals: MutableMapping[Name, Histogram], name: Name, histogram: Histogram | None
) -> None:
    """Add a distribution, where there is one, to the one of its name."""
    if histogram is not None:
        before = totals.get(name)
        totals[name] = histogram if before is None else added(before, histogram)


def quantile_range(one: Histogram, fraction: float) -> tuple[float, float] | None:
    """Return the bounds between which a quantile lies; None without values.

    Where the values are a sample, 95 of 100 such ranges hold the quantile of what they are drawn
    from: the ranks are 1.96 sqrt(n q (1 - q)) to either side. The upper bound is infinite in the
    last, endless bucket.
    """
    if not one.count:
        return None
    reach = NORMAL_975 * math.sqrt(fraction * (1 - fraction) * one.count)
    ranks = (fraction * one.count - reach, min(one.count, fraction * one.count + reach))
    places = [next(i for i, upto in enumerate(one.counts) if upto >= rank) for rank in ranks]
    lowest = one.bounds[places[0] - 1] if places[0] else 0.0
    return lowest, one.bounds[places[1]]


def share_above(one: Histogram, bound: float) -> float | None:
    """Return the share of values above one of the bounds; None without values."""
    if not one.count:
        return None
    return 1 - one.counts[one.bounds.index(bound)] / one.count


@dataclass(frozen=True, slots=True)
class ScrapeWindow:
    """Steps of every engine over one stretch of time, and what came just before it."""

    begin_s: float
    end_s: float
    steps: Mapping[str, tuple[ScrapeStep, ...]]
    """Engine → its steps."""

    run_in: Mapping[str, tuple[ScrapeStep, ...]]
    """Engine → the steps before, without a gap."""

    restarts: int = 0
    """Since the window before, also while nothing answered."""

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def every_step(self) -> list[ScrapeStep]:
        return [one for steps in self.steps.values() for one in steps]


@dataclass(slots=True)
class WindowMaker:
    """Makes windows of scrapes as they come. Windows end on a grid, whatever was missed."""

    length_s: float
    every_s: float
    run_in_s: float
    missed: int = 0
    """Stretches that are in no window, because scrapes were missing."""

    restarts: int = 0
    """Of the server, also while nothing answered."""

    is_several: bool = False
    """Whether a process answered that another one had followed: there are several of them."""

    _starts: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STARTS))
    """When the processes that answered started, the newest last."""

    _told: int = 0
    """Restarts that are in a window."""

    _before: tuple[float, Mapping[str, ServerMetrics]] | None = None
    _steps: dict[str, deque[ScrapeStep]] = field(default_factory=dict)
    _origin_s: float = 0.0
    _number: int = 0
    _begin_s: float | None = None

    def add(self, at_s: float, engines: Mapping[str, ServerMetrics]) -> ScrapeWindow | None:
        """Take a scrape in; return the window that it completes."""
        self._notice_start(engines)
        before, self._before = self._before, (at_s, engines)
        if before is None:
            self._origin_s = at_s
            return None
        begin_s, were = before
        same = were.keys() & engines.keys()
        self.restarts += any(was_restarted(were[name], engines[name]) for name in same)
        # within half a step: otherwise a window would last one step longer whenever one is early
        number = int((at_s - self._origin_s + self.every_s / 2) // self.length_s)
        ends, self._number = number > self._number, number
        steps = {name: step(were[name], engines[name], begin_s, at_s) for name in same}
        if (
            at_s - begin_s > LATE * self.every_s
            or engines.keys() != were.keys()
            or not all(one.is_possible for one in steps.values())
        ):
            self.missed += 1
            self._steps.clear()
            self._begin_s = None
            return None
        for name, one in steps.items():
            self._steps.setdefault(name, deque(maxlen=KEPT_STEPS)).append(one)
        if self._begin_s is None:
            self._begin_s = begin_s
        if not ends or at_s - self._begin_s < self.length_s / 2:
            return None
        begin_s, self._begin_s = self._begin_s, at_s
        return self._window(begin_s, at_s)

    def _notice_start(self, engines: Mapping[str, ServerMetrics]) -> None:
        started_s = next(iter(engines.values())).started_s if engines else None
        if started_s is None:
            return
        known = [
            place for place, one in enumerate(self._starts) if abs(one - started_s) <= RESTART_S
        ]
        if not known:
            self._starts.append(started_s)
        elif known[-1] != len(self._starts) - 1:
            self.is_several = True

    def _window(self, begin_s: float, end_s: float) -> ScrapeWindow:
        for kept in self._steps.values():
            while kept and kept[0].end_s <= begin_s - self.run_in_s:
                kept.popleft()
        new, self._told = self.restarts - self._told, self.restarts
        return ScrapeWindow(
            begin_s,
            end_s,
            steps=self._between(begin_s, end_s),
            run_in={
                name: _since_restart(steps)
                for name, steps in self._between(-1e300, begin_s).items()
            },
            restarts=new,
        )

    def _between(self, begin_s: float, end_s: float) -> dict[str, tuple[ScrapeStep, ...]]:
        return {
            name: tuple(one for one in kept if begin_s <= one.begin_s < end_s)
            for name, kept in self._steps.items()
        }


def _since_restart(steps: Sequence[ScrapeStep]) -> tuple[ScrapeStep, ...]:
    first = max((i for i, one in enumerate(steps) if one.restarted), default=0)
    return tuple(steps[first:])
