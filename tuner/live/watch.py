"""Does the promise still hold? Still valid, drifting, or re-tune now. Pure.

Every window (a minute by default) is compared with what the twin in the profile predicts for
today's own requests, behind the profile's front end. So heavier traffic shows as traffic, and a
slower server as slower than its law. Each measure is a mean over windows with a t interval; it
alarms where the mean is ALARM_Z standard errors beyond a limit, far beyond what looking often
brings about. The twin decides whether the choice still holds: traffic that has changed and would
choose the same cap is drift, and no reason to tune again.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.live.windows import ScrapeWindow, prefix_share, total
from tuner.profile.evidence import StoredTwin
from tuner.traffic.constants import PRINTED_DRAWS, TOLERANCE
from tuner.traffic.slo import Slo
from tuner.twin.samples import Interval
from tuner.twin.simulation import Traffic
from tuner.twin.windows import t_quantile

Verdict = Literal["still valid", "drifting", "re-tune now", "not enough evidence"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
State = Literal["unknown", "within", "above", "below"]
Length = Literal["input_length", "output_length"]

KEPT, NEWEST = 30, 4
"""Windows that a mean is taken over, and the newest ones, which find a change sooner."""

LEAST_ALARM, LEAST_WITHIN = 3, 2
"""Windows below which a measure says nothing."""

ALARM_Z = 4.0
PRIOR_WEIGHT = 4.0
"""Windows that the belief about their spread is worth, before it is seen."""

PRIOR_SDS = {
    "slowness": 0.03, "ttft_excess": 0.05, "prefix_share": 0.03,
    "rate": 0.15, "input_length": 0.15, "output_length": 0.15,
}  # fmt: skip
"""How far windows of a minute usually spread."""

MOST = 1e100
"""Its square is still a number: a broken server may report anything."""

FEWER, MORE = 0.75, 1.25
"""Limits of rate and mean lengths, as shares of the profile's."""

LITTLE_MORE = 1.1
"""The limit of the rate where the profile's headroom failed: days differ by so much."""

PREFIX_SHARE, TTFT_EXCESS = 0.10, 0.10
"""Accepted differences: of the prefix cache's share of prompt tokens, and of late first tokens."""

FAR_SLOWER = 1.25
"""A server that is surely so much slower than its law is not the engine that was tuned."""

MOST_SPEED_SD = 0.10
"""The limit of the speed is two standard deviations of the laws as likely wider, at most this."""

TAIL = 0.90
"""A first token is late above the bucket bound below which so many are predicted."""

LEAST_GAPS, LEAST_FIRSTS = 20, 3
"""Gaps between tokens, and first tokens, of a window that say something."""

QUEUED = 0.25
"""Share of the readings with somebody waiting, above which a queue explains late first tokens."""

MOST_SLOWDOWN = 8.0
SURE = 0.95
"""Share of the laws that decides whether a choice holds."""

ASK_EVERY, MOST_SIMULATED = 5, 2000
"""Windows between two choices, and the newest requests of one engine that they are made for."""

FEW_LAWS = 40
LEAST_WINDOWS, LEAST_REQUESTS = 2, 50
"""Evidence without which no verdict but an alarm is given."""


@dataclass(slots=True)
class Measure:
    """The mean of one measure over the newest windows, and its limits."""

    low: float
    """-inf where less is only better."""

    high: float
    prior_sd: float
    windows: int = 0
    _values: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, value: float) -> None:
        self.windows += 1
        self._values.append(min(MOST, max(-MOST, value)))

    @property
    def state(self) -> State:
        """Surely beyond a limit, within both by the 95 % interval, or unknown."""
        if self.is_above(self.high):
            return "above"
        if any(self._z(self.low, newest) < -ALARM_Z for newest in (NEWEST, KEPT)):
            return "below"
        result = self.interval()
        if result is None or len(self._values) < LEAST_WITHIN:
            return "unknown"
        return "within" if self.low <= result.low and result.high <= self.high else "unknown"

    def is_above(self, limit: float) -> bool:
        return any(self._z(limit, newest) > ALARM_Z for newest in (NEWEST, KEPT))

    @property
    def is_beyond(self) -> bool:
        return self.state in {"above", "below"}

    def interval(self) -> Interval | None:
        """Return the mean with its t interval: of the newest windows where they are beyond a limit,
        for that may be new; None without any."""
        if not self._values:
            return None
        is_new = self._z(self.high, NEWEST) > ALARM_Z or self._z(self.low, NEWEST) < -ALARM_Z
        size = min(len(self._values), NEWEST if is_new else KEPT)
        mean, error = self._mean(size)
        reach = t_quantile(size - 1 + PRIOR_WEIGHT) * error
        return Interval(mean, mean - reach, mean + reach)

    def _z(self, limit: float, newest: int) -> float:
        """Return how many standard errors the mean is above a limit; 0 of too few windows."""
        if len(self._values) < LEAST_ALARM or not math.isfinite(limit):
            return 0.0
        mean, error = self._mean(newest)
        return (mean - limit) / error

    def _mean(self, newest: int) -> tuple[float, float]:
        values = np.array(self._values)[-newest:]
        known = len(values) - 1
        squares = float(((values - values.mean()) ** 2).sum()) + PRIOR_WEIGHT * self.prior_sd**2
        return float(values.mean()), math.sqrt(squares / (known + PRIOR_WEIGHT) / len(values))


