"""The limits of every alert and panel: where a server leaves what its profile promises. Pure.

Each is the profile's own number, with the tolerance of ``tuner verify`` on top.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.profile.numbers import CapNumbers, Predicted
from tuner.profile.schema import ServingProfile, SloSection
from tuner.profile.tolerances import ATTAINMENT_TOLERANCE, SLACK_S, TOLERANCE
from tuner.traffic.window import parse_window

Latency = Literal["itl", "ttft", "e2el"]
LATENCIES: tuple[Latency, ...] = ("itl", "ttft", "e2el")

PREEMPTIONS_TOLERANCE = 0.01
"""Preemptions for each request, on top of the share: where none was promised a share of it is
nothing."""

MOST_MISSED = 0.5
"""An engine that serves fewer than half within the SLO is worth an alert, whatever was promised."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A promised number, and the worst that still counts as kept."""

    promised: float
    limit: float


@dataclass(frozen=True, slots=True)
class Lines:
    """All of one engine; None where the profile says nothing."""

    cap: int
    in_flight: int | None
    requests_per_s: float
    means_s: Mapping[Latency, Threshold]
    """Mean latencies: sum / count of a histogram is exact, its quantiles are not."""

    kv_cache_usage: Threshold | None
    preemptions_per_request: Threshold | None
    attainment: Threshold
    slo_s: Mapping[str, float]
    """``ttft``, ``tpot``, ``e2el`` → the SLO's limit. One that grows with the prompt is left out: a
    histogram does not tell which request had which prompt."""

    settings: Mapping[str, str]
    """Label of ``vllm:cache_config_info`` → its value."""

    @property
    def budget(self) -> float:
        """The share of requests that may miss the SLO."""
        return 1 - self.attainment.limit


_TOLD = {
    "block_size": "block_size",
    "enable_prefix_caching": "enable_prefix_caching",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_dtype": "cache_dtype",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
}
"""Engine arguments that a server tells of → the label."""


def lines(profile: ServingProfile) -> Lines:
    """Return the limits that the profile's numbers set, up to the load that was validated."""
    promised = profile.promise
    validated = [one for one in promised.predicted if one.load <= profile.validity.validated_load]
    every: list[CapNumbers] = [promised, *validated]
    return Lines(
        cap=profile.decision.max_num_seqs,
        in_flight=profile.validity.peak_concurrency,
        requests_per_s=profile.validity.arrival_rate_rps * profile.validity.validated_load,
        means_s={name: line for name in LATENCIES if (line := _mean_s(name, every)) is not None},
        kv_cache_usage=_kv_cache_usage(promised, validated),
        preemptions_per_request=_preemptions(profile, validated),
        attainment=_attainment(promised, validated),
        slo_s=_slo_s(profile.decision.slo),
        settings={
            label: str(profile.engine[name])
            for name, label in _TOLD.items()
            if profile.engine.get(name) is not None
        },
    )


def _mean_s(name: Latency, every: Sequence[CapNumbers]) -> Threshold | None:
    """Return the mean at the captured load, and the highest up to the validated one."""
    spreads = [
        spread
        for one in every
        if (spread := getattr(one, f"{name}_ms") or (one.tpot_ms if name == "itl" else None))
    ]
    if not spreads:
        return None
    highest_s = max(spread.mean for spread in spreads) / 1e3
    return Threshold(spreads[0].mean / 1e3, highest_s * (1 + TOLERANCE) + SLACK_S[name])


def _kv_cache_usage(promised: CapNumbers, validated: Sequence[Predicted]) -> Threshold | None:
    """Return the peak; None where all of it was in use, so that no more can be."""
    known = [one.kv_cache_usage for one in (promised, *validated) if one.kv_cache_usage]
    if not known:
        return None
    highest = max([one.peak for one in known] + list(_highs(validated, "kv_cache_usage_peak")))
    limit = highest * (1 + TOLERANCE)
    return Threshold(known[0].peak, limit) if limit < 1 else None


def _preemptions(profile: ServingProfile, validated: Sequence[Predicted]) -> Threshold | None:
    """Return them for each request, of the whole part where the twin tells, else of the windows."""
    promised, validity = profile.promise, profile.validity
    if validated:
        seconds = _seconds([validity.window])
        rates = [validity.arrival_rate_rps * one.load for one in validated]
        counts = [max([one.preemptions, *_highs([one], "preemptions")]) for one in validated]
    else:
        seconds = _seconds(validity.windows)
        rates, counts = [promised.requests_per_s], [promised.preemptions]
    shares = [
        count / (rate * seconds)
        for count, rate in zip(counts, rates, strict=True)
        if rate * seconds > 0
    ]
    if not shares:
        return None
    return Threshold(shares[0], max(shares) * (1 + TOLERANCE) + PREEMPTIONS_TOLERANCE)


def _seconds(windows: Sequence[str]) -> float:
    return sum(parsed[1] for one in windows if (parsed := parse_window(one)) is not None)


def _attainment(promised: CapNumbers, validated: Sequence[Predicted]) -> Threshold:
    lowest = min(
        [promised.attainment, *(one.attainment for one in validated)]
        + [one.on_any_day["attainment"][0] for one in validated if "attainment" in one.on_any_day]
    )
    return Threshold(promised.attainment, max(0.0, lowest - ATTAINMENT_TOLERANCE))


def _highs(validated: Sequence[Predicted], name: str) -> Iterator[float]:
    return (one.on_any_day[name][1] for one in validated if name in one.on_any_day)


def _slo_s(slo: SloSection) -> dict[str, float]:
    limits_ms = {
        "ttft": None if slo.ttft_ms_per_input_token else slo.ttft_ms,
        "tpot": slo.tpot_ms,
        "e2el": slo.e2el_ms,
    }
    return {name: ms / 1e3 for name, ms in limits_ms.items() if ms is not None}
