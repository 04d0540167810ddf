"""The metrics of a vLLM server at ``/metrics``, by our names, whichever vLLM wrote them. Pure."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

from tuner.errors import InputError

Gauge = Literal["running", "waiting", "kv_cache_usage"]
Counter = Literal[
    "preemptions", "input_tokens", "output_tokens", "requests",
    "prefix_cache_queries", "prefix_cache_hits",
]  # fmt: skip
Distribution = Literal[
    "ttft_s", "itl_s", "tpot_s", "e2el_s", "queue_s", "input_length", "output_length"
]

LONGEST_LINE = 16_384
"""prometheus_client (0.26) reads a line in time that grows with the square of its length."""

RESTART_S = 1.0
"""Start times that differ by less are one start: they are rounded."""

_GAUGES: Mapping[Gauge, str] = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv_cache_usage": "kv_cache_usage_perc",
}
_COUNTERS: Mapping[Counter, str] = {
    "preemptions": "num_preemptions",
    "input_tokens": "prompt_tokens",
    "output_tokens": "generation_tokens",
    "requests": "request_success",
    "prefix_cache_queries": "prefix_cache_queries",
    "prefix_cache_hits": "prefix_cache_hits",
}
_DISTRIBUTIONS: Mapping[Distribution, str] = {
    "ttft_s": "time_to_first_token_seconds",
    "itl_s": "inter_token_latency_seconds",
    "tpot_s": "request_time_per_output_token_seconds",
    "e2el_s": "e2e_request_latency_seconds",
    "queue_s": "request_queue_time_seconds",
    "input_length": "request_prompt_tokens",
    "output_length": "request_generation_tokens",
}
"""Our name → vLLM's without ``vllm:``."""

