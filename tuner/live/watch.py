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
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from tuner.engines.seam import ITERATION
from tuner.live import prometheus
from tuner.live.prometheus import ServerMetrics
from tuner.profile.evidence import MOST_STORED, StoredTwin
from tuner.profile.profile import ServingProfile
from tuner.traffic.constants import TOLERANCE
from tuner.twin.decide import Choice
from tuner.twin.law import prompt_s
from tuner.twin.samples import Interval, scaled, t_quantile
from tuner.twin.simulation import Traffic

Verdict = Literal["still valid", "drifting", "re-tune now", "not enough evidence"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

MOST_RUNNING, MOST_LENGTH, MOST_TIMES = 20_000, 1e8, 10.0
"""Requests at a time, their tokens, and multiples of the profile's traffic, that are believed."""
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

FEWER, LITTLE_MORE, MORE = 0.75, 1.1, 1.25
"""Limits of rate and mean lengths, as shares of the profile's: days differ by a little in their
rate; more of it is what the headroom was for, where that held."""
LESS_CACHED = 0.10
"""By which the prefix cache's share of prompt tokens may fall."""
MOST_SPEED_SD = 0.10
"""The limit of the speed is two standard deviations of the machine's own speed wider, at most so
many."""
FAR_SLOWER = 1.14
"""Times that limit: surely slower than that is not the engine that was tuned."""
SURE = 0.95
"""Share of the laws that decides whether a choice holds."""
ASK_EVERY = 5
"""Windows between two choices."""
LEAST_WINDOWS, LEAST_REQUESTS = 2, 50
"""Evidence without which no verdict but an alarm is given."""


UNKNOWN = Interval(math.nan, math.nan, math.nan)


@dataclass(slots=True)
class Measure:
    """The mean of one measure over the newest windows, and its limits."""

    low: float
    high: float
    prior_sd: float
    values: list[float] = field(default_factory=list)
    """Of every window that showed it."""
    mean: Interval = UNKNOWN
    """With its 95 % interval."""
    state: Literal["unknown", "within", "above", "below"] = "unknown"
    """Surely beyond a limit, within both by the interval, or unknown."""

    def add(self, value: float) -> None:
        """Take the value of a window in."""
        self.values.append(min(MOST_TIMES, value))
        newest, count = self.values[-KEPT:], len(self.values)
        freedom = len(newest) - 1 + PRIOR_WEIGHT
        squares = len(newest) * float(np.var(newest)) + PRIOR_WEIGHT * self.prior_sd**2
        error, mean = math.sqrt(squares / freedom / len(newest)), float(np.mean(newest))
        reach, surely = t_quantile(freedom) * error, ALARM_Z * error
        self.mean, self.state = Interval(mean, mean - reach, mean + reach), "unknown"
        if count >= LEAST_ALARM and not self.low - surely <= mean <= self.high + surely:
            self.state = "above" if mean > self.high else "below"
        elif count >= LEAST_WITHIN and self.low <= mean - reach and mean + reach <= self.high:
            self.state = "within"


class Watch:
    """What the readings of a server show so far."""

    def __init__(
        self, profile: ServingProfile, twin: StoredTwin, window_s: float, every_s: float
    ) -> None:
        """``every_s`` lies between two readings."""
        self.profile, self.twin, self.cap = profile, twin, profile.decision.max_num_seqs
        self.window_s, self.every_s = window_s, every_s
        self.windows = self.requests = self.restarts = 0
        self.choice: Choice | None = None
        """The twin's for today's traffic."""
        self.rightness = math.nan
        """Share of the laws under which the profile's cap is right for it, or as good."""
        self.verdict: Verdict = "not enough evidence"
        self.reason = "no window is complete"
        self._readings = list[tuple[float, ServerMetrics]]()
        """Of the window that is not complete."""
        slower = (1 + TOLERANCE) * math.exp(2 * min(MOST_SPEED_SD, twin.machine.speed_sd))
        stored_rps = len(twin.traffic) / twin.length_s  # maybe of the busiest part
        fewest = FEWER * min(1.0, profile.validity.arrival_rate_rps / stored_rps)
        most = max(LITTLE_MORE, profile.validity.validated_load)
        cached, prompts = (twin.traffic.columns()[place].sum() for place in (3, 1))
        self.measures = {
            "slowness": Measure(-math.inf, slower, SPEED_SD),
            "rate": Measure(fewest, most, TRAFFIC_SD),
            "input_length": Measure(FEWER, MORE, TRAFFIC_SD),
            "output_length": Measure(FEWER, MORE, TRAFFIC_SD),
            "prefix_share": Measure(float(cached / prompts) - LESS_CACHED, math.inf, SPEED_SD),
            "most_running": Measure(-math.inf, 1.0, SPEED_SD),
        }
        """Speed, rate, lengths and requests at a time are multiples of the law's, the profile's and
        the cap."""

    def add(self, at_s: float, metrics: ServerMetrics) -> str | None:
        """Take a reading in; return the window that it completes in a line. One with a restart in
        it is none."""
        if self._readings and metrics.since(self._readings[-1][1]) is None:
            self.restarts += 1
            self._readings = []
        self._readings.append((at_s, metrics))
        (begin_s, first), *later = self._readings
        counted, length_s = metrics.since(first), at_s - begin_s
        # within half an interval: or a window lasts one step longer whenever a reading is early
        if counted is None or length_s < self.window_s - self.every_s / 2:
            return None
        self._readings = self._readings[-1:]
        engines, stored = counted.engines, self.twin.traffic
        running = np.array([each.get(prometheus.RUNNING) / engines for _, each in later])
        running = np.minimum(running, MOST_RUNNING)
        # as many arrive as get a first token, and as many as wait more than before
        waiting = metrics.get(prometheus.WAITING) - first.get(prometheus.WAITING)
        requests = max(0.0, counted.get(prometheus.FIRST_TOKENS) + waiting)
        rate_rps = requests / length_s / engines
        self.windows += 1
        self.requests += round(requests)
        values = {
            "slowness": self._slowness(counted, running, length_s),
            "rate": rate_rps * self.twin.length_s / len(stored),
            "input_length": counted.mean(prometheus.PROMPT) / max(1, stored.input_length.mean()),
            "output_length": counted.mean(prometheus.OUTPUT) / max(1, stored.output_length.mean()),
            "prefix_share": counted.prefix_share,
            "most_running": float(running.max()) / self.cap,
        }
        for name, value in values.items():
            if math.isfinite(value):
                self.measures[name].add(value)
        if self.windows % ASK_EVERY == LEAST_WINDOWS:
            self.choose_again()
        self._conclude()
        speed = f"iterations {values['slowness']:.2f}x the law"
        return f"{self.windows}: {rate_rps:.2f} req/s, {running.mean():.1f} running, {speed}"

    def _slowness(self, counted: ServerMetrics, running: np.ndarray, length_s: float) -> float:
        """Return the mean time between tokens as a multiple of what the law says: of iterations of
        the batches that ran, and of the prompts that they computed besides. NaN where too little
        was served."""
        gap_s, law = counted.mean(prometheus.GAP_S), self.twin.law
        prompt, output = counted.mean(prometheus.PROMPT), counted.mean(prometheus.OUTPUT)
        if counted.get(prometheus.GAPS) < LEAST_GAPS or math.isnan(prompt + output):
            return math.nan
        decoding = np.zeros(len(running), ITERATION)
        decoding["decode_seqs"] = np.rint(np.maximum(1, running))
        context = min(MOST_LENGTH, prompt + output / 2)
        decoding["context_tokens"] = decoding["decode_seqs"] * context
        weights = running if running.any() else None  # short ones run between two readings
        decoding_s = np.average(law.durations_s(decoding), weights=weights)
        fresh = min(MOST_LENGTH, prompt * (1 - np.nan_to_num(counted.prefix_share)))
        chunk = max(1.0, min(fresh, self.twin.shape.max_num_batched_tokens))
        prompt_each_s = fresh / chunk * (prompt_s(law, chunk) - law.decode_s[0])
        prompts = gap_s * counted.get(prometheus.FIRST_TOKENS) / counted.engines / length_s
        front_end = self.twin.machine.front_end
        contention = front_end.contention if front_end else 1.0
        return float(gap_s / max(1e-9, contention * (decoding_s + prompts * prompt_each_s)))

    def choose_again(self) -> None:
        """Look which cap the twin would choose for the profile's traffic, as often and as long as
        today's; not where it does not choose the profile's for the profile's own."""
        if self.requests < LEAST_REQUESTS:
            return
        own = self.twin.traffic
        rate, prompt, output, slowdown = (
            mean if math.isfinite(mean := self.measures[name].mean.value) else 1.0
            for name in ("rate", "input_length", "output_length", "slowness")
        )
        today = scaled(own, max(0.01, rate), np.random.default_rng(0)).rows(slice(MOST_STORED))
        lengths = np.array(today.columns()[1:]) * [[prompt], [output], [prompt]]
        inputs, outputs, cached = np.maximum([[1], [1], [0]], lengths).astype(np.int64)
        choice = self._choice_for(Traffic(today.arrival_s, inputs, outputs, cached), slowdown)
        rightness = choice.rightness[self.cap]
        if rightness > 1 - SURE or self._choice_for(own, 1.0).rightness[self.cap] > 1 - SURE:
            self.choice, self.rightness = choice, rightness
            self._conclude()

    def _choice_for(self, traffic: Traffic, slowdown: float) -> Choice:
        caps = {self.cap, *(step.max_num_seqs for step in self.profile.curve)}
        slo, headroom = self.profile.decision.slo.slo, self.profile.promise.headroom
        return self.twin.choice(traffic, slo, [*caps], headroom=headroom, slowdown=slowdown)

    @property
    def beyond(self) -> list[str]:
        """The measures that are surely beyond a limit."""
        return [name for name, each in self.measures.items() if each.state in {"above", "below"}]

    def _conclude(self) -> None:
        """Set the verdict, and its reason in one sentence."""
        beyond, choice, slowness = self.beyond, self.choice, self.measures["slowness"]
        reasons = [
            f"{name.replace('_', ' ')} {measure.mean.value:.2f}"
            for name, measure in self.measures.items()
            if measure.values and (name in beyond or not beyond)
        ]
        is_another = self.rightness <= 1 - SURE
        if choice is not None:
            best = f"the twin would choose max_num_seqs {choice.best} for today's traffic"
            holds = f"the choice of {self.cap} holds for today's traffic"
            reasons.append(best if is_another else holds)
        self.reason = "; ".join(reasons)
        needed = [*self.measures.values()][: 1 if self.rightness >= SURE else 4]
        if ("slowness" in beyond and slowness.mean.low > FAR_SLOWER * slowness.high) or (
            beyond and is_another
        ):
            self.verdict = "re-tune now"
        elif beyond:
            self.verdict = "drifting"
        elif (
            self.windows < LEAST_WINDOWS
            or self.requests < LEAST_REQUESTS
            or any(each.state == "unknown" for each in needed)
        ):
            self.verdict = "not enough evidence"
            self.reason = f"{self.requests} requests in {self.windows} windows; {self.reason}"
        else:
            self.verdict = "still valid"
