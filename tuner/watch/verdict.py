"""Is what was promised still so, window by window? Still valid, drifting, re-tune now. Pure.

Every window is held against what the twin in the profile says of today's own requests, so that
heavier traffic shows as traffic and a slower server as slower than its law. Alarms are valid
however often one looks (``watch.sequential``). Whether the choice still holds is the twin's to say:
traffic that changed and would choose the same cap is drift, and no reason to tune again.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tuner.prometheus import Distribution
from tuner.twin.simulation import Traffic, simulate
from tuner.watch.choice import Choice, choice_for, is_answerable, joined
from tuner.watch.drift import DISTANCE, TrafficWatch
from tuner.watch.expected import Compared, compared, tail_bound
from tuner.watch.promised import Promised
from tuner.watch.sequential import Interval, Limits, Monitor, State
from tuner.watch.watched import Seen, Totals, seen
from tuner.watch.windows import Window, total

Verdict = Literal["still valid", "drifting", "re-tune now", "not enough evidence"]

FAR_SLOWER = 0.25
"""A server that is surely so much slower than its law is not the engine that was tuned."""

TTFT_EXCESS = 0.10
"""So many more of all requests than the twin says may wait longer than the bound for their first
token, where nothing queues."""

WANDERS = 2.0
"""Standard deviations of the machine's own wandering that are added to the tolerance."""

ASK_EVERY = 30
"""Windows between two questions to the twin whether the choice holds."""

MOST_ASKED = 2000
"""The newest requests that it is asked about, of one engine."""

LEAST_WINDOWS = 12
LEAST_REQUESTS = 50
"""Evidence without which no verdict but an alarm is given."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure so far: its mean since it last changed, with 95 % interval, and its limits."""

    state: State
    value: Interval | None
    low: float | None
    high: float
    windows: int
    changed_at: int
    evidence: float


