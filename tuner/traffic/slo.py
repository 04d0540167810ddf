"""The service-level objective one request must meet: given by the user, or derived. Pure."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import UsageError
from tuner.traffic.constants import GOOD_ATTAINMENT, HALF

_LIMIT = re.compile(r"(ttft|tpot|e2el)\s*<?=\s*(\d{1,9}(?:\.\d*)?|\.\d+)\s*(ms|s)")
_EXAMPLE = "Write it as ttft=500ms,tpot=50ms,e2el=10s; every limit is optional, its unit is not."


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; a request meets the SLO when it meets every limit that is set."""

    ttft_s: float | None = None
    ttft_s_per_input_token: float = 0.0
    """Added to ``ttft_s`` for each prompt token: only a derived SLO grows with the prompt."""

    tpot_s: float | None = None
    e2el_s: float | None = None
    derived: bool = False

    def ttft_limit_s(self, input_length: int) -> float:
        if self.ttft_s is None:
            return math.inf
        return self.ttft_s + self.ttft_s_per_input_token * input_length

    def broken_by(self, input_length: Any, ttft_s: Any, tpot_s: Any, e2el_s: Any) -> Any:  # noqa: ANN401 - numbers or arrays
        """Whether a request, or each in arrays, breaks a limit. NaN, such as the TPOT of a reply of
        one token, breaks none."""
        broken = ttft_s > self.ttft_limit_s(input_length)
        for value_s, limit_s in ((tpot_s, self.tpot_s), (e2el_s, self.e2el_s)):
            if limit_s is not None:
                broken = broken | (value_s > limit_s)
        return broken

    def limits_s(self) -> dict[str, float]:
        """Return the limits that are set, by name."""
        limits = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2el": self.e2el_s}
        return {name: limit_s for name, limit_s in limits.items() if limit_s is not None}

    def __str__(self) -> str:
        """Return the SLO as ``--slo`` takes one that was given.

        >>> str(Slo(ttft_s=0.1 + 0.2, e2el_s=10.0))
        'ttft<=300ms, e2el<=10000ms'
        """
        limits = [f"{name}<={limit_s * 1e3:.6g}ms" for name, limit_s in self.limits_s().items()]
        if self.ttft_s_per_input_token:
            limits[0] += f"+{self.ttft_s_per_input_token * 1e3:.3g}ms per input token"
        return ", ".join(limits)


def parse_slo(text: str) -> Slo:
    """Read ``ttft=500ms,tpot=50ms,e2el=10s``. Raises UsageError."""
    limits: dict[str, float] = {}
    for part in text.lower().split(","):
        match = _LIMIT.fullmatch(part.strip())
        if match is None or match[1] in limits or not float(match[2]):
            raise UsageError(f"--slo: cannot read {part!r} in {text!r}", hint=_EXAMPLE)
        limits[match[1]] = float(match[2]) * (1e-3 if match[3] == "ms" else 1.0)
    return Slo(limits.get("ttft"), tpot_s=limits.get("tpot"), e2el_s=limits.get("e2el"))


def holds(today: float, raised: float) -> bool:
    """Whether a cap with so much attainment today still holds a load with so much.

    >>> holds(0.99, 0.975), holds(0.99, 0.96), holds(0.45, 0.45)
    (True, False, False)
    """
    return raised >= HALF and raised >= today - GOOD_ATTAINMENT


@dataclass(frozen=True, slots=True)
class Unloaded:
    """The cost of requests on an idle engine, one at a time; times in seconds."""

    ttft_s: float
    ttft_s_per_input_token: float
    """TTFT = ttft_s + ttft_s_per_input_token x input_length, fitted over the probes."""

    tpot_s: float

    def residence_s(self, input_length: int, output_length: int) -> float:
        """Return the shortest time this request can hold a slot."""
        prefill_s = self.ttft_s + self.ttft_s_per_input_token * input_length
        return prefill_s + self.tpot_s * (output_length - 1)


def fit_unloaded(
    input_lengths: Sequence[int], ttfts_s: Sequence[float], tpots_s: Sequence[float]
) -> Unloaded:
    """Fit the unloaded TTFT by prompt length (least squares, no negative slope) and median TPOT."""
    slope = 0.0
    if len(set(input_lengths)) > 1:
        slope = max(0.0, statistics.linear_regression(input_lengths, ttfts_s).slope)
    pairs = zip(input_lengths, ttfts_s, strict=True)
    base = max(0.0, statistics.median(ttft_s - slope * length for length, ttft_s in pairs))
    return Unloaded(base, slope, statistics.median(tpots_s) if tpots_s else 0.0)


def out_of_reach(slo: Slo, unloaded: Unloaded) -> str | None:
    """Say which limit even an idle engine breaks, for the shortest prompt; None when none is."""
    needed_s = {"ttft": unloaded.ttft_s, "tpot": unloaded.tpot_s, "e2el": unloaded.ttft_s}
    for name, limit_s in slo.limits_s().items():
        if needed_s[name] > limit_s:
            return (
                f"an idle engine needs {needed_s[name] * 1e3:.3g} ms {name.upper()}, the SLO "
                f"allows {limit_s * 1e3:.3g} ms: no cap and no number of replicas can meet it; "
                "relax the SLO"
            )
    return None
