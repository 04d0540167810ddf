"""A server whose every number can be set, as promtool and Prometheus get to see it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.profiles import profile
from tuner.profile.profile import ServingProfile
from tuner.rollout import monitor

STEP_S = 60
MINUTES = 62
"""How long a case lasts: longer than any alert needs."""

LABELS = {"instance": "gpu1:8000", "job": "vllm", "model_name": "m", "engine": "0"}


@dataclass(frozen=True, slots=True)
class Server:
    """What a server does every minute; at first exactly what ``support.profiles`` promises."""

    running: float = 10
    waiting: float = 0
    waiting_grows: float = 0
    """Requests a minute."""

    requests: float = 480
    """A minute, as the rest that is counted."""

    ttft_s: float = 0.040
    itl_s: float = 0.040
    e2el_s: float = 0.040
    missed_tpot: float = 0.0
    """Share of requests whose TPOT is twice the SLO's limit of 50 ms."""

    missed_ttft: float = 0.0
    kv: float = 0.5
    labels: Mapping[str, str] = field(default_factory=lambda: LABELS)


def series(server: Server) -> Iterator[tuple[str, float, float]]:
    """Yield (series, value at first, what a minute adds)."""

    def named(name: str, **more: str) -> str:
        pairs = ",".join(f'{key}="{value}"' for key, value in {**server.labels, **more}.items())
        return f"vllm:{name}{{{pairs}}}"

    yield named("num_requests_running"), server.running, 0
    yield named("num_requests_waiting"), server.waiting, server.waiting_grows
    yield named("kv_cache_usage_perc"), server.kv, 0
    for reason, share in (("stop", 0.75), ("length", 0.25)):
        yield named("request_success_total", finished_reason=reason), 0, share * server.requests
    for name, mean_s in (
        ("time_to_first_token_seconds", server.ttft_s),
        ("inter_token_latency_seconds", server.itl_s),
        ("e2e_request_latency_seconds", server.e2el_s),
    ):
        yield named(f"{name}_sum"), 0, mean_s * server.requests
        yield named(f"{name}_count"), 0, server.requests
        yield named(f"{name}_bucket", le="+Inf"), 0, server.requests
        if name != "time_to_first_token_seconds":
            yield named(f"{name}_bucket", le="0.1"), 0, server.requests
    for limit, name, missed, kept_s in (
        ("ttft", "time_to_first_token_seconds", server.missed_ttft, 0.5),
        ("tpot", "request_time_per_output_token_seconds", server.missed_tpot, 0.05),
    ):
        for bound in (
            each
            for each in monitor.template()["buckets_s"][limit]
            if kept_s / 3 < each < kept_s * 3
        ):
            share = 0 if bound < kept_s else 1 - missed if bound <= 2 * kept_s else 1
            yield named(f"{name}_bucket", le=str(float(bound))), 0, share * server.requests
        if limit == "tpot":
            yield named(f"{name}_count"), 0, server.requests


Firing = tuple[str, str, str]
"""An alert: its name, its severity and, of several with one name, its window."""


@dataclass(frozen=True, slots=True)
class Case:
    """A server, and exactly the alerts that fire in the end."""

    server: Server
    firing: Sequence[Firing] = ()


def unit_test(rules: str, servers: Iterable[Server], firing: Mapping[str, Iterable[Firing]]) -> str:
    """Return a file for ``promtool test rules``: these servers side by side, and exactly the alerts
    that fire in the end, by instance."""
    samples = [
        {"labels": _labels(instance, *each), "value": 1}
        for instance, fired in firing.items()
        for each in sorted(fired)
    ]
    fired = (
        'count by (instance, alertname, severity, window) (ALERTS{alertstate="firing"}) > bool 0'
    )
    test = {
        "interval": f"{STEP_S}s",
        "input_series": [
            {"series": name, "values": f"{first:.9g}+{step:.9g}x{MINUTES}"}
            for server in servers
            for name, first, step in series(server)
        ],
        "promql_expr_test": [{"expr": fired, "eval_time": f"{MINUTES}m", "exp_samples": samples}],
    }
    return json.dumps({"rule_files": [rules], "evaluation_interval": "1m", "tests": [test]})


def _labels(instance: str, name: str, severity: str, window: str) -> str:
    labels = {"instance": instance, "alertname": name, "severity": severity, "window": window}
    pairs = ",".join(f'{key}="{value}"' for key, value in labels.items() if value)
    return "{" + pairs + "}"


def rules(chosen: ServingProfile | None = None, *, matchers: str | None = None) -> str:
    return monitor.render("prometheus-rules", chosen or profile(), matchers=matchers)
