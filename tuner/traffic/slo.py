"""The service-level objective one request must meet: given by the user, or derived. Pure."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import UsageError
from tuner.traffic.constants import GOOD_ATTAINMENT, HALF

_LIMIT = re.compile(r"(?P<key>[a-z0-9]+)\s*(?:<=|=)\s*(?P<value>[0-9.eE+-]+)\s*(?P<unit>ms|s)")
_EXAMPLE = "Write it as ttft=500ms,tpot=50ms,e2el=10s; every limit is optional, its unit is not."

TPOT_SLACK = 2.0
TTFT_SLACK = 5.0
QUEUE_SHARE = 0.5
"""Factors of a derived SLO over an idle engine: twice its TPOT; five times its TTFT plus half of
its median E2EL. From the study of stop rules on simulated worlds (docs/decisions)."""


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

    def is_like(self, other: "Slo") -> bool:
        """Whether these are the other's limits, but for what two machines round differently.

        >>> Slo(tpot_s=0.1 + 0.2).is_like(Slo(tpot_s=0.3)), Slo(tpot_s=0.3).is_like(Slo(ttft_s=0.3))
        (True, False)
        """
        return all(
            each == another
            or (each is not None and another is not None and math.isclose(each, another))
            for each, another in (
                (self.ttft_s, other.ttft_s),
                (self.ttft_s_per_input_token, other.ttft_s_per_input_token),
                (self.tpot_s, other.tpot_s),
                (self.e2el_s, other.e2el_s),
            )
        )

    def typed(self) -> str:
        """Return an SLO that was given as ``--slo`` takes it.

        >>> Slo(ttft_s=0.5, e2el_s=10.0).typed()
        'ttft=500ms,e2el=10000ms'
        """
        limits = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2el": self.e2el_s}
        return ",".join(
            f"{name}={1e3 * limit:.9g}ms" for name, limit in limits.items() if limit is not None
        )

    def __str__(self) -> str:
        limits = [
            f"{name}<={limit * 1e3:,.0f}ms"
            for name, limit in (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2el", self.e2el_s))
            if limit is not None
        ]
        if self.ttft_s_per_input_token:
            limits[0] += f"+{self.ttft_s_per_input_token * 1e3:.3g}ms per input token"
        return ", ".join(limits) + (" (derived)" if self.derived else "")


def parse_slo(text: str) -> Slo:
    """Read ``ttft=500ms,tpot=50ms,e2el=10s``.

    Raises UsageError for an unknown or repeated key, a missing unit, or a limit that is not a
    positive number.
    """
    limits: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        result = _LIMIT.fullmatch(part)
        if result is None or result["key"] not in {"ttft", "tpot", "e2el"}:
            raise UsageError(f"--slo: cannot read {part!r}", hint=_EXAMPLE)
        try:
            seconds = float(result["value"]) * (1e-3 if result["unit"] == "ms" else 1.0)
        except ValueError:
            raise UsageError(f"--slo: {result['value']!r} is no number", hint=_EXAMPLE) from None
        if not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"--slo: {part!r} is not a positive time", hint=_EXAMPLE)
        if result["key"] in limits:
            raise UsageError(f"--slo: {result['key']} is given twice", hint="Give each limit once.")
        limits[result["key"]] = seconds
    if not limits:
        raise UsageError("--slo: no limit given", hint=_EXAMPLE)
    return Slo(ttft_s=limits.get("ttft"), tpot_s=limits.get("tpot"), e2el_s=limits.get("e2el"))


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
    import numpy as np  # noqa: PLC0415 - slow to load, and apply only reads limits

    lengths = np.asarray(input_lengths, float)
    ttfts = np.asarray(ttfts_s, float)
    centred = lengths - lengths.mean()
    spread = float(centred @ centred)
    slope = max(0.0, float(centred @ ttfts) / spread) if spread else 0.0
    base = max(0.0, float(np.median(ttfts - slope * lengths)))
    return Unloaded(base, slope, float(np.median(tpots_s)) if len(tpots_s) else 0.0)


def out_of_reach(slo: Slo, unloaded: Unloaded) -> str | None:
    """Say which limit even an idle engine breaks, for the shortest prompt; None when none is."""
    if unloaded.ttft_s > slo.ttft_limit_s(0):
        limit_ms, needed_ms = slo.ttft_limit_s(0) * 1e3, unloaded.ttft_s * 1e3
        name = "TTFT"
    elif slo.tpot_s is not None and unloaded.tpot_s > slo.tpot_s:
        limit_ms, needed_ms, name = slo.tpot_s * 1e3, unloaded.tpot_s * 1e3, "TPOT"
    elif slo.e2el_s is not None and unloaded.ttft_s > slo.e2el_s:
        limit_ms, needed_ms, name = slo.e2el_s * 1e3, unloaded.ttft_s * 1e3, "E2EL at least"
    else:
        return None
    return (
        f"an idle engine needs {needed_ms:.3g} ms {name}, the SLO allows {limit_ms:.3g} ms: no cap "
        "and no number of replicas can meet it; relax the SLO"
    )


def derive_slo(unloaded: Unloaded, lengths: Sequence[tuple[int, int]]) -> Slo:
    """Return the SLO that an idle engine's own speed implies for these (input, output) lengths.

    TPOT limit = 2 x the unloaded TPOT. TTFT limit of a request = 5 x its unloaded TTFT + half of
    the median unloaded E2EL.
    """
    e2els = [unloaded.residence_s(*pair) for pair in lengths]
    return Slo(
        ttft_s=TTFT_SLACK * unloaded.ttft_s + QUEUE_SHARE * statistics.median(e2els),
        ttft_s_per_input_token=TTFT_SLACK * unloaded.ttft_s_per_input_token,
        tpot_s=TPOT_SLACK * unloaded.tpot_s if unloaded.tpot_s > 0 else None,
        derived=True,
    )