@dataclass(frozen=True, slots=True)
class Promised:
    """The parts of a profile that a server is compared with."""

    twin: StoredTwin
    slo: Slo
    max_num_seqs: int
    caps: tuple[int, ...]
    headroom: float
    validated_load: float
    arrival_rate_rps: float
    """Of all that was tuned for; what is stored may be its busiest part."""

    @property
    def rate_rps(self) -> float:
        return len(self.twin.traffic) / self.twin.length_s

    def measures(self) -> dict[str, Measure]:
        """Return every measure with its limits: speed, rate and lengths are ratios."""
        traffic, speed_sd = self.twin.traffic, self._speed_sd()
        share = float(traffic.cached_length.sum() / max(1, traffic.input_length.sum()))
        # a headroom that was not validated has failed: then hardly more load is accepted
        failed = self.headroom > self.validated_load
        limits = {
            "slowness": (-math.inf, (1 + TOLERANCE) * math.exp(2 * speed_sd)),
            "ttft_excess": (-math.inf, TTFT_EXCESS),
            "rate": (
                FEWER * min(1.0, self.arrival_rate_rps / self.rate_rps),
                LITTLE_MORE if failed else max(MORE, self.validated_load),
            ),
            "input_length": (FEWER, MORE),
            "output_length": (FEWER, MORE),
        }
        if share > 0:
            limits["prefix_share"] = (share - PREFIX_SHARE, share + PREFIX_SHARE)
        return {name: Measure(*ends, PRIOR_SDS[name]) for name, ends in limits.items()}

    @property
    def far_slower(self) -> float:
        return max(self.measures()["slowness"].high, FAR_SLOWER * math.exp(self._speed_sd()))

    def _speed_sd(self) -> float:
        """Return how far the laws as likely differ in speed."""
        twin = self.twin
        most = max(1, min(twin.extrapolated_from, len(twin.law.decode_s) - 1))
        own_s = twin.law.decode_s[1 : most + 1]
        levels = [np.log(law.decode_s[1 : most + 1] / own_s) for law in twin.laws]
        return min(MOST_SPEED_SD, float(np.median(np.std(levels, axis=0)))) if levels else 0.0