@dataclass(slots=True)
class Watch:
    """What the windows say so far. Its memory is bounded."""

    promised: Promised
    seed: int = 0
    windows: int = 0
    requests: int = 0
    finished: int = 0
    failed: int = 0
    restarts: int = 0
    most_running: float = 0.0
    choice: Choice | None = None
    totals: Totals = field(default_factory=Totals)
    traffic: TrafficWatch = field(init=False)
    server: dict[str, Monitor] = field(init=False)
    _answerable: bool | None = None
    _bounds: Mapping[Distribution, float] | None = None
    _recent: dict[str, deque[Traffic]] = field(default_factory=dict)
    _asked_at: int = 0

    def __post_init__(self) -> None:
        self.traffic = TrafficWatch(self.promised.reference)
        limit = math.log1p(self.promised.tolerance) + WANDERS * self.promised.wander
        self.server = {
            "slowness": Monitor(Limits(-math.inf, limit, reach=0.3, back=0.15), 0.05),
            "ttft_excess": Monitor(Limits(-math.inf, TTFT_EXCESS, reach=0.5, back=0.4), 0.1),
        }

    def add(self, window: Window) -> Seen:
        """Take a window in."""
        # a server that runs more at a time than it should is another one: its batches are its own
        most = min(int(self.most_running), len(self.promised.twin.law.decode_s) - 1)
        found = self.compared(window, cap=max(self.promised.max_num_seqs, most))
        values = {
            "slowness": None if found.slowness is None else math.log(found.slowness),
            "ttft_excess": None if _queued(window) else found.ttft_excess,
        }
        news = [self.traffic.add(window)]
        news += [
            self.server[name].add(value) for name, value in values.items() if value is not None
        ]
        for name, traffic in zip(window.steps, found.traffic, strict=True):
            self._remember(name, traffic)
        shown = self.account(window, found)
        if self.windows >= LEAST_WINDOWS and (
            any(news) or self.windows - self._asked_at >= ASK_EVERY
        ):
            self.ask()
        return shown

    def compared(self, window: Window, *, cap: int) -> Compared:
        """Hold a window against the twin at a cap; nothing is taken in."""
        if self._bounds is None:
            self._bounds = self._tail_bounds(window)
        seed = self.seed * 1_000_003 + self.windows
        return compared(window, self.promised.twin, cap, self._bounds, seed=seed)

    def account(self, window: Window, found: Compared) -> Seen:
        """Count a window that was held against the twin, and return what it showed."""
        self.windows += 1
        self.restarts += window.restarts
        most = max((one.running for one in window.every_step), default=0.0)
        self.most_running = max(self.most_running, most)
        self.totals.add(window, found)
        shown = seen(self.windows, window, found)
        self.requests += shown.arrived
        self.finished += shown.finished
        self.failed += shown.failed
        return shown

    def ask(self) -> None:
        """Ask the twin whether today's traffic would choose another cap."""
        promised = self.promised
        question = (promised.slo, promised.max_num_seqs, promised.caps)
        if self._answerable is None:
            self._answerable = is_answerable(promised.twin, *question)
        self._asked_at = self.windows
        busiest = max(self._recent.values(), key=lambda parts: sum(map(len, parts)), default=None)
        if not self._answerable or not busiest:
            return
        traffic = joined(list(busiest), MOST_ASKED)
        if len(traffic) < LEAST_REQUESTS:
            return
        self.choice = choice_for(traffic, promised.twin, *question, slowness=self.slowness_now)

    @property
    def slowness_now(self) -> float:
        """How slow the server is now, if that is beyond the limit; else the law's speed."""
        monitor = self.server["slowness"]
        value = monitor.interval()
        return math.exp(value.value) if monitor.is_beyond and value is not None else 1.0

    @property
    def monitors(self) -> Mapping[str, Monitor]:
        return {**self.server, **{str(key): one for key, one in self.traffic.monitors.items()}}

    @property
    def beyond(self) -> list[str]:
        """The measures that are beyond their limits."""
        return [name for name, monitor in self.monitors.items() if monitor.is_beyond]

    @property
    def runs_another_cap(self) -> bool:
        return self.most_running > self.promised.max_num_seqs

    @property
    def verdict(self) -> Verdict:
        differs = bool(self.beyond or self.distant_lengths)
        changed = self.choice is not None and self.choice.is_another
        if self.is_far_slower or (differs and changed):
            return "re-tune now"
        if differs or self.runs_another_cap:
            return "drifting"
        if self.lacking:
            return "not enough evidence"
        return "still valid"

    @property
    def is_far_slower(self) -> bool:
        """Whether the server is surely so slow that its law is another engine's."""
        monitor = self.server["slowness"]
        value = monitor.interval()
        far = math.log1p(FAR_SLOWER) + self.promised.wander
        return monitor.state == "above" and value is not None and value.low > far

    @property
    def distant_lengths(self) -> list[Literal["input_length", "output_length"]]:
        """The lengths whose distribution is surely another one."""
        from_profile: list[Literal["input_length", "output_length"]] = []
        for name in ("input_length", "output_length"):
            found = self.traffic.distance(name)
            if found is not None and found.low > DISTANCE:
                from_profile.append(name)
        return from_profile

    @property
    def lacking(self) -> list[str]:
        """The measures of which too little is known to call the profile valid.

        Of traffic too little is known only as long as the twin has not said that the choice holds
        for it.
        """
        lacking = [] if self.server["slowness"].state == "within" else ["slowness"]
        holds = self.choice is not None and self.choice.holds
        if not holds:
            lacking += [
                name
                for name in ("rate", "input_length", "output_length")
                if self.traffic.monitors[name].state == "unknown"
            ]
        if self.windows < LEAST_WINDOWS or self.requests < LEAST_REQUESTS:
            lacking.append("requests")
        return lacking

    def measures(self) -> dict[str, Measured]:
        """Return every measure: the server's as ratio or share, the traffic's as ratios."""
        return {
            name: measured(monitor, logarithmic=name == "slowness")
            for name, monitor in self.monitors.items()
        }

    def _tail_bounds(self, window: Window) -> Mapping[Distribution, float]:
        """Return the bounds of the server's histograms that the promised tails lie below."""
        promised = self.promised
        twin = promised.twin
        replay = simulate(twin.traffic, twin.law, twin.shape, max_num_seqs=promised.max_num_seqs)
        found: dict[Distribution, float] = {}
        for name, said_s in (("ttft_s", replay.ttft_s), ("e2el_s", replay.e2el_s)):
            counted = total(window.every_step, "ttft_s" if name == "ttft_s" else "e2el_s")
            known = said_s[~np.isnan(said_s)]
            if counted is not None and len(known):
                key: Distribution = "ttft_s" if name == "ttft_s" else "e2el_s"
                found[key] = tail_bound(known, counted.bounds)
        return found

    def _remember(self, engine: str, traffic: Traffic) -> None:
        parts = self._recent.setdefault(engine, deque())
        parts.append(traffic)
        while sum(map(len, parts)) - len(parts[0]) >= MOST_ASKED or len(parts) > MOST_ASKED:
            parts.popleft()


def measured(monitor: Monitor, *, logarithmic: bool) -> Measured:
    """Return a measure so far; one that is watched as a logarithm, as the ratio that it means."""

    def plain(value: float) -> float:
        return math.exp(value) if logarithmic else value

    found, low = monitor.interval(), monitor.limits.low
    return Measured(
        state=monitor.state,
        value=None
        if found is None
        else Interval(plain(found.value), plain(found.low), plain(found.high)),
        low=plain(low) if math.isfinite(low) else None,
        high=plain(monitor.limits.high),
        windows=monitor.windows,
        changed_at=monitor.changed_at,
        evidence=monitor.evidence,
    )


def _queued(window: Window) -> bool:
    """Whether somebody waited at a scrape: then load and speed explain how long."""
    before = [one for steps in window.run_in.values() for one in steps[-1:]]
    return any(one.waiting > 0 for one in (*before, *window.every_step))
