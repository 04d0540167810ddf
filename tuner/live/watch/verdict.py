"""Does the promise still hold? Still valid, drifting, or re-tune now. Pure.

Every window is compared with what the twin in the profile predicts for today's own requests. So
heavier traffic shows as traffic, and a slower server as slower than its law. The twin says whether
the choice still holds: traffic that has changed and would choose the same cap is drift, and no
reason to tune again.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from tuner.live.watch.expected import Compared, compared, ttft_bound_s
from tuner.live.watch.monitor import BATCH_WINDOWS, Interval, Limits, Monitor, State
from tuner.live.watch.seen import Totals, WindowSummary, seen
from tuner.live.watch.traffic import LengthsSeen, ReferenceTraffic, reading
from tuner.live.watch.windows import ScrapeWindow, total
from tuner.profile.stored_twin import StoredTwin
from tuner.traffic.slo import Slo
from tuner.twin.draws import PRINTED
from tuner.twin.objective import choose
from tuner.twin.simulation import Traffic

Verdict = Literal["still valid", "drifting", "re-tune now", "not enough evidence"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

FAR_SLOWER = 0.25
"""A server that is surely so much slower than its law is not the engine that was tuned."""

TTFT_EXCESS = 0.10
"""So many more of all requests than the twin predicts may wait longer than the bound for their
first token, where nothing queues."""

SPEED_SDS = 2.0
"""Standard deviations of the machine's own speed that are added to the tolerance."""

MOST_SPEED_SD = 0.10
"""Largest spread that is taken for a machine's own."""

PRIOR_SDS = {
    "slowness": 0.03, "ttft_excess": 0.05, "prefix_share": 0.03,
    "rate": 0.15, "input_length": 0.15, "output_length": 0.15,
}  # fmt: skip
"""How far batches of a minute usually spread."""

SURE = 0.95
"""Share of the laws that decides whether a choice holds."""

FEW_LAWS = 40
"""Laws under which the stored twin is asked about its own traffic: enough to tell 5 in 100."""

ASK_EVERY = 5
"""Batches between two questions to the twin whether the choice holds."""

MOST_ASKED = 2000
"""The newest requests that it is asked about, of one engine."""

MOST_ENGINES = 64
"""Engines whose requests are remembered."""

LEAST_WINDOWS = 12
LEAST_REQUESTS = 50
"""Evidence without which no verdict but an alarm is given."""


@dataclass(frozen=True, slots=True)
class Promised:
    """The parts of a profile that a watch compares a server with."""

    twin: StoredTwin
    slo: Slo
    max_num_seqs: int
    caps: tuple[int, ...]
    """Of its curve."""

    headroom: float
    """Times the captured load that the choice was made for besides."""

    reference: ReferenceTraffic
    tolerance: float

    @property
    def speed_sd(self) -> float:
        """How far the machine's speed may be from the law's level, as a standard deviation: how
        much the laws as likely differ, in the middle of the batch sizes that were seen."""
        twin = self.twin
        most = max(1, min(twin.extrapolated_from, len(twin.law.decode_s) - 1))
        levels = [
            np.log(law.decode_s[1 : most + 1] / twin.law.decode_s[1 : most + 1])
            for law in twin.laws
        ]
        return min(MOST_SPEED_SD, float(np.median(np.std(levels, axis=0)))) if levels else 0.0


@dataclass(frozen=True, slots=True)
class CapCheck:
    """The twin's view of the caps for some traffic."""

    best: int
    """By the law itself."""

    rightness: float
    """Share of the laws that might be true under which the profile's cap is right, or as good."""

    attainment: float
    """At the profile's cap, as the next one at the best."""

    best_attainment: float
    requests: int

    @property
    def holds(self) -> bool:
        return self.rightness >= SURE

    @property
    def is_another(self) -> bool:
        return self.rightness <= 1 - SURE


def choice_for(
    traffic: Traffic, promised: Promised, *, slowdown: float = 1.0, most: int = PRINTED
) -> CapCheck:
    """Ask about this traffic, and the headroom times of it, on a machine that is so many times
    slower than the law; under so many of the laws that might be true at most."""
    twin, cap = promised.twin, promised.max_num_seqs
    caps = sorted({one for one in promised.caps if one < len(twin.law.decode_s)} | {cap})
    weighed = twin.weighed(
        traffic, promised.slo, caps, headroom=promised.headroom, slowdown=slowdown, most=most
    )
    best = choose(weighed.values, weighed.raised, requests=len(traffic))
    return CapCheck(
        best=best,
        rightness=weighed.rightness.get(cap, 0.0),
        attainment=weighed.values[cap][0],
        best_attainment=weighed.values[best][0],
        requests=len(traffic),
    )


