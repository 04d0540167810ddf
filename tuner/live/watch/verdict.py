"""Is what was promised still so, window by window? Still valid, drifting, or re-tune now. Pure.

Every window is held against what the twin in the profile says of today's own requests. So heavier
traffic shows as traffic, and a slower server as slower than its law. Alarms are valid however often
one looks (``sequential.py``). The twin says whether the choice still holds: traffic that has
changed and would choose the same cap is drift, and no reason to tune again.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tuner.live.prometheus import Distribution
from tuner.live.watch.choice import CapCheck, choice_for, is_answerable, joined
from tuner.live.watch.drift import DISTANCE, LENGTHS, Length, TrafficWatch
from tuner.live.watch.expected import Compared, compared, has_bounds, tail_bounds
from tuner.live.watch.promised import Promised
from tuner.live.watch.required import WatchedRequirement, watched
from tuner.live.watch.sequential import Interval, Monitor, MonitorLimits, State
from tuner.live.watch.watched import RunningSeen, Totals, WindowSummary, seen
from tuner.live.watch.windows import ScrapeWindow
from tuner.twin.simulation import Traffic

Verdict = Literal["still valid", "drifting", "re-tune now", "not enough evidence"]

FAR_SLOWER = 0.25
"""A server that is surely so much slower than its law is not the engine that was tuned."""

SPEED_REACH = 0.15
"""Distance to either side of a limit up to which a window's slowdown counts, as a logarithm."""

TTFT_EXCESS = 0.10
"""So many more of all requests than the twin says may wait longer than the bound for their first
token, where nothing queues."""

SPEED_SDS = 2.0
"""Standard deviations of the machine's own speed that are added to the tolerance."""

ASK_EVERY = 30
"""Windows between two questions to the twin whether the choice holds."""

MOST_ASKED = 2000
"""The newest requests that it is asked about, of one engine."""

LEAST_WINDOWS = 12
LEAST_REQUESTS = 50
"""Evidence without which no verdict but an alarm is given."""