_Samples = dict[str, list[tuple[dict[str, str], float]]]
"""Sample name without ``vllm:`` → label sets with their values."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution since the server started, or between two readings."""

    bounds: tuple[float, ...]
    """Upper ends of the buckets, ascending, the last one infinite."""

    counts: tuple[float, ...]
    """Values up to each bound."""

    total: float

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def since(self, earlier: "Histogram") -> "Histogram":
        """Return what came after ``earlier``; all of it if the server restarted in between.

        A garbled reading can take counts away from a bucket: it then counts as empty.
        """
        if earlier.bounds != self.bounds or earlier.count > self.count:
            return self
        added = self.count - earlier.count
        steps = (now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        counts = accumulate((min(step, added) for step in steps), max, initial=0.0)
        return Histogram(self.bounds, tuple(counts)[1:], self.total - earlier.total)

    def plus(self, other: "Histogram") -> "Histogram":
        """Return both as one distribution; after a restart with other buckets the newer one."""
        if other.bounds != self.bounds:
            return other
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        return Histogram(self.bounds, counts, self.total + other.total)


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """One reading of an engine, or what came between two. What it does not export is absent."""

    gauges: Mapping[Gauge, float]
    """``kv_cache_usage`` is 0-1."""

    counters: Mapping[Counter, float]
    distributions: Mapping[Distribution, Histogram]
    finish_reasons: Mapping[str, float] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """vLLM's cache configuration as text: ``block_size``, ``num_gpu_blocks``, …"""

    models: tuple[str, ...] = ()
    started_s: float | None = None
    """When the server's process started, in seconds since 1970."""

    def restarted_since(self, before: "ServerMetrics") -> bool:
        """Whether a counter fell, or the process reports another start time."""
        starts = [each.started_s for each in (before, self) if each.started_s is not None]
        if len(starts) == 2 and abs(starts[1] - starts[0]) > RESTART_S:
            return True
        fell = [self.counters.get(n, v) < v for n, v in before.counters.items()]
        fell += [
            self.distributions[n].count < h.count
            for n, h in before.distributions.items()
            if n in self.distributions
        ]
        return any(fell)

    def since(self, before: "ServerMetrics") -> "ServerMetrics":
        """Return the increments since an earlier reading; gauges are as now. What the earlier one
        lacks has no increment, and after a restart all is new."""
        if self.restarted_since(before):
            return self
        known = before.finish_reasons
        return ServerMetrics(
            self.gauges,
            {n: v - before.counters[n] for n, v in self.counters.items() if n in before.counters},
            {
                name: histogram.since(before.distributions[name])
                for name, histogram in self.distributions.items()
                if name in before.distributions
            },
            {n: v - known.get(n, 0.0) for n, v in self.finish_reasons.items() if known},
        )


def parse(text: str, *, source: str) -> dict[str, ServerMetrics]:
    """Read the text of ``/metrics``: each engine of a server by its label ``engine``. Old servers
    have one engine, without that label.

    Raises InputError for text that is not Prometheus text, or not vLLM's.
    """
    try:
        by_engine = _samples(text)
        started = re.search(r"^process_start_time_seconds ([-+.\deE]+)$", text, flags=re.MULTILINE)
        started_s = float(started.group(1)) if started else None
        result = {
            engine: _read(samples, started_s) for engine, samples in sorted(by_engine.items())
        }
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(
            f"{source}: not Prometheus text: {str(error)[:100]}",
            hint="Check that the address is the server's /metrics.",
        ) from error
    result = {engine: each for engine, each in result.items() if each.gauges or each.cache_config}
    if not result:
        raise InputError(
            f"{source}: no metric of vLLM in it",
            hint="Check the address, and that the server runs without --disable-log-stats.",
        )
    return result


def _samples(text: str) -> dict[str, _Samples]:
    """Return engine → its samples."""
    from prometheus_client.parser import (  # noqa: PLC0415 - brings a web server along
        text_string_to_metric_families,
    )

    longest = max(map(len, text.split("\n")))
    if longest > LONGEST_LINE:
        raise ValueError(f"a line of {longest} characters")
    result: dict[str, _Samples] = defaultdict(lambda: defaultdict(list))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                samples = result[sample.labels.get("engine", "0")]
                name = sample.name.removeprefix("vllm:")
                samples[name].append((sample.labels, sample.value))
    return result


def _read(samples: _Samples, started_s: float | None) -> ServerMetrics:
    gauges: dict[Gauge, float] = {}
    for gauge, theirs in _GAUGES.items():
        if values := _values(samples, theirs):
            gauges[gauge] = max(values) if gauge == "kv_cache_usage" else sum(values)
    reasons: defaultdict[str, float] = defaultdict(float)
    for labels, value in samples.get("request_success_total", []):
        if math.isfinite(value):
            reasons[labels["finished_reason"]] += value
    infos = samples.get("cache_config_info", [])
    names = {row.get("model_name") for rows in samples.values() for row, _ in rows}
    return ServerMetrics(
        gauges=gauges,
        counters={
            ours: sum(values)
            for ours, theirs in _COUNTERS.items()
            if (values := _values(samples, theirs))
        },
        distributions={
            ours: _histogram(samples, theirs)
            for ours, theirs in _DISTRIBUTIONS.items()
            if samples.get(f"{theirs}_bucket")
        },
        finish_reasons=dict(reasons),
        cache_config=infos[0][0] if infos else {},
        models=tuple(sorted(name for name in names if name is not None)),
        started_s=started_s,
    )


def _values(samples: _Samples, name: str) -> Sequence[float]:
    """Return the finite values of a metric, one for each label set."""
    rows = samples.get(f"{name}_total") or samples.get(name, [])
    return [value for _, value in rows if math.isfinite(value)]


def _histogram(samples: _Samples, name: str) -> Histogram:
    """Return a histogram, added up over its label sets."""
    counts: defaultdict[float, float] = defaultdict(float)
    for labels, value in samples[f"{name}_bucket"]:
        bound = float(labels["le"])
        if math.isnan(bound):
            raise ValueError("a bucket without a bound")
        counts[bound] += value
    bounds = tuple(sorted(counts))
    total = sum(value for _, value in samples.get(f"{name}_sum", []))
    upto = tuple(counts[bound] for bound in bounds)
    rises = all(low <= high for low, high in pairwise((0.0, *upto)))
    if not (rises and math.isinf(bounds[-1]) and math.isfinite(upto[-1] + total)):
        raise ValueError(f"the buckets of {name} are not a distribution")
    return Histogram(bounds, upto, total)
