"""Does the promise still hold? Still valid, drifting, or re-tune now. Pure, seeded.

Every window (a minute by default) is compared with the twin beside the profile: iterations with
what its law says of the batches and prompts that the server had, behind the profile's front end,
and today's requests with the profile's. So heavier traffic shows as traffic, and a slower server as
slower than its law. Each measure is a mean over windows with a t interval; it alarms where the mean
is ALARM_Z standard errors beyond a limit, far beyond what looking often brings about. The twin
decides whether the choice still holds: traffic that has changed and would choose the same cap is
drift, and no reason to tune again.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from tuner.engines.scheduler.state import Ints
from tuner.engines.seam import ITERATION
from tuner.live import prometheus
from tuner.live.prometheus import ServerMetrics
from tuner.profile.evidence import MOST_STORED, StoredTwin
from tuner.profile.profile import ServingProfile
from tuner.traffic.constants import PRINTED_DRAWS, TOLERANCE
from tuner.twin.samples import Interval, scaled
from tuner.twin.simulation import Traffic
from tuner.twin.windows import t_quantile

Verdict = Literal["still valid", "drifting", "re-tune now", "not enough evidence"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
LABELS = {
    "slowness": "iteration time / law",
    "rate": "rate / profile's",
    "input_length": "prompts / profile's",
    "output_length": "outputs / profile's",
    "prefix_share": "prefix share",
}

LATE = 0.5
"""Share of a window that may lie between two readings: after more nobody knows what ran when."""
MOST_RUNNING, MOST_TIMES = 20_000, 10.0
"""Requests at a time, and multiples of the profile's traffic, that are believed."""
LEAST_GAPS = 20
"""Gaps between tokens of a window that say something of the speed."""

KEPT = 10
"""Windows that a mean is taken over: more would find a change late."""
LEAST_ALARM, LEAST_WITHIN = 3, 2
"""Windows below which a measure says nothing."""
ALARM_Z = 4.0
PRIOR_WEIGHT = 4.0
"""Windows that the belief about their spread is worth, before it is seen."""
SPEED_SD, TRAFFIC_SD = 0.03, 0.15
"""How far windows of a minute usually spread."""

FEWER, MORE = 0.75, 1.25
"""Limits of rate and mean lengths, as shares of the profile's."""
LITTLE_MORE = 1.1
"""The limit of the rate where the profile's headroom failed: days differ by so much."""
APART = 0.10
"""Accepted difference of the prefix cache's share of prompt tokens."""
FAR_SLOWER, MOST_SPEED_SD = 1.25, 0.10
"""A server that is surely so much slower than its law is not the engine that was tuned. Limits of
the speed are two standard deviations of the machine's own speed wider, at most so many."""
SURE, FEW_LAWS = 0.95, 40
"""Share of the laws that decides whether a choice holds, and laws that show one in 20."""
ASK_EVERY = 5
"""Windows between two choices."""
LEAST_WINDOWS, LEAST_REQUESTS = 2, 50
"""Evidence without which no verdict but an alarm is given."""


@dataclass(slots=True)
class Measure:
    """The mean of one measure over the newest windows, and its limits."""

    low: float
    """-inf where less is only better."""
    high: float
    prior_sd: float
    values: list[float] = field(default_factory=list)
    """Of every window that showed it."""

    @property
    def state(self) -> Literal["unknown", "within", "above", "below"]:
        """Surely beyond a limit, within both by the 95 % interval, or unknown."""
        if (mean := self.interval()) is None:
            return "unknown"
        if self.is_above(self.high):
            return "above"
        if self._is_beyond(self.low - mean.value):
            return "below"
        is_within = self.low <= mean.low and mean.high <= self.high
        return "within" if is_within and len(self.values) >= LEAST_WITHIN else "unknown"

    def is_above(self, limit: float) -> bool:
        mean = self.interval()
        return mean is not None and self._is_beyond(mean.value - limit)

    def _is_beyond(self, distance: float) -> bool:
        return len(self.values) >= LEAST_ALARM and distance > ALARM_Z * self._error()[0]

    def interval(self) -> Interval | None:
        """Return the mean with its t interval; None without any."""
        if not self.values:
            return None
        mean, (error, freedom) = float(np.mean(self.values[-KEPT:])), self._error()
        reach = t_quantile(freedom) * error
        return Interval(mean, mean - reach, mean + reach)

    def _error(self) -> tuple[float, float]:
        """Return the standard error of the mean, and its degrees of freedom."""
        values = self.values[-KEPT:]
        freedom = len(values) - 1 + PRIOR_WEIGHT
        squares = len(values) * float(np.var(values)) + PRIOR_WEIGHT * self.prior_sd**2
        return math.sqrt(squares / freedom / len(values)), freedom

    def __str__(self) -> str:
        """Return the mean with interval and limits: 1.02 (95%: 0.98 to 1.05; limit 1.25)."""
        if (mean := self.interval()) is None:
            return "unknown"
        low = "" if math.isinf(self.low) else f"{self.low:.2f} to "
        ends = f"{mean.low:.2f} to {mean.high:.2f}"
        return f"{mean.value:.2f} (95%: {ends}; limit {low}{self.high:.2f})"


