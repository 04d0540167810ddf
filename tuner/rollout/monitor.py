"""Files that watch servers, made whole from a profile: rules for Prometheus, a dashboard. Pure.

What they say is data: ``alerts.yaml`` and ``dashboard.json``.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from tuner.engines.models import shipped as models
from tuner.errors import TargetError, UsageError
from tuner.profile.schema import ServingProfile
from tuner.rollout.limits import limits, settings, slo_s
from tuner.system import yaml_strict
from tuner.system.printable import in_markdown

LEAST_MISSED = 5
"""Requests that must miss for an alert: fewer may do so by chance, at night for example."""

MOST_MISSED = 0.5
"""An engine that serves fewer than half within the SLO is worth an alert, whatever was promised."""

_PLACEHOLDER = re.compile(r"<(\w+)(?: (\w+))?>")
_MATCHER = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\.)*")\s*')
_MARK = re.compile(r"Written by tuner apply --to ([a-z-]+) from profile")


@dataclass(frozen=True)
class Kind:
    """A kind of file that is tuner's own from the first byte on."""

    name: str
    file: str
    """Written when no file is named."""

    next: str
    """What to do with it: ``{file}`` is its name."""


KINDS = (
    Kind(
        "prometheus-rules", "tuner-rules.yaml",
        "promtool check rules {file}, then name it under rule_files in prometheus.yml",
    ),
    Kind(
        "prometheus-rule-crd", "tuner-prometheus-rule.yaml",
        "kubectl apply -f {file}, with the labels that your Prometheus' ruleSelector asks for",
    ),
    Kind(
        "grafana-dashboard", "tuner-dashboard.json",
        "import {file} in Grafana (Dashboards, New, Import), or provision its folder",
    ),
)  # fmt: skip


def kind_of(to: str | None, text: str) -> Kind | None:
    """Return the kind that is named, or that an existing file says it is of; None for another."""
    found = _MARK.search(text[:4000])
    name = to if to is not None else found and found[1]
    return next((kind for kind in KINDS if kind.name == name), None)


def check_replaceable(text: str, kind: Kind, *, source: str) -> None:
    """Raise TargetError for a file that is not of this kind: it is written whole."""
    found = _MARK.search(text[:4000])
    if found is None or found[1] != kind.name:
        raise TargetError(
            f"{source}: is there already, and not a file of kind {kind.name} that tuner wrote",
            hint="Name another file: this kind is written whole, and nothing of it would stay.",
        )


def render(kind: Kind, profile: ServingProfile, *, matchers: str) -> str:
    """Return the file's text. ``matchers`` select the servers in PromQL; empty: by the model."""
    mark = f"Written by tuner apply --to {kind.name} from profile {profile.digest}"
    values = _values(profile, matchers or own_matchers(profile))
    if kind.name == "grafana-dashboard":
        return json.dumps(_dashboard(profile, values, mark), indent=2, ensure_ascii=False) + "\n"
    document: dict[str, object] = {"groups": _groups(profile, values)}
    if kind.name == "prometheus-rule-crd":
        name = re.sub("[^a-z0-9]+", "-", profile.provenance.model.lower())[-56:].strip("-")
        labels = {"app.kubernetes.io/managed-by": "tuner", "tuner-profile": short(profile)}
        document = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": f"tuner-{name}".strip("-"), "labels": labels},
            "spec": document,
        }
    return (
        f"# {mark}\n# Every limit is the profile's; the next apply writes the file anew.\n"
        + yaml_strict.dump(document)
    )


# Names and selectors


def text(value: str) -> str:
    """Return a PromQL string; nothing in it is a variable of Grafana's."""
    return json.dumps(value, ensure_ascii=False).replace("$", r"\x24").replace("[[", r"\x5b[")


def selector(asked: str) -> str:
    """Return label matchers as they go between braces. Raises UsageError for anything else."""
    inner = asked.strip()
    inner = inner[1:-1] if inner.startswith("{") and inner.endswith("}") else inner
    found, at = list[str](), 0
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


def own_matchers(profile: ServingProfile) -> str:
    """Return what selects the servers of the profile's model: the name that vLLM serves it by."""
    served = profile.engine.get("served_model_name")
    first = served[0] if isinstance(served, list) and served else served
    return f"model_name={text(str(first or models.model_path(profile.model)))}"


def short(profile: ServingProfile) -> str:
    """Return the digest as a label: no reader of YAML takes it for a number, as it would 12e34."""
    return profile.digest.replace(":", "-")[: len("sha256-") + 12]


def literal(words: str) -> str:
    """Return a text on one line in which Prometheus' templates find nothing to replace."""
    return " ".join(words.split()).replace("{{", "{ {")


# Templates


class _MissingError(Exception):
    """A profile says nothing of what a template asks for."""


@cache
def template() -> dict[str, Any]:
    """Return the rules' template."""
    source = resources.files(__package__).joinpath("alerts.yaml").read_text(encoding="utf-8")
    parsed: dict[str, Any] = yaml.safe_load(source)
    return parsed


