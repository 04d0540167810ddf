"""One window of a live server in numbers: what it showed, what it should have shown. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.engines.scheduler.state import Floats
from tuner.live.prometheus import Distribution, Histogram
from tuner.live.watch.expected import Compared
from tuner.live.watch.windows import ScrapeWindow, add_to, quantile_range, total

TIMES: tuple[Distribution, ...] = ("ttft_s", "itl_s", "tpot_s", "e2el_s", "queue_s")


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
    """Mean time from one token of a request to the next: decode time per token."""

    promised_gap_ms: float | None
    slowness: float | None
    ttft_p95_ms: tuple[float, float | None] | None
    """Between these bounds of its histogram; None above the last."""

    promised_ttft_p95_ms: float | None
    e2el_p95_ms: tuple[float, float | None] | None
    promised_e2el_p95_ms: float | None
    running: float
    """Mean over the scrapes, per engine."""

    promised_running: float
    waiting: float
    kv_cache_usage: float | None
    preemptions: float
    restarts: int


def seen(number: int, window: ScrapeWindow, found: Compared) -> WindowSummary:
    """Return the numbers of a window that was held against the twin."""
    steps = window.every_step
    usage = [one.kv_cache_usage for one in steps if one.kv_cache_usage is not None]
    expected = found.expected
    return WindowSummary(
        number=number,
        begin_s=window.begin_s,
        end_s=window.end_s,
        arrived=sum(len(traffic) for traffic in found.traffic),
        finished=round(sum(one.finished for one in steps)),
        failed=round(sum(one.failed for one in steps)),
        gap_ms=_ms(found.gap_s),
        promised_gap_ms=_ms(found.expected_gap_s),
        slowness=found.slowdown,
        ttft_p95_ms=_range_ms(window, "ttft_s"),
        promised_ttft_p95_ms=_p95_ms(expected.ttft_s),
        e2el_p95_ms=_range_ms(window, "e2el_s"),
        promised_e2el_p95_ms=_p95_ms(expected.e2el_s),
        running=float(np.mean([one.running for one in steps])) if steps else 0.0,
        promised_running=expected.running,
        waiting=float(np.mean([one.waiting for one in steps])) if steps else 0.0,
        kv_cache_usage=max(usage, default=None),
        preemptions=sum(one.counters.get("preemptions", 0.0) for one in steps),
        restarts=window.restarts,
    )


def _range_ms(window: ScrapeWindow, name: Distribution) -> tuple[float, float | None] | None:
    counted = total(window.every_step, name)
    found = None if counted is None else quantile_range(counted, 0.95)
    if found is None:
        return None
    return found[0] * 1e3, found[1] * 1e3 if math.isfinite(found[1]) else None


def _p95_ms(values_s: Sequence[float] | Floats) -> float | None:
    return float(np.quantile(values_s, 0.95)) * 1e3 if len(values_s) else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


@dataclass(slots=True)
class Totals:
    """Times over the whole watch, in the server's buckets: counted, and promised for this load."""

    counted: dict[Distribution, Histogram] = field(default_factory=dict)
    promised: dict[Distribution, Histogram] = field(default_factory=dict)

    def add(self, window: ScrapeWindow, found: Compared) -> None:
        for name in TIMES:
            add_to(self.counted, name, total(window.every_step, name))
        predicted_s: dict[Distribution, Floats] = {
            "ttft_s": found.expected.ttft_s,
            "e2el_s": found.expected.e2el_s,
        }
        for name, times_s in predicted_s.items():
            like = self.counted.get(name)
            if like is not None:
                known = times_s[~np.isnan(times_s)]
                counts = tuple(float((known <= bound).sum()) for bound in like.bounds)
                add_to(self.promised, name, Histogram(like.bounds, counts, float(known.sum())))

    def ranges_ms(self, fractions: Sequence[float] = (0.5, 0.95, 0.99)) -> dict[str, Any]:
        """Return mean and quantiles of every time; a quantile is the range that it lies in."""
        found: dict[str, Any] = {}
        for kind, histograms in (("counted", self.counted), ("promised", self.promised)):
            for name, one in histograms.items():
                if not one.count:
                    continue
                key = f"{name.removesuffix('_s')}_ms"
                entry = found.setdefault(key, {})
                entry[kind] = {
                    "count": round(one.count),
                    "mean": one.total / one.count * 1e3,
                    **{f"p{100 * q:g}": _quantile_ms(one, q) for q in fractions},
                }
        return found


def _quantile_ms(one: Histogram, fraction: float) -> list[float | None]:
    found = quantile_range(one, fraction) or (0.0, math.inf)
    return [1e3 * bound if math.isfinite(bound) else None for bound in found]