@dataclass(frozen=True, slots=True)
class MonitorReading:
    """One measure so far: its mean with a 95 % interval, and its limits."""

    state: State
    value: Interval | None
    low: float | None
    high: float
    batches: int


@dataclass(slots=True)
class Watch:
    """The state of a watch: what the windows show so far. Its memory is bounded."""

    promised: Promised
    seed: int = 0
    windows: int = 0
    requests: int = 0
    finished: int = 0
    failed: int = 0
    most_running: float = 0.0
    """Requests that an engine ran at a time."""

    choice: CapCheck | None = None
    totals: Totals = field(default_factory=Totals)
    lengths: LengthsSeen = field(init=False)
    monitors: dict[str, Monitor] = field(init=False)
    _far: float = field(init=False)
    """Logarithm of the slowdown from which on a server is another engine."""

    _answerable: bool | None = None
    _ttft_bound_s: float | None = None
    _batch: list[tuple[ScrapeWindow, Compared]] = field(default_factory=list)
    _recent: dict[str, deque[Traffic]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lengths = LengthsSeen(self.promised.reference)
        speed_sd = self.promised.speed_sd
        speed = math.log1p(self.promised.tolerance) + SPEED_SDS * speed_sd
        self._far = max(speed, math.log1p(FAR_SLOWER) + speed_sd)
        limits: dict[str, Limits] = {
            "slowness": Limits(-math.inf, speed),
            "ttft_excess": Limits(-math.inf, TTFT_EXCESS),
            **{str(name): one for name, one in self.promised.reference.limits.items()},
        }
        self.monitors = {name: Monitor(one, PRIOR_SDS[name]) for name, one in limits.items()}

    def add(self, window: ScrapeWindow) -> WindowSummary:
        """Take a window in."""
        self.windows += 1
        for one in window.every_step:
            self.most_running = max(self.most_running, one.running)
        result = self._compared(window)
        self.totals.add(window, result)
        self.lengths.add(window)
        for name, traffic in zip(window.steps, result.traffic, strict=True):
            self._remember(name, traffic)
        summary = seen(self.windows, window, result)
        self.requests += summary.arrived
        self.finished += summary.finished
        self.failed += summary.failed
        self._batch.append((window, result))
        if len(self._batch) == BATCH_WINDOWS:
            self._take_batch()
        return summary

    def _compared(self, window: ScrapeWindow) -> Compared:
        twin, cap = self.promised.twin, self.promised.max_num_seqs
        counted, bound = total(window.every_step, "ttft_s"), self._ttft_bound_s
        if bound is None or (counted is not None and bound not in counted.bounds):
            self._ttft_bound_s = ttft_bound_s(window, twin, cap)
        seed = self.seed * 1_000_003 + self.windows
        return compared(window, twin, cap, self._ttft_bound_s, seed=seed)

    def _take_batch(self) -> None:
        """Take what the windows of a batch show together into the monitors."""
        before = self.beyond
        slow = [math.log(one.slowdown) for _, one in self._batch if one.slowdown is not None]
        late = [
            one.ttft_excess
            for window, one in self._batch
            if one.ttft_excess is not None and not _queued(window)
        ]
        windows = [window for window, _ in self._batch]
        traffic = reading(windows, self.promised.reference)
        values = {str(name): value for name, value in traffic.items()}
        if not self.runs_another_cap:  # whose batches are not the twin's
            values |= {"slowness": float(np.mean(slow))} if slow else {}
            values |= {"ttft_excess": float(np.mean(late))} if late else {}
        self._batch = []
        for name, value in values.items():
            self.monitors[name].add(value)
        batches = self.windows // BATCH_WINDOWS
        if self.windows >= LEAST_WINDOWS and (
            self.beyond != before or self.choice is None or batches % ASK_EVERY == 0
        ):
            self.ask()

    def ask(self) -> None:
        """Ask the twin whether today's traffic would choose another cap. What the stored twin does
        not answer as the sweep did for its own traffic, it is not asked."""
        if self._answerable is None:
            own = choice_for(self.promised.twin.traffic, self.promised, most=FEW_LAWS)
            self._answerable = not own.is_another
        busiest = max(self._recent.values(), key=lambda parts: sum(map(len, parts)), default=None)
        if not self._answerable or not busiest:
            return
        traffic = _joined(list(busiest))
        if len(traffic) >= LEAST_REQUESTS:
            self.choice = choice_for(traffic, self.promised, slowdown=self.slowdown_now)

    @property
    def slowdown_now(self) -> float:
        """Times as long as its law that the server takes now; 1 unless that is beyond the limit."""
        monitor = self.monitors["slowness"]
        value = monitor.interval()
        return math.exp(value.value) if monitor.is_beyond and value is not None else 1.0

    @property
    def beyond(self) -> list[str]:
        """The measures that are beyond their limits."""
        return [name for name, monitor in self.monitors.items() if monitor.is_beyond]

    @property
    def runs_another_cap(self) -> bool:
        return self.most_running > self.promised.max_num_seqs

    @property
    def is_far_slower(self) -> bool:
        """Whether the server is surely so slow that its law is another engine's."""
        return self.monitors["slowness"].is_above(self._far)

    @property
    def server_is_why(self) -> bool:
        """Whether the server, and not its traffic, is why the promise is broken."""
        others = {*self.beyond, *self.lengths.distant} - {"slowness", "ttft_excess"}
        return self.is_far_slower or ("slowness" in self.beyond and not others)

    @property
    def verdict(self) -> Verdict:
        differs = bool(self.beyond or self.lengths.distant)
        changed = self.choice is not None and self.choice.is_another
        if self.is_far_slower or (differs and changed):
            return "re-tune now"
        if differs or self.runs_another_cap:
            return "drifting"
        return "not enough evidence" if self.lacking else "still valid"

    @property
    def lacking(self) -> list[str]:
        """The measures of which too little is known to call the profile valid: the traffic's only
        as long as the twin has not said that the choice holds for it."""
        names = ["slowness"]
        if self.choice is None or not self.choice.holds:
            names += ["rate", "input_length", "output_length"]
        lacking = [name for name in names if self.monitors[name].state == "unknown"]
        few = self.windows < LEAST_WINDOWS or self.requests < LEAST_REQUESTS
        return [*lacking, *(["requests"] if few else [])]

    def measures(self) -> dict[str, MonitorReading]:
        """Return every measure: slowness and the traffic as ratios, the rest as shares."""
        return {name: _reading(name, monitor) for name, monitor in self.monitors.items()}

    def _remember(self, engine: str, traffic: Traffic) -> None:
        if engine not in self._recent and len(self._recent) == MOST_ENGINES:
            return
        parts = self._recent.setdefault(engine, deque())
        parts.append(traffic)
        while sum(map(len, parts)) - len(parts[0]) >= MOST_ASKED or len(parts) > MOST_ASKED:
            parts.popleft()


def _reading(name: str, monitor: Monitor) -> MonitorReading:
    """Return a measure so far; slowness, which is watched as a logarithm, as the ratio."""
    least = -math.inf if name == "ttft_excess" else 0.0

    def plain(value: float) -> float:
        return math.exp(min(value, 700.0)) if name == "slowness" else max(least, value)

    value, low = monitor.interval(), monitor.limits.low
    return MonitorReading(
        state=monitor.state,
        value=None
        if value is None
        else Interval(plain(value.value), plain(value.low), plain(value.high)),
        low=plain(low) if math.isfinite(low) else None,
        high=plain(monitor.limits.high),
        batches=monitor.batches,
    )


def _queued(window: ScrapeWindow) -> bool:
    """Whether somebody waited at a scrape: then load and speed explain how long."""
    before = [one for steps in window.run_in.values() for one in steps[-1:]]
    return any(one.waiting > 0 for one in (*before, *window.every_step))


def _joined(parts: Sequence[Traffic]) -> Traffic:
    """Return the newest requests of parts that follow each other, from 0 s on."""
    columns = [
        np.concatenate([getattr(part, name) for part in parts])[-MOST_ASKED:]
        for name in ("arrival_s", "input_length", "output_length", "cached_length")
    ]
    first_s = float(columns[0][0]) if len(columns[0]) else 0.0
    return Traffic(columns[0] - first_s, columns[1], columns[2], columns[3])
