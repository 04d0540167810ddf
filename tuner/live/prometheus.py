"""The metrics of a vLLM server at ``/metrics``, summed over its engines. Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.errors import InputError

RUNNING, WAITING = "num_requests_running", "num_requests_waiting"
FIRST_TOKEN_S, GAP_S = "time_to_first_token_seconds", "inter_token_latency_seconds"
PROMPT, OUTPUT = "request_prompt_tokens", "request_generation_tokens"
FINISHED, TOKENS = "request_success_total", "generation_tokens_total"
QUERIED, CACHED = "prefix_cache_queries_total", "prefix_cache_hits_total"
"""vLLM's names, without ``vllm:``."""

LONGEST_LINE = 16_384
"""prometheus_client (0.26) reads a line in time that grows with the square of its length."""

MOST = 1e15
"""Beyond which a value is none: a broken server may report anything."""

RESTART_S = 1.0
"""Start times that differ by less are one start: they are rounded."""


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """One reading, or what came between two."""

    values: Mapping[str, float]
    """vLLM's name of a sample, of a bucket with a blank and its bound behind → the sum over all
    engines and label sets."""
    engines: int = 1
    models: tuple[str, ...] = ()
    started_s: float = 0.0
    """When the server's process started, in seconds since 1970; 0 where it does not say."""
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """vLLM's cache configuration as text: ``block_size``, ``num_gpu_blocks``, …"""

    def get(self, name: str) -> float:
        return max(0.0, self.values.get(name, 0.0))

    @property
    def in_flight(self) -> float:
        return self.get(RUNNING) + self.get(WAITING)

    def mean(self, name: str) -> float:
        """Return the mean of a histogram; NaN without any values."""
        count = self.get(f"{name}_count")
        return self.get(f"{name}_sum") / count if count else math.nan

    def continues(self, before: "ServerMetrics") -> bool:
        """Whether the server was not restarted: all that is counted has only grown."""
        return (
            abs(self.started_s - before.started_s) <= RESTART_S
            and self.engines == before.engines
            and all(
                self.values.get(name, value) >= value
                for name, value in before.values.items()
                if _is_counted(name)
            )
        )

    def since(self, before: "ServerMetrics") -> "ServerMetrics":
        """Return the increments since a reading that this one continues; gauges are as now."""
        values = {
            name: value - before.values.get(name, value) if _is_counted(name) else value
            for name, value in self.values.items()
        }
        return ServerMetrics(values, self.engines)


def _is_counted(name: str) -> bool:
    return name.endswith(("_total", "_count", "_sum")) or "_bucket " in name


def parse(text: str, *, source: str) -> ServerMetrics:
    """Read the text of ``/metrics``. Raises InputError for text that is not Prometheus text, or not
    vLLM's, or of several models."""
    from prometheus_client.parser import (  # noqa: PLC0415 - brings a web server along
        text_string_to_metric_families,
    )

    values: defaultdict[str, float] = defaultdict(float)
    engines, models, cache_config, started_s = set[str](), set[str](), dict[str, str](), 0.0
    not_one, hint = f"{source}: not Prometheus text", "Is the address the server's /metrics?"
    longest = max(map(len, text.split("\n")))
    if longest > LONGEST_LINE:
        raise InputError(f"{not_one}: a line of {longest} characters", hint=hint)
    try:
        families = text_string_to_metric_families(text)
        for sample in (sample for family in families for sample in family.samples):
            name, labels, value = sample.name.removeprefix("vllm:"), sample.labels, sample.value
            if name == "process_start_time_seconds":
                started_s = value
            elif sample.name.startswith("vllm:"):
                engines.add(labels.get("engine", "0"))
                models |= {labels["model_name"]} if "model_name" in labels else set()
                cache_config = labels if name == "cache_config_info" else cache_config
                if abs(value) < MOST:  # not of what is no number
                    values[f"{name} {float(labels['le'])}" if "le" in labels else name] += value
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(f"{not_one}: {str(error)[:100]}", hint=hint) from error
    if not values:
        raise InputError(
            f"{source}: no metric of vLLM in it",
            hint="Check the address, and that the server runs without --disable-log-stats.",
        )
    if len(models) > 1:
        raise InputError(
            f"{source}: {len(models)} models: {', '.join(sorted(models))[:100]}",
            hint="Give the address of a server of one model.",
        )
    return ServerMetrics(values, len(engines), tuple(models), started_s, cache_config)
