"""Windows of a server's counters: the differences between readings of its /metrics. Pure.

All numbers are increments: of counters, and of the buckets of histograms. They add up exactly, so
a window's distribution is that of all that happened in it, never an average of averages.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from tuner.engines.scheduler.state import Ints
from tuner.live.prometheus import Counter, Distribution, Histogram, ServerMetrics

LATE = 5
"""Intervals that may lie between two readings; after more nobody knows what happened when."""

RUN_IN_S = 60.0
"""Readings before a window that the twin is given too, so that it begins as full as the server."""

RESTART_S = 1.0
"""Start times that differ by less are one start: they are rounded."""

MOST_RUNNING = 1e6
MOST_A_STEP = 20_000
"""Requests at a time, or between two readings, beyond which a counter has jumped."""

_PER_REQUEST: tuple[Distribution, ...] = ("ttft_s", "e2el_s", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class Step:
    """One engine from one reading to the next."""

    begin_s: float
    end_s: float
    in_flight: float
    """Running and waiting at the begin; 0 where the engine restarted since."""

    running: float
    """At the end, as the next two."""

    waiting: float
    kv_cache_usage: float | None
    counters: Mapping[Counter, float]
    finish_reasons: Mapping[str, float]
    distributions: Mapping[Distribution, Histogram]
    restarted: bool

    @property
    def finished(self) -> float:
        return sum(self.finish_reasons.values())

    @property
    def failed(self) -> float:
        return sum(self.finish_reasons.get(reason, 0.0) for reason in ("abort", "error"))

    @property
    def is_possible(self) -> bool:
        counts = (self.distributions[n].count for n in _PER_REQUEST if n in self.distributions)
        return max(self.finished, *counts, 0.0) <= MOST_A_STEP


def step(before: ServerMetrics, after: ServerMetrics, begin_s: float, end_s: float) -> Step:
    """Return the increments between two readings of one engine.

    After a restart all of ``after`` is new. What the earlier reading lacks has no increment.
    """
    restarted = was_restarted(before, after)
    in_flight = 0.0 if restarted else _requests(before, "running") + _requests(before, "waiting")
    return Step(
        begin_s=begin_s,
        end_s=end_s,
        in_flight=in_flight,
        running=_requests(after, "running"),
        waiting=_requests(after, "waiting"),
        kv_cache_usage=after.gauges.get("kv_cache_usage"),
        counters={
            name: value - (0.0 if restarted else before.counters[name])
            for name, value in after.counters.items()
            if restarted or name in before.counters
        },
        finish_reasons={
            reason: value - (0.0 if restarted else before.finish_reasons.get(reason, 0.0))
            for reason, value in after.finish_reasons.items()
            if restarted or before.finish_reasons
        },
        distributions={
            name: histogram if restarted else histogram.since(before.distributions[name])
            for name, histogram in after.distributions.items()
            if restarted or name in before.distributions
        },
        restarted=restarted,
    )


def _requests(metrics: ServerMetrics, name: str) -> float:
    value = metrics.gauges.get("running" if name == "running" else "waiting", 0.0)
    return min(MOST_RUNNING, max(0.0, value))


def was_restarted(before: ServerMetrics, after: ServerMetrics) -> bool:
    """Whether a counter fell, or the process reports another start time."""
    starts = [each.started_s for each in (before, after) if each.started_s is not None]
    if len(starts) == 2 and abs(starts[1] - starts[0]) > RESTART_S:
        return True
    counters = (after.counters.get(n, v) < v for n, v in before.counters.items())
    histograms = (
        after.distributions[n].count < h.count
        for n, h in before.distributions.items()
        if n in after.distributions
    )
    return any(counters) or any(histograms)


def total(steps: Iterable[Step], name: Distribution) -> Histogram | None:
    """Return a distribution over several steps; None where none of them has it."""
    found = [each.distributions[name] for each in steps if name in each.distributions]
    return reduce(Histogram.plus, found) if found else None


def arrivals(steps: Iterable[Step]) -> Ints:
    """Return how many requests arrived in each step, those whose client left included.

    A request that got its first token no longer waits. So as many arrive as get one, and as many
    as wait more than before. Where a server does not count first tokens, it is those that finish,
    and those that are in flight more than before. Gauges that are read a moment apart make
    negative counts: these are taken from what follows.
    """
    counts, waiting = [], None
    for each in steps:
        first = each.distributions.get("ttft_s")
        if first is not None and waiting is not None and not each.restarted:
            counts.append(first.count + each.waiting - waiting)
        else:
            counts.append(each.finished + each.running + each.waiting - each.in_flight)
        waiting = each.waiting
    whole = np.rint(np.clip(counts, -MOST_A_STEP, MOST_A_STEP)).astype(np.int64)
    upto = np.maximum.accumulate(np.maximum(0, np.cumsum(whole)))
    return np.diff(upto, prepend=0)


@dataclass(frozen=True, slots=True)
class ScrapeWindow:
    """The steps of every engine over one stretch of time, and those just before it."""

    begin_s: float
    end_s: float
    steps: Mapping[str, tuple[Step, ...]]
    """Engine → its steps."""

    run_in: Mapping[str, tuple[Step, ...]]
    """Engine → the steps before, without a gap and since its last restart."""

    restarts: int = 0

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def every_step(self) -> list[Step]:
        return [each for steps in self.steps.values() for each in steps]

    @property
    def arrived(self) -> int:
        """Requests that arrived, at all engines."""
        return sum(
            int(arrivals((*self.run_in[name][-1:], *steps))[-len(steps) :].sum())
            for name, steps in self.steps.items()
        )


@dataclass(slots=True)
class WindowMaker:
    """Makes windows of readings as they come. Windows end on a grid, whatever was missed."""

    length_s: float
    every_s: float
    missed: int = 0
    """Stretches that are in no window, because readings were missing."""

    restarts: int = 0
    """Of the server, also while nothing answered."""

    is_several: bool = False
    """Whether a process answered that another one had followed: there are several of them."""

    _starts: list[float] = field(default_factory=list)
    _before: tuple[float, Mapping[str, ServerMetrics]] | None = None
    _rounds: list[Mapping[str, Step]] = field(default_factory=list)
    _origin_s: float = 0.0
    _number: int = 0
    _begin_s: float | None = None
    _restarts_seen: int = 0

    def add(self, at_s: float, engines: Mapping[str, ServerMetrics]) -> ScrapeWindow | None:
        """Take a reading in; return the window that it completes."""
        self._notice_start(engines)
        before, self._before = self._before, (at_s, engines)
        if before is None:
            self._origin_s = at_s
            return None
        begin_s, were = before
        steps = {
            name: step(were[name], engines[name], begin_s, at_s)
            for name in were.keys() & engines.keys()
        }
        self.restarts += any(each.restarted for each in steps.values())
        # within half an interval: or a window lasts one step longer whenever a reading is early
        number = int((at_s - self._origin_s + self.every_s / 2) // self.length_s)
        ends, self._number = number > self._number, number
        is_late = at_s - begin_s > LATE * self.every_s
        is_possible = all(each.is_possible for each in steps.values())
        if is_late or engines.keys() != were.keys() or not is_possible:
            self.missed += 1
            self._rounds, self._begin_s = [], None
            return None
        self._rounds.append(steps)
        if self._begin_s is None:
            self._begin_s = begin_s
        if not ends or at_s - self._begin_s < self.length_s / 2:
            return None
        window_begin_s, self._begin_s = self._begin_s, at_s
        return self._window(window_begin_s, at_s)

    def _notice_start(self, engines: Mapping[str, ServerMetrics]) -> None:
        started_s = next((each.started_s for each in engines.values()), None)
        if started_s is None:
            return
        known = [abs(each - started_s) <= RESTART_S for each in self._starts]
        if not any(known):
            self._starts = [*self._starts[-63:], started_s]
        elif not known[-1]:
            self.is_several = True

    def _window(self, begin_s: float, end_s: float) -> ScrapeWindow:
        least_s = begin_s - max(RUN_IN_S, self.length_s)
        self._rounds = [one for one in self._rounds if _end_s(one) > least_s]
        inside = [one for one in self._rounds if _end_s(one) > begin_s]
        before = self._rounds[: len(self._rounds) - len(inside)]
        new, self._restarts_seen = self.restarts - self._restarts_seen, self.restarts
        return ScrapeWindow(
            begin_s,
            end_s,
            steps={name: tuple(one[name] for one in inside) for name in inside[0]},
            run_in={name: _since_restart([one[name] for one in before]) for name in inside[0]},
            restarts=new,
        )


def _end_s(steps: Mapping[str, Step]) -> float:
    return next(iter(steps.values())).end_s


def _since_restart(steps: list[Step]) -> tuple[Step, ...]:
    first = max((i for i, each in enumerate(steps) if each.restarted), default=0)
    return tuple(steps[first:])