def filled(node: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - JSON
    """Return a template with its placeholders filled; of a list, the items that can be.

    Raises _MissingError for a placeholder without a value.
    """
    if isinstance(node, dict):
        return {key: filled(value, values) for key, value in node.items()}
    if isinstance(node, list):
        items = []
        for each in node:
            with suppress(_MissingError):
                items.append(filled(each, values))
        return items
    if not isinstance(node, str):
        return node
    whole = _PLACEHOLDER.fullmatch(node)
    if whole and not isinstance(values.get(whole[1], ""), str):
        return values[whole[1]]

    def value_of(found: re.Match[str]) -> str:
        name, window = found.groups()
        inner = {**values, "window": window} if window else values
        if name in template()["series"]:
            return str(filled(template()["series"][name], inner))
        if name not in inner:
            raise _MissingError(name)
        value = inner[name]
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    return _PLACEHOLDER.sub(value_of, node)


def _values(profile: ServingProfile, matchers: str) -> dict[str, object]:
    """Return what placeholders stand for."""
    values: dict[str, object] = {"servers": matchers, "profile": short(profile), **limits(profile)}
    for name in [*values]:
        seconds = values[name]
        if name.startswith(("itl", "ttft", "e2el")) and isinstance(seconds, float):
            values[f"{name}_ms"] = f"{seconds * 1e3:.4g}"
    if "kv_promised" in values:
        values["kv_promised"] = f"{values['kv_promised']:.1%}"
    if stated := settings(profile):
        others = " or ".join(
            f'vllm:cache_config_info{{{label}!={text(value)},{label}!=""}}'
            for label, value in stated.items()
        )
        values["other_settings"] = (
            f"({others}) and on (job, instance) {filled('<running>', values)}"
        )
        values["settings"] = literal(", ".join(f"{name} {v}" for name, v in stated.items()))
    return values


def _groups(profile: ServingProfile, values: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the groups: what is recorded, and the alerts that rest on it."""
    name = f"tuner {literal(profile.provenance.model)} {short(profile)}"
    windows = dict.fromkeys(burn[end] for burn in template()["burns"] for end in ("short", "long"))
    missed = [
        filled(template()["missed"], {**values, **each, "window": window})
        for each in missed_limits(profile)
        for window in windows
    ]
    recorded = filled(template()["recorded"], values)
    alerts = filled(template()["alerts"], values)
    if missed:
        alerts = [
            filled(template()["burning"], {**values, **burn, "window": burn["long"]})
            for burn in burns(1 - float(str(values["attainment_limit"])))
        ] + alerts
    for each in recorded:
        each.pop("needs", None)
    for each in alerts:
        each["labels"]["tuner_profile"] = short(profile)
        each["annotations"]["profile"] = profile.digest
    return [
        {"name": f"{name} recorded", "rules": [*missed, *recorded]},
        {"name": f"{name} alerts", "rules": alerts},
    ]


def missed_limits(profile: ServingProfile) -> list[dict[str, object]]:
    """Return the SLO's limits that vLLM's buckets can show missed: those above the next end of a
    bucket have missed for certain."""
    result = list[dict[str, object]]()
    for limit, seconds in slo_s(profile).items():
        bound = next((each for each in template()["buckets_s"][limit] if each >= seconds), None)
        if bound is not None:
            whole, _, decimals = f"{bound:g}".partition(".")
            le = f"{whole}\\\\.{decimals}" if decimals else f"{whole}(\\\\.0)?"
            histogram = template()["histograms"][limit]
            result.append({"limit": limit, "bound": f"{bound:g}", "le": le, "histogram": histogram})
    return result


def burns(budget: float) -> list[dict[str, object]]:
    """Return the windows that can tell, with the share of missed requests that each allows.

    A budget so large that more than half of all requests would have to miss keeps the fastest
    window with that half.
    """
    result = list[dict[str, object]]()
    for burn in template()["burns"]:
        threshold = burn["factor"] * budget
        if threshold < MOST_MISSED or not result:
            share = min(threshold, MOST_MISSED)
            result.append({**burn, "share": share, "enough": LEAST_MISSED / share})
    return result


# The dashboard


def _dashboard(profile: ServingProfile, values: dict[str, object], mark: str) -> dict[str, object]:
    source = resources.files(__package__).joinpath("dashboard.json").read_text(encoding="utf-8")
    decided, matchers = profile.decision, str(values["servers"])
    servers = f'{matchers},instance=~"$instance"'
    about = (
        f"**{in_markdown(decided.reason)}**\n\n"
        f"max_num_seqs **{decided.max_num_seqs}** ({decided.interval[0]}-{decided.interval[1]}), "
        f"OK up to {profile.validity.validated_load:g}x the recorded load. "
        "Red lines are where the promise ends; the first dashed line is what was promised.\n\n"
        f"`{profile.digest}`"
    )
    own = {
        **values,
        **limits(profile),
        "servers": servers,
        "window": "$__rate_interval",
        "mark": mark,
        "matchers": matchers,
        "about": about,
        "uid": f"tuner-{short(profile)}",
        "title": f"vLLM at its knee: {profile.provenance.model}"[:200],
        "budget": 1 - float(str(values["attainment_limit"])),
    }
    if "other_settings" in own:
        own["other_settings"] = str(own["other_settings"]).replace(matchers, servers)
    for each in missed_limits(profile):
        own[f"missed_{each['limit']}"] = filled("<missed>", {**own, **each})
        own[f"bound_{each['limit']}"] = each["bound"]
    dashboard: dict[str, Any] = filled(json.loads(source), own)
    first, *graphs = [each for each in dashboard["panels"] if each.get("targets", True)]
    places = [(0, 0, 3), *((n % 3, 1 + n // 3, 1) for n in range(len(graphs)))]
    dashboard["panels"] = [
        {"id": n, "gridPos": {"x": 8 * x, "y": 8 * y, "w": 8 * width, "h": 8}, **panel}
        for n, ((x, y, width), panel) in enumerate(zip(places, [first, *graphs], strict=True), 1)
    ]
    return dashboard