@dataclass(frozen=True, slots=True)
class CapCheck:
    """The twin's choice for some traffic."""

    best: int
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
    traffic: Traffic, promised: Promised, *, slowdown: float = 1.0, most: int = PRINTED_DRAWS
) -> CapCheck:
    """Return the choice for this traffic, and the headroom times of it, on a machine that is so
    many times slower than the law."""
    twin, cap = promised.twin, promised.max_num_seqs
    caps = sorted({each for each in promised.caps if each < len(twin.law.decode_s)} | {cap})
    choice = twin.slowed(slowdown).choice(
        traffic, promised.slo, caps, headroom=promised.headroom, most=most
    )
    best = choice.chosen_of(choice.eligible)
    return CapCheck(
        best=best,
        rightness=choice.rightness.get(cap, 0.0),
        attainment=choice.share(cap),
        best_attainment=choice.share(best),
        requests=len(traffic),
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """The twin's numbers for a window, over all engines."""

    gap_s: float
    """Mean gap between the tokens of a request; NaN where none is expected."""

    ttft_s: Floats
    """Of the requests whose first token came in the window."""

    running: float
    """Mean over the window, for each engine."""


def expected(
    parts: Sequence[Traffic], promised: Promised, slowdown: float, window: ScrapeWindow
) -> Expected:
    """Return what the twin predicts where each engine gets its part."""
    twin, cap = promised.twin, promised.max_num_seqs
    begin_s, end_s = window.begin_s, window.end_s
    law = twin.law.slowed(slowdown)
    lasting_s = gaps = running_s = 0.0
    firsts = [np.zeros(0)]

    def inside_s(from_s: Floats, to_s: Floats) -> Floats:
        inside = np.minimum(to_s, end_s) - np.maximum(from_s, begin_s)
        return np.asarray(np.maximum(0.0, inside))

    for traffic in filter(len, parts):
        replay = twin.replayed(traffic, law, max_num_seqs=cap)
        first_s, last_s = traffic.arrival_s + replay.ttft_s, traffic.arrival_s + replay.e2el_s
        within_s = inside_s(first_s, last_s)
        share = within_s / np.maximum(1e-9, last_s - first_s)
        lasting_s += float(np.nansum(within_s))
        gaps += float(np.nansum(share * (traffic.output_length - 1)))
        scheduled_s = traffic.arrival_s + twin.shape.lag_s + replay.queue_s
        running_s += float(np.nansum(inside_s(scheduled_s, last_s)))
        firsts.append(replay.ttft_s[(first_s >= begin_s) & (first_s < end_s)])
    return Expected(
        gap_s=lasting_s / gaps if gaps >= 1 else math.nan,
        ttft_s=np.concatenate(firsts),
        running=running_s / window.length_s / max(1, len(parts)),
    )


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """One window: what it showed, and what it should have. Times in milliseconds."""

    number: int
    begin_s: float
    end_s: float
    arrived: int
    finished: int
    failed: int
    gap_ms: float | None
    """Mean time from one token of a request to the next."""

    promised_gap_ms: float | None
    slowness: float | None
    running: float
    promised_running: float
    waiting: float
    kv_cache_usage: float | None
    preemptions: float
    restarts: int


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
    measures: dict[str, Measure] = field(init=False)
    _answerable: bool | None = None
    _ttft_bound_s: float | None = None
    _recent: dict[str, Traffic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.measures = self.promised.measures()

    def add(self, window: ScrapeWindow) -> WindowSummary:
        """Take a window in."""
        self.windows += 1
        steps, beyond = window.every_step, self.beyond
        self.most_running = max(self.most_running, *(each.running for each in steps))
        seed, stored = self.seed * 1_000_003 + self.windows, self.promised.twin.traffic
        parts = window.traffic(stored, seed=seed)
        lawful = expected(list(parts.values()), self.promised, 1.0, window)
        gaps = total(steps, "itl_s") or total(steps, "tpot_s")
        gap_s = gaps.mean if gaps is not None and gaps.count >= LEAST_GAPS else math.nan
        slowdown, here = self._slowdown(list(parts.values()), lawful, gap_s, window)
        values = {
            **self._of_traffic(window),
            "slowness": slowdown,
            "ttft_excess": self._late(window, here.ttft_s),
        }
        if self.runs_another_cap:  # its batches are not the twin's
            values["slowness"] = values["ttft_excess"] = None
        for name, value in values.items():
            if value is not None and name in self.measures:
                self.measures[name].add(value)
        self._remember(window, parts)
        if self.windows >= LEAST_WINDOWS and (
            self.beyond != beyond or self.choice is None or self.windows % ASK_EVERY == 0
        ):
            self.choose_again()
        gauges = [each.more.gauges for each in steps]
        usage = [each["kv_cache_usage"] for each in gauges if "kv_cache_usage" in each]
        summary = WindowSummary(
            number=self.windows,
            begin_s=window.begin_s,
            end_s=window.end_s,
            arrived=window.arrived,
            finished=round(sum(each.finished for each in steps)),
            failed=round(sum(each.failed for each in steps)),
            gap_ms=_known_ms(gap_s),
            promised_gap_ms=_known_ms(lawful.gap_s),
            slowness=slowdown,
            running=float(np.mean([each.running for each in steps])),
            promised_running=lawful.running,
            waiting=float(np.mean([each.waiting for each in steps])),
            kv_cache_usage=max(usage, default=None),
            preemptions=sum(each.more.counters.get("preemptions", 0.0) for each in steps),
            restarts=window.restarts,
        )
        self.requests += summary.arrived
        self.finished += summary.finished
        self.failed += summary.failed
        return summary

    def _slowdown(
        self, parts: Sequence[Traffic], lawful: Expected, gap_s: float, window: ScrapeWindow
    ) -> tuple[float | None, Expected]:
        """Return the factor on the law at which the twin's mean gap is the counted one, and the
        twin there. It accounts for the larger batches that a slower server runs."""
        if not (gap_s > 0 and lawful.gap_s > 0):
            return None, lawful
        slowdown, here = 1.0, lawful
        for _ in range(3):
            slowdown *= gap_s / here.gap_s
            slowdown = min(MOST_SLOWDOWN, max(1 / MOST_SLOWDOWN, slowdown))
            here = expected(parts, self.promised, slowdown, window)
            if not here.gap_s > 0:
                return None, lawful
        return slowdown, here

    def _late(self, window: ScrapeWindow, predicted_s: Floats) -> float | None:
        """Return the share of late first tokens minus the twin's, where little queues: otherwise
        load and speed explain how long they take."""
        counted = total(window.every_step, "ttft_s")
        waiting = float(np.mean([each.waiting > 0 for each in window.every_step]))
        if counted is None or waiting > QUEUED:
            return None
        if self._ttft_bound_s not in counted.bounds:
            twin, cap = self.promised.twin, self.promised.max_num_seqs
            times_s = twin.replayed(twin.traffic, twin.law, max_num_seqs=cap).ttft_s
            least_s = float(np.nanquantile(times_s, TAIL))
            self._ttft_bound_s = next(bound for bound in counted.bounds if bound >= least_s)
        if counted.count < LEAST_FIRSTS or len(predicted_s) < LEAST_FIRSTS:
            return None
        bound_s = self._ttft_bound_s
        assert bound_s is not None
        above = 1 - counted.counts[counted.bounds.index(bound_s)] / counted.count
        return above - float(np.mean(predicted_s > bound_s))

    def _of_traffic(self, window: ScrapeWindow) -> dict[str, float | None]:
        """Return rate and mean lengths over the profile's, and the prefix cache's share."""
        steps, stored = window.every_step, self.promised.twin.traffic
        rate_rps = window.arrived / window.length_s / len(window.steps)
        values: dict[str, float | None] = {"rate": rate_rps / self.promised.rate_rps}
        lengths: tuple[Length, ...] = get_args(Length)
        for name in lengths:
            counted = total(steps, name)
            if counted is not None and counted.count >= 1:
                values[name] = counted.mean / float(getattr(stored, name).mean())
        return {**values, "prefix_share": prefix_share(steps)}

    def _remember(self, window: ScrapeWindow, parts: Mapping[str, Traffic]) -> None:
        for engine, part in parts.items():
            traffic = part.between(window.begin_s, window.end_s)
            if engine in self._recent:
                traffic = self._recent[engine].followed_by(traffic)
            self._recent[engine] = traffic.rows(slice(-MOST_SIMULATED, None))
        self._recent = {engine: self._recent[engine] for engine in parts}  # they come and go

    def choose_again(self) -> None:
        """Look whether today's traffic would choose another cap. A twin that does not choose the
        profile's cap for the profile's own traffic is not used."""
        if self._answerable is None:
            own = choice_for(self.promised.twin.traffic, self.promised, most=FEW_LAWS)
            self._answerable = not own.is_another
        busiest = max(self._recent.values(), key=len, default=None)
        if not self._answerable or busiest is None or len(busiest) < LEAST_REQUESTS:
            return
        slow = self.measures["slowness"]
        value = slow.interval()
        slowdown = value.value if slow.is_beyond and value is not None else 1.0
        self.choice = choice_for(busiest.from_zero(), self.promised, slowdown=slowdown)

    @property
    def beyond(self) -> list[str]:
        """The measures that are beyond their limits."""
        return [name for name, measure in self.measures.items() if measure.is_beyond]

    @property
    def runs_another_cap(self) -> bool:
        return self.most_running > self.promised.max_num_seqs

    @property
    def is_far_slower(self) -> bool:
        """Whether the server is surely so slow that its law is another engine's."""
        return self.measures["slowness"].is_above(self.promised.far_slower)

    @property
    def server_is_why(self) -> bool:
        """Whether the server, and not its traffic, is why the promise is broken."""
        of_traffic = {*self.beyond} - {"slowness", "ttft_excess"}
        return self.is_far_slower or ("slowness" in self.beyond and not of_traffic)

    @property
    def verdict(self) -> Verdict:
        changed = self.choice is not None and self.choice.is_another
        if self.is_far_slower or (self.beyond and changed):
            return "re-tune now"
        if self.beyond or self.runs_another_cap:
            return "drifting"
        return "not enough evidence" if self.lacking else "still valid"

    @property
    def lacking(self) -> list[str]:
        """The measures of which too little is known to call the profile valid: the traffic's only
        as long as the twin has not shown that the choice holds for it."""
        names = ["slowness"]
        if self.choice is None or not self.choice.holds:
            names += ["rate", "input_length", "output_length"]
        lacking = [name for name in names if self.measures[name].state == "unknown"]
        few = self.windows < LEAST_WINDOWS or self.requests < LEAST_REQUESTS
        return [*lacking, *(["requests"] if few else [])]


def _known_ms(seconds: float) -> float | None:
    return seconds * 1e3 if math.isfinite(seconds) else None


NAMES = {
    "slowness": ("the server's speed", "iterations take {} times what the profile predicts"),
    "ttft_excess": (
        "late first tokens",
        "{} more requests than promised wait long for their first token although nothing queues",
    ),
    "prefix_share": ("prefix share", "{} of the prompts' tokens come from the prefix cache"),
    "rate": ("the rate", "the rate is {} times the profile's"),
    "input_length": ("the mean prompt", "the mean prompt is {} times the profile's"),
    "output_length": ("the mean output", "the mean output is {} times the profile's"),
    "requests": ("its requests", ""),
}
"""Measure → its name, and the sentence with its value."""

SHARES = {"ttft_excess", "prefix_share"}


def value_in_words(name: str, measure: Measure) -> str:
    """Return a measure with its interval: 1.02 (95%: 0.98 to 1.05)."""
    result = measure.interval()
    if result is None:
        return "unknown"
    digits = ".1%" if name in SHARES else ".2f"
    return f"{result.value:{digits}} (95%: {result.low:{digits}} to {result.high:{digits}})"


def limits_in_words(name: str, measure: Measure) -> str:
    """Return the limits of a measure: 0.75 to 1.25."""
    digits = ".0%" if name in SHARES else ".2f"
    low = "" if math.isinf(measure.low) else f"{measure.low:{digits}} to "
    return f"{low}{measure.high:{digits}}"


def reason(watch: Watch) -> str:
    """Return the verdict's reason in one sentence."""
    if watch.verdict == "not enough evidence":
        *first, last = [NAMES[name][0] for name in watch.lacking]
        names = " and ".join(filter(None, [", ".join(first), last]))
        cure = "watch longer" if watch.requests else "no request came: watch during traffic"
        return f"too little is known of {names}; {cure}"
    beyond = watch.beyond
    parts = []
    for name in beyond or ("slowness", "rate", "input_length", "output_length"):
        measure = watch.measures[name]
        if measure.windows:
            words = NAMES[name][1].format(value_in_words(name, measure))
            limits = f": the limits are {limits_in_words(name, measure)}" if beyond else ""
            parts.append(words + limits)
    if watch.runs_another_cap:
        parts.append(
            f"the server ran {watch.most_running:.0f} requests at a time, the profile's cap is "
            f"{watch.promised.max_num_seqs}: it does not run this profile, so that its speed is "
            "not compared"
        )
    return "; ".join([*parts, *_choice_in_words(watch)])


def _choice_in_words(watch: Watch) -> list[str]:
    check, cap = watch.choice, watch.promised.max_num_seqs
    if check is None:
        return []
    if check.is_another:
        shares = f"{check.best_attainment:.1%} meet the SLO instead of {check.attainment:.1%}"
        best = f"the twin would choose max_num_seqs {check.best} and not {cap}"
        return [f"for today's traffic {best}: {shares}"]
    verb = "holds" if check.holds else "may not hold"
    return [f"the choice of {cap} {verb} for today's traffic, under {check.rightness:.0%} of laws"]