class CapCheck(NamedTuple):
    """The twin's choice for some traffic."""

    best: int
    rightness: float
    """Share of the laws that might be true under which the profile's cap is right, or as good."""
    attainment: float
    """At the profile's cap."""

    @property
    def is_another(self) -> bool:
        return self.rightness <= 1 - SURE


@dataclass(slots=True)
class Watch:
    """What the readings of a server show so far."""

    profile: ServingProfile
    twin: StoredTwin
    window_s: float
    every_s: float
    """Between two readings."""
    windows: int = 0
    requests: int = 0
    restarts: int = 0
    """Of the server, and changes of its engines."""
    most_running: float = 0.0
    """Requests that an engine ran at a time."""
    choice: CapCheck | None = None
    measures: dict[str, Measure] = field(init=False)
    restarts_in_a_row: int = 0
    """Without a window in between."""

    _window: list[tuple[float, ServerMetrics]] = field(default_factory=list)
    _is_asked: bool | None = None
    """Whether the twin chooses the profile's cap for the profile's own traffic: else it is not
    asked about today's."""

    def __post_init__(self) -> None:
        """Set the limits: speed, rate and lengths are ratios."""
        traffic, validity, twin = self.twin.traffic, self.profile.validity, self.twin
        speed_sd = min(MOST_SPEED_SD, twin.machine.speed_sd)
        share = float(traffic.cached_length.sum() / max(1, traffic.input_length.sum()))
        # what is stored may be the busiest part
        fewest = FEWER * min(1.0, validity.arrival_rate_rps * twin.length_s / len(traffic))
        failed = self.profile.promise.headroom > validity.validated_load
        most = LITTLE_MORE if failed else max(MORE, validity.validated_load)
        self.measures = {
            "slowness": Measure(-math.inf, (1 + TOLERANCE) * math.exp(2 * speed_sd), SPEED_SD),
            "rate": Measure(fewest, most, TRAFFIC_SD),
            "input_length": Measure(FEWER, MORE, TRAFFIC_SD),
            "output_length": Measure(FEWER, MORE, TRAFFIC_SD),
        }
        if share > 0:
            self.measures["prefix_share"] = Measure(share - APART, share + APART, SPEED_SD)

    @property
    def cap(self) -> int:
        return self.profile.decision.max_num_seqs

    def add(self, at_s: float, metrics: ServerMetrics) -> str | None:
        """Take a reading in; return the window that it completes in a line. One with a restart or a
        gap in it is none."""
        if self._window:
            before_s, before = self._window[-1]
            continues = metrics.continues(before)
            self.restarts += not continues
            self.restarts_in_a_row += not continues
            if not continues or at_s - before_s > LATE * self.window_s:
                self._window = []
        self._window.append((at_s, metrics))
        begin_s, first = self._window[0]
        # within half an interval: or a window lasts one step longer whenever a reading is early
        if at_s - begin_s < self.window_s - self.every_s / 2:
            return None
        readings = [each for _, each in self._window[1:]]
        self._window, self.restarts_in_a_row = self._window[-1:], 0
        # as many arrive as get a first token, and as many as wait more than before
        counted, waiting = metrics.since(first), prometheus.WAITING
        first_tokens = counted.get(f"{prometheus.FIRST_TOKEN_S}_count")
        requests = max(0.0, first_tokens + metrics.get(waiting) - first.get(waiting))
        return self._compare(counted, readings, requests, at_s - begin_s)

    def _compare(
        self,
        counted: ServerMetrics,
        readings: list[ServerMetrics],
        requests: float,
        length_s: float,
    ) -> str:
        """Compare what was counted in a window, and the gauges in it, with the profile."""
        beyond, stored, engines = self.beyond, self.twin.traffic, counted.engines
        rate_rps = requests / length_s / engines
        running = np.minimum(
            [each.get(prometheus.RUNNING) / engines for each in readings], MOST_RUNNING
        )
        self.windows += 1
        self.requests += round(requests)
        self.most_running = max(self.most_running, float(running.max()))
        values = {
            "rate": rate_rps * self.twin.length_s / len(stored),
            "input_length": counted.mean(prometheus.PROMPT) / max(1.0, stored.input_length.mean()),
            "output_length": counted.mean(prometheus.OUTPUT)
            / max(1.0, stored.output_length.mean()),
            "prefix_share": prefix_share(counted),
        }
        if not self.runs_another_cap:  # its batches are not the twin's
            values["slowness"] = self._slowness(counted, running, length_s)
        for name, value in values.items():
            if value is not None and math.isfinite(value) and name in self.measures:
                self.measures[name].values.append(min(MOST_TIMES, value))
        is_due = self.choice is None or self.windows % ASK_EVERY == 0
        if self.windows >= LEAST_WINDOWS and (is_due or self.beyond != beyond):
            self.choose_again()
        line = f"{self.windows}: {rate_rps:.2f} req/s, {running.mean():.1f} running"
        slowness = values.get("slowness")
        return line if slowness is None else f"{line}, iterations {slowness:.2f}x the law"

    def _slowness(
        self, counted: ServerMetrics, running: np.ndarray, length_s: float
    ) -> float | None:
        """Return the mean time between tokens as a multiple of what the law says: of iterations of
        the batches that ran, and of the prompts that they computed besides."""
        law, stored = self.twin.law, self.twin.traffic
        gap_s = counted.mean(prometheus.GAP_S)
        if counted.get(f"{prometheus.GAP_S}_count") < LEAST_GAPS:
            return None
        prompt, output = (
            mean if (mean := counted.mean(name)) > 0 else float(lengths.mean())
            for name, lengths in (
                (prometheus.PROMPT, stored.input_length),
                (prometheus.OUTPUT, stored.output_length),
            )
        )
        decoding = np.zeros(len(running), ITERATION)
        decoding["decode_seqs"] = np.rint(np.maximum(1, running))
        decoding["context_tokens"] = decoding["decode_seqs"] * min(prompt + output / 2, 1e9)
        weights = running if running.any() else None  # short ones run between two readings
        decoding_s = float(np.average(law.durations_s(decoding), weights=weights))
        fresh = prompt * (1 - (prefix_share(counted) or 0.0))
        chunks = math.ceil(fresh / self.twin.shape.max_num_batched_tokens)
        chunk = np.zeros(1, ITERATION)
        chunk["prefill_seqs"], chunk["prefill_tokens"] = 1, fresh / max(1, chunks)
        prompt_s = chunks * float((law.durations_s(chunk) - law.decode_s[0]).sum())
        front_end = self.twin.machine.front_end
        contention = 1.0 if front_end is None else front_end.contention
        first_tokens = counted.get(f"{prometheus.FIRST_TOKEN_S}_count") / counted.engines
        prompts = first_tokens / length_s * gap_s  # in an iteration
        return gap_s / max(1e-9, contention * (decoding_s + prompts * prompt_s))

    def choose_again(self) -> None:
        """Look whether today's traffic would choose another cap: the profile's, as often and as
        long as today's."""
        if self.requests < LEAST_REQUESTS:
            return
        if self._is_asked is None:
            self._is_asked = not self._choice_for(self.twin.traffic, 1.0, FEW_LAWS).is_another
        if not self._is_asked:
            return
        means = {
            name: mean.value
            for name, measure in self.measures.items()
            if (mean := measure.interval()) is not None
        }
        rate = max(0.01, means.get("rate", 1.0))
        today = scaled(self.twin.traffic, rate, np.random.default_rng(0)).rows(slice(MOST_STORED))
        prompts, outputs = (means.get(name, 1.0) for name in ("input_length", "output_length"))
        today = replace(
            today,
            input_length=_longer(today.input_length, prompts),
            output_length=_longer(today.output_length, outputs),
            cached_length=(today.cached_length * min(1.0, prompts)).astype(np.int64),
        )
        slowdown = means["slowness"] if self.measures["slowness"].state == "above" else 1.0
        self.choice = self._choice_for(today, slowdown, PRINTED_DRAWS)

    def _choice_for(self, traffic: Traffic, slowdown: float, laws: int) -> CapCheck:
        caps = {step.max_num_seqs for step in self.profile.curve}
        caps = {cap for cap in caps if cap < len(self.twin.law.decode_s)} | {self.cap}
        twin = replace(self.twin, laws=self.twin.laws[:laws])
        choice = twin.choice(
            traffic, self.profile.decision.slo.slo, sorted(caps),
            headroom=self.profile.promise.headroom, slowdown=slowdown,
        )  # fmt: skip
        share = choice.samples.middle("attainment", self.cap)
        return CapCheck(choice.best, choice.rightness.get(self.cap, 0.0), share)

    # The verdict

    @property
    def beyond(self) -> list[str]:
        """The measures that are beyond their limits."""
        return [name for name, each in self.measures.items() if each.state in {"above", "below"}]

    @property
    def runs_another_cap(self) -> bool:
        return self.most_running > self.cap

    @property
    def is_far_slower(self) -> bool:
        """Whether the server is surely so slow that its law is another engine's."""
        slowness = self.measures["slowness"]
        return slowness.is_above(slowness.high * FAR_SLOWER / (1 + TOLERANCE))

    @property
    def server_is_why(self) -> bool:
        """Whether the server, and not its traffic, is why the promise is broken."""
        return self.is_far_slower or self.beyond == ["slowness"]

    @property
    def verdict(self) -> Verdict:
        if self.is_far_slower or (self.beyond and self.choice and self.choice.is_another):
            return "re-tune now"
        if self.beyond or self.runs_another_cap:
            return "drifting"
        return "not enough evidence" if self.lacking else "still valid"

    @property
    def lacking(self) -> list[str]:
        """What too little is known of to call the profile valid: of the traffic only as long as the
        twin has not shown that the choice holds for it."""
        names = ["slowness"]
        if self.choice is None or self.choice.rightness < SURE:
            names += ["rate", "input_length", "output_length"]
        lacking = [LABELS[name] for name in names if self.measures[name].state == "unknown"]
        few = self.windows < LEAST_WINDOWS or self.requests < LEAST_REQUESTS
        return lacking + ["its requests"] * few

    @property
    def reason(self) -> str:
        """The verdict's reason in one sentence."""
        if self.verdict == "not enough evidence":
            cure = "watch longer" if self.requests else "no request came: watch during traffic"
            return f"too little is known of {', '.join(self.lacking)}; {cure}"
        parts = [
            f"{LABELS[name]} {self.measures[name]}"
            for name in self.beyond or ["slowness", "rate", "input_length", "output_length"]
        ]
        if self.runs_another_cap:
            parts.append(
                f"the server ran {self.most_running:.0f} requests at a time, the profile's cap is "
                f"{self.cap}: it does not run this profile, so that its speed is not compared"
            )
        if self.choice is not None:
            holds = f"the choice of {self.cap} holds for today's traffic"
            best = f"the twin would choose max_num_seqs {self.choice.best} for today's traffic"
            parts.append(best if self.choice.is_another else holds)
        return "; ".join(parts)


def prefix_share(counted: ServerMetrics) -> float | None:
    """Return the share of prompt tokens that came from the prefix cache; None without a count."""
    queried = counted.get(prometheus.QUERIED)
    return min(1.0, counted.get(prometheus.CACHED) / queried) if queried > 0 else None


def _longer(lengths: Ints, times: float) -> Ints:
    return np.asarray(np.maximum(1, np.rint(lengths * times)), np.int64)
