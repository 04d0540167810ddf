"""The metrics of a vLLM server at ``/metrics``, by our names, whichever vLLM wrote them. Pure."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Literal

from tuner.errors import InputError

Gauge = Literal["running", "waiting", "kv_cache_usage"]
Counter = Literal[
    "preemptions",
    "input_tokens",
    "output_tokens",
    "requests",
    "prefix_cache_queries",
    "prefix_cache_hits",
]
Distribution = Literal[
    "ttft_s",
    "itl_s",
    "tpot_s",
    "e2el_s",
    "queue_s",
    "prefill_s",
    "decode_s",
    "input_length",
    "output_length",
]

LONGEST_LINE = 16_384
"""Characters: prometheus_client (0.26) reads a line in time that grows with the square of its
length. vLLM's longest, of cache_config_info, has some thousand."""

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
    "prefill_s": "request_prefill_time_seconds",
    "decode_s": "request_decode_time_seconds",
    "input_length": "request_prompt_tokens",
    "output_length": "request_generation_tokens",
}
"""Our name → vLLM's without ``vllm:``."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution since the server started."""

    bounds: tuple[float, ...]
    """Upper ends of the buckets, rising, the last one infinite."""

    counts: tuple[float, ...]
    """Values up to each bound."""

    total: float
    """Sum of all values."""

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def since(self, earlier: "Histogram") -> "Histogram":
        """Return what came after ``earlier``; all of it if the server was restarted between.

        A garbled reading can take counts away from a bucket: it then counts as empty.
        """
        if earlier.bounds != self.bounds or earlier.count > self.count:
            return self
        added = self.count - earlier.count
        steps = (now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        counts = accumulate((min(step, added) for step in steps), max, initial=0.0)
        return Histogram(self.bounds, tuple(counts)[1:], self.total - earlier.total)


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """One reading of a server. What it does not tell is absent."""

    gauges: Mapping[Gauge, float]
    """Summed over the server's engines; ``kv_cache_usage`` is the fullest engine's, 0-1."""

    counters: Mapping[Counter, float]
    distributions: Mapping[Distribution, Histogram]
    finish_reasons: Mapping[str, float] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """vLLM's cache configuration as text: ``block_size``, ``num_gpu_blocks``, …"""

    models: tuple[str, ...] = ()
    started_s: float | None = None
    """When the server's process started, in seconds since 1970."""


def parse(text: str, *, source: str, model: str | None = None) -> ServerMetrics:
    """Read the text of ``/metrics``; of ``model`` alone if the server has several.

    Raises InputError for text that is no such thing, or not vLLM's.
    """
    with _refusing(source):
        samples = _samples(text)
        metrics = _read(samples, model)
    if not samples:
        raise _not_vllm(source)
    _check_served(samples, model, source)
    return metrics


def parse_engines(
    text: str, *, source: str, model: str | None = None
) -> Mapping[str, ServerMetrics]:
    """Read every engine of a server on its own: its label ``engine`` → what it says.

    Old servers have one, without that label. Raises InputError as ``parse`` does.
    """
    with _refusing(source):
        by_engine: defaultdict[str, defaultdict[str, list[_Sample]]]
        by_engine = defaultdict(lambda: defaultdict(list))
        every = _samples(text)
        for name, found in every.items():
            for labels, value in found:
                by_engine[labels.get("engine", "0")][name].append((labels, value))
        started_s = _started_s(text)
        read = {
            engine: replace(metrics, started_s=started_s)
            for engine, samples in sorted(by_engine.items())
            if (metrics := _read(samples, model)).gauges
        }
    _check_served(every, model, source)
    if not read:
        raise _not_vllm(source)
    return read


@contextmanager
def _refusing(source: str) -> Iterator[None]:
    """Raise InputError for text that is no metrics."""
    try:
        yield
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(
            f"{source}: not Prometheus text: {str(error)[:100]}",
            hint="Check that the address is the server's /metrics.",
        ) from error


def _check_served(samples: "_Samples", model: str | None, source: str) -> None:
    served = _models(samples)
    if model is not None and served and model not in served:
        raise InputError(
            f"{source}: serves no model {model[:100]}, but {', '.join(served)[:200]}",
            hint="Its name is the first of --served-model-name, and in the label model_name there.",
        )


def _not_vllm(source: str) -> InputError:
    return InputError(
        f"{source}: no metric of vLLM in it",
        hint="Check the address, and that the server runs without --disable-log-stats.",
    )


def _started_s(text: str) -> float | None:
    """Return when the process started; with several processes a server does not tell."""
    found = re.search(r"^process_start_time_seconds ([-+.\deE]+)$", text, flags=re.MULTILINE)
    return float(found.group(1)) if found else None


_Sample = tuple[dict[str, str], float]
_Samples = Mapping[str, list[_Sample]]
"""Sample name without ``vllm:`` → label sets with their values."""


def _samples(text: str) -> _Samples:
    from prometheus_client.parser import (  # noqa: PLC0415 - brings a web server along
        text_string_to_metric_families,
    )

    longest = max(map(len, text.split("\n")))
    if longest > LONGEST_LINE:
        raise ValueError(f"a line of {longest} characters")
    samples: defaultdict[str, list[_Sample]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                samples[sample.name.removeprefix("vllm:")].append((sample.labels, sample.value))
    return samples


def _read(every: _Samples, model: str | None) -> ServerMetrics:
    samples: _Samples = {
        name: [one for one in found if model is None or one[0].get("model_name", model) == model]
        for name, found in every.items()
    }
    return ServerMetrics(
        gauges={
            ours: max(values) if ours == "kv_cache_usage" else sum(values)
            for ours, theirs in _GAUGES.items()
            if (values := _values(samples, theirs))
        },
        counters={
            ours: sum(values)
            for ours, theirs in _COUNTERS.items()
            if (values := _values(samples, theirs))
        },
        distributions={
            ours: histogram
            for ours, theirs in _DISTRIBUTIONS.items()
            if (histogram := _histogram(samples, theirs)) is not None
        },
        finish_reasons=_by_label(samples.get("request_success_total", []), "finished_reason"),
        cache_config=_told([labels for labels, _ in samples.get("cache_config_info", [])]),
        models=_models(every),
    )


def _models(samples: _Samples) -> tuple[str, ...]:
    named = (labels.get("model_name") for found in samples.values() for labels, _ in found)
    return tuple(sorted({name for name in named if name is not None}))


def _told(infos: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return what all engines say; where they differ, all that they say."""
    names = dict.fromkeys(name for labels in infos for name in labels)
    return {
        name: ", ".join(dict.fromkeys(labels[name] for labels in infos if name in labels))
        for name in names
    }


def _values(samples: _Samples, name: str) -> list[float]:
    """Return the finite values of a metric, one a label set."""
    found = samples.get(f"{name}_total") or samples.get(name, [])
    return [value for _, value in found if math.isfinite(value)]


def _histogram(samples: _Samples, name: str) -> Histogram | None:
    """Return a histogram, added up over its label sets; None where it is not there."""
    counts: defaultdict[float, float] = defaultdict(float)
    for labels, value in samples.get(f"{name}_bucket", []):
        bound = float(labels["le"])
        if math.isnan(bound):
            raise ValueError("a bucket without a bound")
        counts[bound] += value
    if not counts:
        return None
    bounds = tuple(sorted(counts))
    total = sum(value for _, value in samples.get(f"{name}_sum", []))
    upto = tuple(counts[bound] for bound in bounds)
    rises = all(one <= other for one, other in pairwise((0.0, *upto)))
    if not (rises and math.isinf(bounds[-1]) and math.isfinite(upto[-1] + total)):
        raise ValueError(f"the buckets of {name} are no distribution")
    return Histogram(bounds, upto, total)


def _by_label(found: Iterable[tuple[dict[str, str], float]], label: str) -> dict[str, float]:
    values: defaultdict[str, float] = defaultdict(float)
    for labels, value in found:
        if math.isfinite(value):
            values[labels[label]] += value
    return dict(values)
