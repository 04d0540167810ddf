"""vLLM's metrics as PromQL: how what a profile promises is asked of a Prometheus. Pure.

Names are those of vLLM 0.32; where an older vLLM had another, both are asked for.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import UsageError
from tuner.rollout.monitoring.lines import Latency

_MATCHER = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\.)*")\s*')

HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    # The older name says TPOT; what it counted was the gap between two tokens.
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot": ("request_time_per_output_token_seconds",),
    "ttft": ("time_to_first_token_seconds",),
    "e2el": ("e2e_request_latency_seconds",),
}
_KV_CACHE_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")

_GAPS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
BOUNDS_S: Mapping[str, Sequence[float]] = {
    "ttft": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    "tpot": _GAPS_S,
    "e2el": (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
        *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
}
"""Upper ends of vLLM 0.32's buckets; a test on vLLM holds them."""


def text(value: str) -> str:
    """Return a PromQL string; nothing in it is a variable of Grafana's."""
    return json.dumps(value, ensure_ascii=False).replace("$", r"\x24").replace("[[", r"\x5b[")


def selector(asked: str) -> str:
    """Return label matchers as they go between braces. Raises UsageError for anything else."""
    inner = asked.strip()
    inner = inner[1:-1] if inner.startswith("{") and inner.endswith("}") else inner
    found, at = [], 0
    while (one := _MATCHER.match(inner, at)) is not None:
        found.append(one[1] + one[2] + one[3])
        at = one.end()
        if at == len(inner) or inner[at] != ",":
            break
        at += 1
    if not found or at != len(inner):
        raise UsageError(
            f"--selector {asked!r}: no label matchers of PromQL",
            hint="""For example: --selector 'job="vllm",namespace=~"prod.*"'""",
        )
    return ",".join(found)


def bound_s(limit: str, seconds: float) -> float | None:
    """Return the lowest end of a bucket at or above an SLO's limit; None beyond the last."""
    return next((bound for bound in BOUNDS_S[limit] if bound >= seconds), None)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that are meant, and what is asked of them, each by engine."""

    matchers: str

    def running(self) -> str:
        return self._series("num_requests_running")

    def waiting(self) -> str:
        return self._series("num_requests_waiting")

    def in_flight(self) -> str:
        return f"({self.running()} + {self.waiting()})"

    def requests_per_s(self, window: str) -> str:
        counted = self._series("request_success_total")
        return f"sum without (finished_reason) (rate({counted}[{window}]))"

    def requests(self, window: str) -> str:
        counted = self._series("request_success_total")
        return f"sum without (finished_reason) (increase({counted}[{window}]))"

    def mean_s(self, latency: Latency, window: str) -> str:
        """Return the mean over a window, which a histogram's sum and count give exactly."""
        return " or ".join(
            f"(rate({self._series(f'{name}_sum')}[{window}]) "
            f"/ rate({self._series(f'{name}_count')}[{window}]))"
            for name in HISTOGRAMS[latency]
        )

    def quantile_s(self, latency: str, share: float, window: str) -> str:
        return " or ".join(
            f"histogram_quantile({share:g}, rate({self._series(f'{name}_bucket')}[{window}]))"
            for name in HISTOGRAMS[latency]
        )

    def missed(self, limit: str, bound: float, window: str) -> str:
        """Return the share of requests above the bucket's end: those that missed for certain."""
        (name,) = HISTOGRAMS[limit]
        whole, _, decimals = f"{bound:g}".partition(".")
        le = f"{whole}\\\\.{decimals}" if decimals else f"{whole}(\\\\.0)?"
        kept = self._series(f"{name}_bucket", f'le=~"{le}"')
        every = self._series(f"{name}_count")
        return f"1 - sum without (le) (rate({kept}[{window}])) / rate({every}[{window}])"

    def kv_cache_usage(self) -> str:
        return "(" + " or ".join(self._series(name) for name in _KV_CACHE_USAGE) + ")"

    def preemptions_per_request(self, window: str) -> str:
        preempted = self._series("num_preemptions_total")
        return f"rate({preempted}[{window}]) / ({self.requests_per_s(window)} > 0)"

    def other_settings(self, settings: Mapping[str, str]) -> str:
        """Return the servers that state another value; the metric does not name the model."""
        stated = " or ".join(
            f'vllm:cache_config_info{{{label}!={text(value)},{label}!=""}}'
            for label, value in settings.items()
        )
        return f"({stated}) and on (job, instance) {self.running()}"

    def absent(self) -> str:
        return f"absent({self.running()})"

    def _series(self, name: str, more: str = "") -> str:
        return f"vllm:{name}{{{','.join(one for one in (self.matchers, more) if one)}}}"
