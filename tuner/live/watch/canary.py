"""Is the canary worse than the baseline? Both are watched at the same moments, paired by window.
Pure.

Each server is first held against what the twin says of its own requests, under its own limits. The
canary's limits are the profile's. The baseline runs what was there before, so its limits are those
that it shows: the size of its KV cache, and its cap where requests wait
(``watch.watched.RunningSeen``); ``max_num_batched_tokens`` it does not tell. A difference that is
left is neither their load nor what the profile chose to change, and what both feel at the same
moment cancels.

Where the baseline runs more at a time than the twin knows, nothing can be said of it. Then the
canary is held against the promise alone, with the limits of a watch.

An effect is claimed, or ruled out, by the tests of ``sequential.py``, however often one looks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tuner.live.watch.expected import Compared
from tuner.live.watch.promised import Promised
from tuner.live.watch.sequential import Monitor, MonitorLimits
from tuner.live.watch.verdict import (
    LEAST_REQUESTS,
    LEAST_WINDOWS,
    SPEED_REACH,
    MonitorReading,
    Watch,
    measured,
    server_monitors,
    server_values,
)
from tuner.live.watch.watched import failed_share, preempted_share
from tuner.live.watch.windows import ScrapeWindow

Decision = Literal["promote", "roll back", "undecided"]
Effect = Literal["tpot", "ttft", "e2el_tail", "failed", "preemptions", "slowness", "ttft_excess"]
"""The last two where the canary is held against the promise alone."""

Pair = tuple[ScrapeWindow, Compared]
"""The window of one server, and the same held against the twin."""

TTFT = math.log(1.25)
"""Logarithm of the ratio by which a canary's mean TTFT may be longer."""

E2EL_TAIL, FAILED, PREEMPTIONS = 0.05, 0.02, 0.10
"""So many more of its requests may take longer than the promised tail, end with an error or
aborted, or lose their KV cache."""

MOST_BLOCKS = 10_000_000
"""Of a KV cache: what a server says beyond is no size."""

MOST_RESTARTS = 1
"""Restarts of a canary, more than its baseline's, that only delay its promotion. More are no
accident: it does not stay up."""

LOGARITHMIC: frozenset[str] = frozenset({"tpot", "ttft", "slowness"})


@dataclass(slots=True)
class CanaryGate:
    """The state of a canary: what the pairs of windows say so far."""

    promised: Promised
    pairs: int = 0
    requests: int = 0
    """Of the canary."""

    effects: dict[Effect, Monitor] = field(init=False)
    gone: str = ""
    """What the canary does instead of serving, while the baseline answers."""

    restarts: int = 0
    """Of the canary, more than of the baseline."""

    incomparable: str = ""
    """Why the canary is held against the promise alone."""

    most_running: float = 0.0
    """Of the canary, at a time."""

    _since: int = 0
    """Pairs before the canary's last restart."""

    def __post_init__(self) -> None:
        self.effects = {
            "tpot": _monitor(math.log1p(self.promised.tolerance), SPEED_REACH),
            "ttft": _monitor(TTFT, reach=1.0),
            "e2el_tail": _monitor(E2EL_TAIL, reach=0.3),
            "failed": _monitor(FAILED, reach=0.1),
            "preemptions": _monitor(PREEMPTIONS, reach=0.5),
        }

    def add(self, baseline: Pair, canary: Pair, *, incomparable: str = "") -> dict[Effect, float]:
        """Take in what both did at the same time; return the effects of this pair.

        ``incomparable``: why the twin can say nothing of the baseline.
        """
        self.pairs += 1
        self.requests += sum(len(part) for part in canary[1].traffic)
        most = max((one.running for one in canary[0].every_step), default=0.0)
        self.most_running = max(self.most_running, most)
        if incomparable and not self.incomparable:
            self._hold_against_promise(incomparable)
        values = (
            self._against_promise(baseline, canary)
            if self.incomparable
            else _against_baseline(baseline, canary)
        )
        found = {name: value for name, value in values.items() if value is not None}
        for name, value in found.items():
            self.effects[name].add(value)
        return found

    def restarted(self, baseline: int, canary: int) -> None:
        """Take in how often both were restarted so far."""
        more = max(0, canary - baseline)
        if more > self.restarts:
            self._since = self.pairs
        self.restarts = max(self.restarts, more)

    @property
    def decision(self) -> Decision:
        if (
            self.gone
            or self.restarts > MOST_RESTARTS
            or any(one.state == "above" for one in self.effects.values())
        ):
            return "roll back"
        enough = self.pairs - self._since >= LEAST_WINDOWS and self.requests >= LEAST_REQUESTS
        fits = enough and not self.lacking and not self.runs_another_cap
        return "promote" if fits else "undecided"

    @property
    def runs_another_cap(self) -> bool:
        return self.most_running > self.promised.max_num_seqs

    @property
    def lacking(self) -> list[Effect]:
        """The effects that are not ruled out."""
        return [name for name, one in self.effects.items() if one.state != "within"]

    @property
    def reason(self) -> str:
        """Return the reason, in words."""
        if self.gone:
            return f"the canary {self.gone}"
        return "; ".join([*self._why(), *self._also()])

    def _why(self) -> list[str]:
        shown = self.shown()
        match self.decision:
            case "roll back":
                worse = [name for name, one in self.effects.items() if one.state == "above"]
                return [f"{shown[name]}: the limit is {self._limit(name)}" for name in worse]
            case "promote":
                return list(shown.values())
            case "undecided":
                names = ", ".join(WORDS[name] for name in self.lacking)
                if names:
                    return [f"not ruled out: {names}"]
                few = f"{self.requests} requests in {self.pairs - self._since} pairs of windows"
                return [] if self.runs_another_cap else [f"too few: {few}"]

    def _also(self) -> list[str]:
        said = []
        if self.restarts:
            times = "once" if self.restarts == 1 else f"{self.restarts} times"
            said.append(f"the canary was restarted {times}, more than the baseline")
        if self.runs_another_cap:
            said.append(
                f"the canary ran {self.most_running:.0f} requests at a time, the profile's cap is "
                f"{self.promised.max_num_seqs}: it does not run this profile"
            )
        if self.incomparable:
            said.append(f"held against the promise alone, for {self.incomparable}")
        return said

    def measures(self) -> dict[str, MonitorReading]:
        """Return every effect: ratios of times, differences of shares."""
        return {
            name: measured(monitor, logarithmic=name in LOGARITHMIC)
            for name, monitor in self.effects.items()
        }

    def shown(self) -> dict[Effect, str]:
        """Return every effect in words, with its interval."""
        measures = self.measures()
        return {name: _in_words(name, measures[name]) for name in self.effects}

    def _limit(self, name: Effect) -> str:
        limit = self.effects[name].limits.high
        if name in LOGARITHMIC:
            return f"{math.expm1(limit):+.0%}"
        return f"{100 * limit:+.0f} points"

    def _hold_against_promise(self, why: str) -> None:
        self.incomparable = why
        alone = server_monitors(self.promised)
        self.effects = {
            "slowness": alone["slowness"],
            "ttft_excess": alone["ttft_excess"],
            "failed": self.effects["failed"],
            "preemptions": _monitor(PREEMPTIONS, reach=0.5),
        }

    def _against_promise(self, baseline: Pair, canary: Pair) -> dict[Effect, float | None]:
        server = server_values(*canary)
        return {
            "slowness": server["slowness"],
            "ttft_excess": server["ttft_excess"],
            "failed": _less(failed_share(canary[0]), failed_share(baseline[0])),
            "preemptions": _preemptions(canary),
        }


