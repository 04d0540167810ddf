"""Alert and recording rules for Prometheus: a file for ``rule_files``. Pure."""

from tuner.engines.models import shipped as models
from tuner.profile.schema import ServingProfile
from tuner.rollout.monitoring import seal
from tuner.rollout.monitoring.alerts import MISSED, Alert, alerts, bounds, literal, windows
from tuner.rollout.monitoring.lines import LATENCIES, Lines, lines
from tuner.rollout.monitoring.promql import Servers, text
from tuner.system import yaml_strict

NAME = "prometheus-rules"
DEFAULT_FILE = "tuner-rules.yaml"
SUFFIXES: tuple[str, ...] = (".yaml", ".yml", ".rules")
NEXT = "promtool check rules {file}, then name it under rule_files in prometheus.yml"


def render(profile: ServingProfile, *, matchers: str) -> str:
    """Return the file; without matchers it watches the servers of the profile's model."""
    body = yaml_strict.dump({"groups": groups(profile, matchers)})
    return seal.sealed(head(profile, NAME) + body)


def head(profile: ServingProfile, kind: str) -> str:
    return (
        f"# {seal.mark(kind, profile.digest)}\n"
        "# Every limit is the profile's; the next apply writes the file anew.\n"
    )


def groups(profile: ServingProfile, matchers: str) -> list[dict[str, object]]:
    """Return the groups: what is recorded, and the alerts that rest on it."""
    limits, servers = lines(profile), Servers(matchers or own_matchers(profile))
    name = f"tuner {literal(profile.provenance.model)} {short(profile)}"
    alerting = [_rule(alert, profile) for alert in alerts(limits, servers, short(profile))]
    return [
        {"name": f"{name} recorded", "rules": _recorded(limits, servers, profile)},
        {"name": f"{name} alerts", "rules": alerting},
    ]


def own_matchers(profile: ServingProfile) -> str:
    """Return what selects the servers of the profile's model: the name that vLLM serves it by."""
    served = profile.engine.get("served_model_name")
    first = served[0] if isinstance(served, list) and served else served
    return f"model_name={text(str(first or models.model_path(profile.model)))}"


def short(profile: ServingProfile) -> str:
    """Return the digest as a label: no reader of YAML takes it for a number, as it would 12e34."""
    return profile.digest.replace(":", "-")[: len("sha256-") + 12]


def _recorded(limits: Lines, servers: Servers, profile: ServingProfile) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [
        {
            "record": f"{MISSED}{window}",
            "expr": servers.missed(limit, bound, window),
            "labels": {"limit": limit, "tuner_profile": short(profile)},
        }
        for limit, bound in bounds(limits).items()
        for window in windows()
    ]
    found += [
        {"record": f"tuner:{latency}_seconds:mean5m", "expr": servers.mean_s(latency, "5m")}
        for latency in LATENCIES
        if latency in limits.means_s
    ]
    return [*found, {"record": "tuner:in_flight:sum", "expr": servers.in_flight()}]


def _rule(alert: Alert, profile: ServingProfile) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **({"for": alert.hold} if alert.hold else {}),
        "labels": {
            "severity": alert.severity,
            "tuner_profile": short(profile),
            **({"window": alert.window} if alert.window else {}),
        },
        "annotations": {
            "summary": alert.summary,
            "description": alert.action,
            "profile": profile.digest,
        },
    }
