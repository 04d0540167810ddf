"""Prometheus metrics: those of a vLLM server, summed over its engines, and tuner's own."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import prometheus_client
from prometheus_client.parser import text_string_to_metric_families

from tuner.errors import InputError, UsageError

RUNNING, WAITING = "num_requests_running", "num_requests_waiting"
FIRST_TOKENS, GAPS = "time_to_first_token_seconds_count", "inter_token_latency_seconds_count"
GAP_S, PROMPT = "inter_token_latency_seconds", "request_prompt_tokens"
OUTPUT, FINISHED, TOKENS = (
    "request_generation_tokens", "request_success_total", "generation_tokens_total",
)  # fmt: skip
QUERIED, CACHED = "prefix_cache_queries_total", "prefix_cache_hits_total"
"""vLLM's names, without ``vllm:``."""

START = "process_start_time_seconds"
COUNTED = ("_total", "_count", "_sum")
"""How the names of what only grows end."""

LONGEST_LINE = 16_384
"""prometheus_client (0.26) reads a line in time that grows with the square of its length."""

MOST = 1e15
"""Beyond which a value is none: a broken server may report anything."""


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """One reading, or what came between two."""

    values: Mapping[str, float]
    """vLLM's name of a sample → the sum over all engines and label sets; buckets are left out."""
    engines: int = 1
    model: str = ""
    cache_config: Mapping[str, str] | None = None
    """vLLM's cache configuration as text: ``block_size``, ``num_gpu_blocks``, …"""

    def get(self, name: str) -> float:
        return max(0.0, self.values.get(name, 0.0))

    def mean(self, name: str) -> float:
        """Return the mean of a histogram; NaN without any values."""
        count = self.get(f"{name}_count")
        return self.get(f"{name}_sum") / count if count else math.nan

    @property
    def prefix_share(self) -> float:
        """The share of prompt tokens that came from the prefix cache; NaN without a count."""
        queried = self.get(QUERIED)
        return min(1.0, self.get(CACHED) / queried) if queried else math.nan

    def since(self, before: "ServerMetrics") -> "ServerMetrics | None":
        """Return the increments since another reading, gauges as now; None where the server was
        restarted in between, or another one answers."""
        values = dict(self.values)
        for name in values.keys() & before.values.keys():
            if name.endswith(COUNTED):
                values[name] -= before.values[name]
        is_same = (
            abs(self.get(START) - before.get(START)) <= 1  # rounded
            and self.engines == before.engines
            and all(value >= 0 for name, value in values.items() if name.endswith(COUNTED))
        )
        return ServerMetrics(values, self.engines, self.model) if is_same else None


def parse(text: str, *, source: str) -> ServerMetrics:
    """Read the text of ``/metrics``. Raises InputError for text that is not Prometheus text, or not
    vLLM's, or of several models."""
    values = defaultdict[str, float](float)
    engines, models, cache_config = set[str](), set[str](), dict[str, str]()
    fault, hint = f"{source}: not Prometheus text", "Is the address the server's /metrics?"
    if (longest := max(map(len, text.split("\n")))) > LONGEST_LINE:
        raise InputError(f"{fault}: a line of {longest} characters", hint=hint)
    try:
        families = text_string_to_metric_families(text)
        for sample in (sample for family in families for sample in family.samples):
            name, labels = sample.name.removeprefix("vllm:"), sample.labels
            is_of_vllm = name != sample.name
            if (is_of_vllm or name == START) and abs(sample.value) < MOST and "le" not in labels:
                values[name] += sample.value
            if is_of_vllm:
                engines.add(labels.get("engine", "0"))
                models.add(labels.get("model_name", ""))
                cache_config = labels if name == "cache_config_info" else cache_config
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(f"{fault}: {str(error)[:100]}", hint=hint) from error
    if not values.keys() - {START}:
        raise InputError(
            f"{source}: no metric of vLLM in it",
            hint="Check the address, and that the server runs without --disable-log-stats.",
        )
    first, *others = sorted(models - {""}) or [""]
    if others:
        raise InputError(
            f"{source}: several models: {', '.join([first, *others])[:100]}",
            hint="Give the address of a server of one model.",
        )
    return ServerMetrics(values, len(engines), first, cache_config)


class Exporter:
    """Serves what a sweep measures and what a watch concludes at ``/metrics`` of this machine,
    until closed. Raises UsageError when the port is taken.

    Its registry is its own: vLLM fills, and empties, the global one.
    """

    def __init__(self, port: int) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._gauges = dict[str, prometheus_client.Gauge]()
        try:
            self._server, _ = prometheus_client.start_http_server(port, "127.0.0.1", self._registry)
        except OSError as error:
            hint = "Choose a free port."
            raise UsageError(f"--metrics-port {port}: {error.strerror}", hint=hint) from error

    def set(self, name: str, value: float, **labels: object) -> None:
        """Set ``tuner_NAME`` with these labels, always the same."""
        if name not in self._gauges:
            self._gauges[name] = prometheus_client.Gauge(
                f"tuner_{name}", name.replace("_", " "), list(labels), registry=self._registry
            )
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