WORDS: Mapping[Effect, str] = {
    "tpot": "time per output token",
    "ttft": "time to first token",
    "e2el_tail": "requests beyond the promised E2EL tail",
    "failed": "requests that fail",
    "preemptions": "preemptions per request",
    "slowness": "time of iterations over the law",
    "ttft_excess": "requests that wait long for their first token",
}


def _monitor(limit: float, reach: float) -> Monitor:
    return Monitor(MonitorLimits(-math.inf, limit, reach), 0.1)


def _in_words(name: Effect, one: MonitorReading) -> str:
    words = WORDS[name]
    if one.value is None:
        return f"{words} unknown"
    numbers = (one.value.value, one.value.low, one.value.high)
    if name in LOGARITHMIC:
        value, low, high = (f"{x - 1:+.1%}" for x in numbers)
        return f"{words} {value} (95 %: {low} to {high})"
    value, low, high = (f"{100 * x:+.1f}" for x in numbers)
    return f"{words} {value} points (95 %: {low} to {high})"


def _against_baseline(baseline: Pair, canary: Pair) -> dict[Effect, float | None]:
    one, other = baseline[1], canary[1]
    return {
        "tpot": _less(_log_gap(other), _log_gap(one)),
        "ttft": _less(_log(other.ttft_ratio), _log(one.ttft_ratio)),
        "e2el_tail": _less(other.e2el_tail, one.e2el_tail),
        "failed": _less(failed_share(canary[0]), failed_share(baseline[0])),
        "preemptions": _less(_preemptions(canary), _preemptions(baseline)),
    }


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _log(value: float | None) -> float | None:
    return math.log(value) if value else None


def _log_gap(found: Compared) -> float | None:
    if not found.gap_s or not found.expected_gap_s:
        return None
    return math.log(found.gap_s / found.expected_gap_s)


def _preemptions(pair: Pair) -> float | None:
    """Return preemptions per request that ended, more than the twin says."""
    share, expected = preempted_share(pair[0]), pair[1].expected
    served = len(expected.e2el_s)
    return None if share is None or not served else share - expected.preemptions / served


@dataclass(frozen=True, slots=True)
class PairedWindows:
    baseline: Pair
    canary: Pair
    incomparable: str
    """Why the twin can say nothing of the baseline."""


def paired(
    watches: tuple[Watch, Watch],
    windows: tuple[ScrapeWindow, ScrapeWindow],
    *,
    kv_blocks: int | None,
) -> PairedWindows:
    """Hold both windows against the twin; ``kv_blocks`` are the baseline's, where it tells.

    What runs is taken in; the rest is ``Watch.account``'s.
    """
    for watch, window in zip(watches, windows, strict=True):
        watch.running.add(window)
    baseline, canary = watches
    planned, known = baseline.promised.max_num_seqs, baseline.promised.known_cap
    cap = baseline.running.cap(planned)
    found = baseline.compared(windows[0], cap=min(cap, known), kv_blocks=kv_blocks)
    return PairedWindows(
        baseline=(windows[0], found),
        canary=(windows[1], canary.compared(windows[1], cap=planned)),
        incomparable=f"the baseline ran {cap} requests at a time, and the twin saw {known} at most"
        if cap > known
        else "",
    )


def kv_blocks_said(cache_config: Mapping[str, str], *, block_size: int) -> int | None:
    """Return the KV cache of ``vllm:cache_config_info`` in blocks of this size; None if untold.

    vLLM counts a block among them that no request gets.
    """
    try:
        blocks, size = int(cache_config["num_gpu_blocks"]), int(cache_config["block_size"])
    except (KeyError, ValueError):
        return None
    if blocks < 2 or size < 1:
        return None
    return min(MOST_BLOCKS, max(1, (blocks - 1) * size // block_size))
