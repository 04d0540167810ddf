"""Is the canary worse than the baseline? Both watched at the same moments, paired by window. Pure.

Each server is first held against what the twin says of its own requests: what is left of a
difference is not their load. What both feel at the same moment cancels. An effect is claimed, or
ruled out, by the tests of ``watch.sequential``, however often one looks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tuner.watch.expected import Compared
from tuner.watch.sequential import Limits, Monitor
from tuner.watch.verdict import LEAST_REQUESTS, LEAST_WINDOWS, Measured, measured
from tuner.watch.watched import failed_share, preempted_share
from tuner.watch.windows import Window

Decision = Literal["promote", "roll back", "undecided"]
Effect = Literal["tpot", "ttft", "e2el_tail", "failed", "preemptions"]

TPOT, TTFT = math.log(1.10), math.log(1.25)
"""So much longer (as logarithms) a canary's mean gap between tokens, and its mean TTFT, may be."""

E2EL_TAIL, FAILED, PREEMPTIONS = 0.05, 0.02, 0.10
"""So many more of its requests may take longer than the promised tail, end with an error or
aborted, or lose their KV cache."""

LIMITS: Mapping[Effect, Limits] = {
    "tpot": Limits(-math.inf, TPOT, reach=0.3, back=0.15),
    "ttft": Limits(-math.inf, TTFT, reach=0.9, back=1.0),
    "e2el_tail": Limits(-math.inf, E2EL_TAIL, reach=0.2, back=0.3),
    "failed": Limits(-math.inf, FAILED, reach=0.08, back=0.1),
    "preemptions": Limits(-math.inf, PREEMPTIONS, reach=0.4, back=0.5),
}

LOGARITHMIC: frozenset[str] = frozenset({"tpot", "ttft"})


@dataclass(slots=True)
class CanaryGate:
    """What the pairs of windows say so far."""

    pairs: int = 0
    requests: int = 0
    """Of the canary."""

    effects: dict[Effect, Monitor] = field(
        default_factory=lambda: {name: Monitor(limits, 0.1) for name, limits in LIMITS.items()}
    )
    gone: str = ""
    """Why the canary does not answer any more, while the baseline does."""

    def add(
        self, baseline: tuple[Window, Compared], canary: tuple[Window, Compared]
    ) -> dict[Effect, float]:
        """Take in what both did at the same time; return the effects of this pair."""
        self.pairs += 1
        self.requests += sum(len(part) for part in canary[1].traffic)
        found: dict[Effect, float] = {}
        for name in self.effects:
            one, other = _value(name, *baseline), _value(name, *canary)
            if one is not None and other is not None:
                found[name] = other - one
                self.effects[name].add(other - one)
        return found

    @property
    def decision(self) -> Decision:
        if self.gone or any(one.state == "above" for one in self.effects.values()):
            return "roll back"
        enough = self.pairs >= LEAST_WINDOWS and self.requests >= LEAST_REQUESTS
        return "promote" if enough and not self.lacking else "undecided"

    @property
    def lacking(self) -> list[Effect]:
        """The effects that are not ruled out."""
        return [name for name, one in self.effects.items() if one.state != "within"]

    @property
    def reason(self) -> str:
        """Why, in words."""
        if self.gone:
            return f"the canary does not answer any more: {self.gone}"
        shown = self.shown()
        match self.decision:
            case "roll back":
                worse = [name for name, one in self.effects.items() if one.state == "above"]
                return "; ".join(f"{shown[name]}: the limit is {_limit(name)}" for name in worse)
            case "promote":
                return "; ".join(shown[name] for name in self.effects)
            case "undecided":
                return f"not ruled out: {', '.join(WORDS[name] for name in self.lacking)}"

    def measures(self) -> dict[str, Measured]:
        """Return every effect: ratios of times, differences of shares."""
        return {
            name: measured(monitor, logarithmic=name in LOGARITHMIC)
            for name, monitor in self.effects.items()
        }

    def shown(self) -> dict[str, str]:
        """Return every effect in words, with its interval."""
        found = {}
        for name, one in self.measures().items():
            words = WORDS[name]
            if one.value is None:
                found[name] = f"{words} unknown"
            elif name in LOGARITHMIC:
                value = [f"{x - 1:+.1%}" for x in (one.value.value, one.value.low, one.value.high)]
                found[name] = f"{words} {value[0]} (95 %: {value[1]} to {value[2]})"
            else:
                points = [
                    f"{100 * x:+.1f}" for x in (one.value.value, one.value.low, one.value.high)
                ]
                found[name] = f"{words} {points[0]} points (95 %: {points[1]} to {points[2]})"
        return found


WORDS: Mapping[str, str] = {
    "tpot": "time per output token",
    "ttft": "time to first token",
    "e2el_tail": "requests beyond the promised E2EL tail",
    "failed": "requests that fail",
    "preemptions": "preemptions per request",
}


def _limit(name: Effect) -> str:
    limit = LIMITS[name].high
    return f"{math.expm1(limit):+.0%}" if name in LOGARITHMIC else f"{100 * limit:+.0f} points"


def _value(name: Effect, window: Window, found: Compared) -> float | None:
    match name:
        case "tpot":
            if not found.gap_s or not found.expected_gap_s:
                return None
            return math.log(found.gap_s / found.expected_gap_s)
        case "ttft":
            return math.log(found.ttft_ratio) if found.ttft_ratio else None
        case "e2el_tail":
            return found.e2el_tail
        case "failed":
            return failed_share(window)
        case "preemptions":
            share = preempted_share(window)
            served = len(found.expected.e2el_s)
            return (
                None
                if share is None or not served
                else share - (found.expected.preemptions / served)
            )
