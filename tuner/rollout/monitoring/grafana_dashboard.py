"""A dashboard for Grafana: what the profile promises as lines in what the server does. Pure."""

import json
from collections.abc import Iterator

from tuner.profile.numbers import CurveStep
from tuner.profile.schema import ServingProfile
from tuner.rollout.monitoring import seal
from tuner.rollout.monitoring.alerts import bounds
from tuner.rollout.monitoring.lines import LATENCIES, Latency, Lines, lines
from tuner.rollout.monitoring.panels import Panel, PanelQuery, arranged
from tuner.rollout.monitoring.prometheus_rules import own_matchers, short
from tuner.rollout.monitoring.promql import Servers
from tuner.system.printable import in_markdown

NAME = "grafana-dashboard"
DEFAULT_FILE = "tuner-dashboard.json"
SUFFIXES: tuple[str, ...] = (".json",)
NEXT = "import {file} in Grafana (Dashboards, New, Import), or provision its folder"

_RATE = "$__rate_interval"
_LEGEND = "{{instance}} {{engine}}"
_TITLES: dict[Latency, str] = {
    "itl": "Decode time per token",
    "ttft": "Time to first token",
    "e2el": "End-to-end latency",
}
_SLO_OF: dict[Latency, str] = {"itl": "tpot", "ttft": "ttft", "e2el": "e2el"}


def render(profile: ServingProfile, *, matchers: str) -> str:
    limits, chosen = lines(profile), matchers or own_matchers(profile)
    servers = Servers(f'{chosen},instance=~"$instance"')
    panels = [_about(profile), *_load(limits, servers), *_served(limits, servers)]
    panels += [*_latencies(limits, servers), *_memory(limits, servers)]
    dashboard = {
        "description": seal.mark(NAME, profile.digest),
        "uid": f"tuner-{short(profile)}",
        "title": f"vLLM at its knee: {profile.provenance.model}"[:200],
        "tags": ["tuner", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_datasource(), _instance(chosen)]},
        "annotations": {"list": []},
        "panels": arranged(panels),
    }
    return seal.sealed(json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n")


def _datasource() -> dict[str, object]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }


def _instance(matchers: str) -> dict[str, object]:
    query = f"label_values(vllm:num_requests_running{{{matchers}}}, instance)"
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": "instance"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _about(profile: ServingProfile) -> Panel:
    """Say what was decided and why, with the curve."""
    decided = profile.decision
    rows = "\n".join(_row(step, decided.max_num_seqs) for step in profile.curve)
    words = (
        f"**{in_markdown(decided.reason)}**\n\n"
        f"max_num_seqs **{decided.max_num_seqs}** ({decided.interval[0]}-{decided.interval[1]}), "
        f"validated to {profile.validity.validated_load:g} times the traffic of the trace. "
        "Red lines are where the promise ends; the first dashed line is what was promised.\n\n"
        "| max_num_seqs | within the SLO | goodput/s | p95 TPOT ms | p99 E2EL ms |\n"
        f"|---|---|---|---|---|\n{rows}\n\n`{profile.digest}`"
    )
    return Panel("The profile", "text", text=words, width=24, height=8)


def _row(step: CurveStep, chosen: int) -> str:
    name = f"**{step.max_num_seqs}**" if step.max_num_seqs == chosen else f"{step.max_num_seqs}"
    tpot = f"{step.tpot_ms.p95:.4g}" if step.tpot_ms else ""
    e2el = f"{step.e2el_ms.p99:.4g}" if step.e2el_ms else ""
    return f"| {name} | {step.attainment:.1%} | {step.goodput_rps:.4g} | {tpot} | {e2el} |"


def _load(limits: Lines, servers: Servers) -> Iterator[Panel]:
    yield Panel(
        "Running and waiting",
        "timeseries",
        "Running at the line with requests waiting: the cap binds.",
        targets=(
            PanelQuery(servers.running(), f"running {_LEGEND}"),
            PanelQuery(servers.waiting(), f"waiting {_LEGEND}"),
        ),
        lines=(limits.cap,),
    )
    yield Panel(
        "In flight",
        "timeseries",
        "Beyond the line the profile promises nothing.",
        targets=(PanelQuery(servers.in_flight(), _LEGEND),),
        lines=() if limits.in_flight is None else (limits.in_flight,),
    )
    yield Panel(
        "Requests finished",
        "timeseries",
        "The line is the load that was validated.",
        unit="reqps",
        targets=(PanelQuery(servers.requests_per_s(_RATE), _LEGEND),),
        lines=(limits.requests_per_s,),
    )


def _served(limits: Lines, servers: Servers) -> Iterator[Panel]:
    targets = tuple(
        PanelQuery(servers.missed(name, bound, _RATE), f"{name} > {bound:g} s {_LEGEND}")
        for name, bound in bounds(limits).items()
    )
    if targets:
        yield Panel(
            "Requests that missed the SLO",
            "timeseries",
            "At least this share of requests, for vLLM's histograms only tell of their buckets. "
            "The line is the share that may.",
            unit="percentunit",
            targets=targets,
            lines=(limits.budget,),
        )


def _latencies(limits: Lines, servers: Servers) -> Iterator[Panel]:
    for latency in LATENCIES:
        line, slo = limits.means_s.get(latency), limits.slo_s.get(_SLO_OF[latency])
        yield Panel(
            _TITLES[latency],
            "timeseries",
            "The mean is held against the promise. p95 is read from buckets, so it is rough"
            + ("." if slo is None else f"; the SLO's limit is {slo * 1e3:.4g} ms."),
            unit="s",
            targets=(
                PanelQuery(servers.mean_s(latency, _RATE), f"mean {_LEGEND}"),
                PanelQuery(servers.quantile_s(latency, 0.95, _RATE), f"p95 {_LEGEND}"),
            ),
            lines=() if line is None else (line.limit,),
            promised=None if line is None else line.promised,
        )


def _memory(limits: Lines, servers: Servers) -> Iterator[Panel]:
    usage, preempted = limits.kv_cache_usage, limits.preemptions_per_request
    yield Panel(
        "KV cache in use",
        "timeseries",
        unit="percentunit",
        targets=(PanelQuery(servers.kv_cache_usage(), _LEGEND),),
        lines=() if usage is None else (usage.limit,),
        promised=None if usage is None else usage.promised,
    )
    yield Panel(
        "Preemptions per request",
        "timeseries",
        targets=(PanelQuery(servers.preemptions_per_request(_RATE), _LEGEND),),
        lines=() if preempted is None else (preempted.limit,),
    )
    if limits.settings:
        yield Panel(
            "Servers with other settings",
            "stat",
            "Of the KV cache, than the profile's; tuner diff PROFILE --url says which.",
            targets=(
                PanelQuery(f"count({servers.other_settings(limits.settings)}) or vector(0)", ""),
            ),
            lines=(1,),
        )
