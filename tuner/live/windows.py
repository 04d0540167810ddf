"""Windows of a server's counters, and requests like those of a window. Pure, seeded.

All numbers are increments between readings of /metrics: of counters, and of the buckets of
histograms. They add up exactly, so a window's distribution is that of all that happened in it.

Requests like a window's arrive as its own did, with its mean lengths. The profile's requests are
drawn with weights that give the window's share of every bucket of lengths (iterative proportional
fitting; Deming and Stephan, 1940), so that an output stays with its prompt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from tuner.engines.scheduler.state import Ints
from tuner.live.prometheus import RESTART_S, Distribution, Gauge, Histogram, ServerMetrics
from tuner.twin.simulation import Traffic

LATE = 5
"""Intervals that may lie between two readings; after more nobody knows what happened when."""

RUN_IN_S = 60.0
"""Readings before a window that the twin is given too, so that it begins as full as the server."""

MOST_RUNNING, MOST_A_STEP = 1e6, 20_000
"""Requests at a time, or between two readings, beyond which a counter has jumped."""

RAKES = 30
MOST_REQUESTS, MOST_TOKENS = 20_000, 10_000_000.0
"""Of a server that claims more in a window, so many are simulated."""

_PER_REQUEST: tuple[Distribution, ...] = ("ttft_s", "e2el_s", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class Step:
    """One engine from one reading to the next."""

    begin_s: float
    end_s: float
    in_flight: float
    """Running and waiting at the begin; 0 where the engine restarted since."""

    more: ServerMetrics
    """The increments; its gauges are of the end."""

    restarted: bool

    @classmethod
    def of(
        cls, before: ServerMetrics, after: ServerMetrics, begin_s: float, end_s: float
    ) -> "Step":
        restarted = after.restarted_since(before)
        in_flight = 0.0 if restarted else _gauge(before, "running") + _gauge(before, "waiting")
        return cls(begin_s, end_s, in_flight, after.since(before), restarted)

    @property
    def running(self) -> float:
        return _gauge(self.more, "running")

    @property
    def waiting(self) -> float:
        return _gauge(self.more, "waiting")

    @property
    def finished(self) -> float:
        return sum(self.more.finish_reasons.values())

    @property
    def failed(self) -> float:
        return sum(self.more.finish_reasons.get(reason, 0.0) for reason in ("abort", "error"))

    @property
    def is_possible(self) -> bool:
        known = self.more.distributions
        counts = (known[name].count for name in _PER_REQUEST if name in known)
        return max(self.finished, *counts, 0.0) <= MOST_A_STEP


def _gauge(metrics: ServerMetrics, name: Gauge) -> float:
    return min(MOST_RUNNING, max(0.0, metrics.gauges.get(name, 0.0)))


def total(steps: Iterable[Step], name: Distribution) -> Histogram | None:
    """Return a distribution over several steps; None where none of them has it."""
    result = [step.more.distributions[name] for step in steps if name in step.more.distributions]
    return reduce(Histogram.plus, result) if result else None


def arrivals(steps: Iterable[Step]) -> Ints:
    """Return how many requests arrived in each step, those whose client left included.

    A request that got its first token no longer waits. So as many arrive as get one, and as many
    as wait more than before. Where a server does not count first tokens, it is those that finish,
    and those that are in flight more than before. Gauges that are read a moment apart make
    negative counts: these are taken from what follows.
    """
    counts, waiting = [], None
    for each in steps:
        first = each.more.distributions.get("ttft_s")
        if first is not None and waiting is not None and not each.restarted:
            counts.append(first.count + each.waiting - waiting)
        else:
            counts.append(each.finished + each.running + each.waiting - each.in_flight)
        waiting = each.waiting
    rounded = np.rint(np.clip(counts, -MOST_A_STEP, MOST_A_STEP)).astype(np.int64)
    upto = np.maximum.accumulate(np.maximum(0, np.cumsum(rounded)))
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

    def traffic(self, stored: Traffic, *, seed: int) -> dict[str, Traffic]:
        """Return engine → requests like those of the window and its run-in."""
        return {
            name: traffic_like((*self.run_in[name], *steps), stored, seed=seed)
            for name, steps in self.steps.items()
        }


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
            name: Step.of(were[name], engines[name], begin_s, at_s)
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
        self._rounds = [each for each in self._rounds if _end_s(each) > least_s]
        inside = [each for each in self._rounds if _end_s(each) > begin_s]
        before = self._rounds[: len(self._rounds) - len(inside)]
        new, self._restarts_seen = self.restarts - self._restarts_seen, self.restarts
        return ScrapeWindow(
            begin_s,
            end_s,
            steps={name: tuple(each[name] for each in inside) for name in inside[0]},
            run_in={name: _since_restart([each[name] for each in before]) for name in inside[0]},
            restarts=new,
        )


def _end_s(steps: Mapping[str, Step]) -> float:
    return next(iter(steps.values())).end_s


def _since_restart(steps: list[Step]) -> tuple[Step, ...]:
    first = max((i for i, each in enumerate(steps) if each.restarted), default=0)
    return tuple(steps[first:])


# Requests like those of a window


def traffic_like(steps: Sequence[Step], stored: Traffic, *, seed: int) -> Traffic:
    """Return requests that arrive as those of these steps did, with lengths like theirs.

    Those in flight at the begin arrive before it, spread over the time that Little's law says they
    have been there.
    """
    rng = np.random.default_rng(seed)
    counts = np.minimum(arrivals(steps), MOST_REQUESTS // len(steps))
    begin_s, end_s = steps[0].begin_s, steps[-1].end_s
    waited = round(min(MOST_REQUESTS, steps[0].in_flight))
    rate_rps = max(1.0, float(counts.sum())) / (end_s - begin_s)
    times = [begin_s - rng.uniform(0, waited / rate_rps, waited)]
    times += [
        rng.uniform(each.begin_s, each.end_s, count)
        for each, count in zip(steps, counts.tolist(), strict=True)
    ]
    arrival_s = np.sort(np.concatenate(times))
    inputs, outputs = total(steps, "input_length"), total(steps, "output_length")
    rows = _rows_like(inputs, outputs, stored, len(arrival_s), rng)
    input_length = _with_mean(stored.input_length[rows], inputs)
    cached = (prefix_share(steps) or 0.0) * input_length
    output_length = _with_mean(stored.output_length[rows], outputs)
    return Traffic(arrival_s, input_length, output_length, cached.astype(np.int64))


def prefix_share(steps: Sequence[Step]) -> float | None:
    """Return the share of prompt tokens that came from the prefix cache; None without a count."""
    queried = sum(each.more.counters.get("prefix_cache_queries", 0.0) for each in steps)
    hit = sum(each.more.counters.get("prefix_cache_hits", 0.0) for each in steps)
    return min(1.0, hit / queried) if queried > 0 else None


def _rows_like(
    inputs: Histogram | None,
    outputs: Histogram | None,
    stored: Traffic,
    count: int,
    rng: np.random.Generator,
) -> Ints:
    """Return rows of stored requests in random order, with today's share in every bucket."""
    margins = [
        (
            np.searchsorted(histogram.bounds, lengths),
            np.diff(histogram.counts, prepend=0.0) / histogram.count,
        )
        for histogram, lengths in ((inputs, stored.input_length), (outputs, stored.output_length))
        if histogram is not None and histogram.count
    ]
    weight = np.ones(len(stored))
    for _ in range(RAKES):
        for bucket, share in margins:
            have = np.bincount(bucket, weight, minlength=len(share))
            weight *= np.divide(share, have, out=np.zeros(len(share)), where=have > 0)[bucket]
    if not weight.sum() > 0:  # all lengths are new
        weight = np.ones(len(stored))
    upto = np.cumsum(weight)
    at = (np.arange(count) + rng.random()) / max(1, count) * upto[-1]
    rows = np.minimum(np.searchsorted(upto, at, side="right"), len(stored) - 1)
    return np.asarray(rng.permutation(rows), np.int64)


def _with_mean(lengths: Ints, counted: Histogram | None) -> Ints:
    if counted is None or not counted.count or not len(lengths):
        return lengths
    scaled = lengths * (min(MOST_TOKENS, counted.mean) / lengths.mean())
    return np.asarray(np.clip(np.rint(scaled), 1, MOST_TOKENS), np.int64)