@dataclass(frozen=True, slots=True)
class MonitorReading:
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
    """The state of a watch: what the windows say so far. Its memory is bounded."""

    promised: Promised
    seed: int = 0
    windows: int = 0
    requests: int = 0
    finished: int = 0
    failed: int = 0
    running: RunningSeen = field(default_factory=RunningSeen)
    choice: CapCheck | None = None
    totals: Totals = field(default_factory=Totals)
    traffic: TrafficWatch = field(init=False)
    server: dict[str, Monitor] = field(init=False)
    far: Monitor = field(init=False)
    """Of the same slowdown, held against FAR_SLOWER."""

    required: list[WatchedRequirement] = field(init=False)
    """What is required and can be told of a server that runs."""

    _answerable: bool | None = None
    _bounds: Mapping[Distribution, float] | None = None
    _recent: dict[str, deque[Traffic]] = field(default_factory=dict)
    _asked_at: int = 0

    def __post_init__(self) -> None:
        self.traffic = TrafficWatch(self.promised.reference)
        self.server = server_monitors(self.promised)
        self.required = watched(self.promised.requirements)
        far = max(
            self.server["slowness"].limits.high, math.log1p(FAR_SLOWER) + self.promised.speed_sd
        )
        self.far = Monitor(MonitorLimits(-math.inf, far, SPEED_REACH), 0.05)

    def add(self, window: ScrapeWindow) -> WindowSummary:
        """Take a window in."""
        self.running.add(window)
        for required in self.required:
            required.add(window)
        # a server that runs more at a time than it should is another one: its batches are its own
        most = min(int(self.running.most), len(self.promised.twin.law.decode_s) - 1)
        found = self.compared(window, cap=max(self.promised.max_num_seqs, most))
        values = server_values(window, found)
        news = [self.traffic.add(window)]
        news += [
            self.server[name].add(value) for name, value in values.items() if value is not None
        ]
        if (slowdown := values["slowness"]) is not None:
            news.append(self.far.add(slowdown))
        for name, traffic in zip(window.steps, found.traffic, strict=True):
            self._remember(name, traffic)
        shown = self.account(window, found)
        if self.windows >= LEAST_WINDOWS and (
            any(news) or self.windows - self._asked_at >= ASK_EVERY
        ):
            self.ask()
        return shown

    def compared(self, window: ScrapeWindow, *, cap: int, kv_blocks: int | None = None) -> Compared:
        """Hold a window against the twin at a cap, and with this memory; nothing is taken in."""
        if self._bounds is None or not has_bounds(window, self._bounds):
            self._bounds = tail_bounds(window, self.promised.twin, self.promised.max_num_seqs)
        seed = self.seed * 1_000_003 + self.windows
        twin = self.promised.twin
        if kv_blocks is not None:
            twin = replace(twin, shape=replace(twin.shape, kv_blocks=kv_blocks))
        return compared(window, twin, cap, self._bounds, seed=seed)

    def account(self, window: ScrapeWindow, found: Compared) -> WindowSummary:
        """Count a window that was held against the twin, and return what it showed."""
        self.windows += 1
        self.totals.add(window, found)
        shown = seen(self.windows, window, found)
        self.requests += shown.arrived
        self.finished += shown.finished
        self.failed += shown.failed
        return shown

    def ask(self) -> None:
        """Ask the twin whether today's traffic would choose another cap, once after a window."""
        if self._asked_at == self.windows and self._answerable is not None:
            return
        promised = self.promised
        question = (promised.slo, promised.max_num_seqs, promised.caps)
        if self._answerable is None:
            self._answerable = is_answerable(promised.twin, *question, headroom=promised.headroom)
        self._asked_at = self.windows
        busiest = max(self._recent.values(), key=lambda parts: sum(map(len, parts)), default=None)
        if not self._answerable or not busiest:
            return
        traffic = joined(list(busiest), MOST_ASKED)
        if len(traffic) < LEAST_REQUESTS:
            return
        self.choice = choice_for(
            traffic,
            promised.twin,
            *question,
            headroom=promised.headroom,
            slowdown=self.slowdown_now,
        )

    @property
    def slowdown_now(self) -> float:
        """Times as long as its law that the server takes now; 1 unless that is beyond the limit."""
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
        return self.running.most > self.promised.max_num_seqs

    @property
    def verdict(self) -> Verdict:
        differs = bool(self.beyond or self.distant_lengths)
        changed = self.choice is not None and self.choice.is_another
        if self.is_far_slower or self.broken or (differs and changed):
            return "re-tune now"
        if differs or self.runs_another_cap:
            return "drifting"
        if self.lacking:
            return "not enough evidence"
        return "still valid"

    @property
    def broken(self) -> list[WatchedRequirement]:
        """The requirements that are surely not kept."""
        return [one for one in self.required if one.state == "above"]

    @property
    def is_far_slower(self) -> bool:
        """Whether the server is surely so slow that its law is another engine's."""
        return self.far.is_beyond

    @property
    def distant_lengths(self) -> list[Length]:
        """The lengths whose distribution is surely another one."""
        distances = {name: self.traffic.distance(name) for name in LENGTHS}
        return [name for name, one in distances.items() if one and one.low > DISTANCE]

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
        if any(one.windows and one.state == "unknown" for one in self.required):
            lacking.append("required")
        return lacking

    def measures(self) -> dict[str, MonitorReading]:
        """Return every measure: the server's as ratio or share, the traffic's as ratios."""
        return {
            name: measured(
                monitor,
                logarithmic=name == "slowness",
                least=-math.inf if name in self.server else 0.0,
            )
            for name, monitor in self.monitors.items()
        }

    def _remember(self, engine: str, traffic: Traffic) -> None:
        parts = self._recent.setdefault(engine, deque())
        parts.append(traffic)
        while sum(map(len, parts)) - len(parts[0]) >= MOST_ASKED or len(parts) > MOST_ASKED:
            parts.popleft()


def server_monitors(promised: Promised) -> dict[str, Monitor]:
    """Return what holds a server against its promise: speed, and late first tokens."""
    limit = math.log1p(promised.tolerance) + SPEED_SDS * promised.speed_sd
    return {
        "slowness": Monitor(MonitorLimits(-math.inf, limit, SPEED_REACH), 0.05),
        "ttft_excess": Monitor(MonitorLimits(-math.inf, TTFT_EXCESS, reach=0.4), 0.1),
    }


def server_values(window: ScrapeWindow, found: Compared) -> dict[str, float | None]:
    """Return one window's value of each of ``server_monitors``; None where it has none."""
    return {
        "slowness": None if found.slowdown is None else math.log(found.slowdown),
        "ttft_excess": None if _queued(window) else found.ttft_excess,
    }


def measured(monitor: Monitor, *, logarithmic: bool, least: float = -math.inf) -> MonitorReading:
    """Return a measure so far; one that is watched as a logarithm, as the ratio that it means.

    ``least`` is the least that it can be, whatever an interval says.
    """

    def plain(value: float) -> float:
        return math.exp(value) if logarithmic else value

    found, low = monitor.interval(), monitor.limits.low
    return MonitorReading(
        state=monitor.state,
        value=None
        if found is None
        else Interval(plain(found.value), max(least, plain(found.low)), plain(found.high)),
        low=plain(low) if math.isfinite(low) else None,
        high=plain(monitor.limits.high),
        windows=monitor.windows,
        changed_at=monitor.changed_at,
        evidence=monitor.evidence,
    )


def _queued(window: ScrapeWindow) -> bool:
    """Whether somebody waited at a scrape: then load and speed explain how long."""
    before = [one for steps in window.run_in.values() for one in steps[-1:]]
    return any(one.waiting > 0 for one in (*before, *window.every_step))
