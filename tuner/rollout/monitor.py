"""Files that watch servers, made whole from a profile: rules for Prometheus, a dashboard.

What they say is data: ``alerts.yaml`` and ``dashboard.json``, whose placeholders are filled here.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

import yaml

from tuner.engines.models import shipped as models
from tuner.errors import TargetError, UsageError
from tuner.profile.profile import ServingProfile
from tuner.rollout.known import FACTS
from tuner.system import yaml_strict
from tuner.system.printable import in_markdown
from tuner.traffic.constants import ATTAINMENT_TOLERANCE, SLACK_S, TOLERANCE

LEAST_MISSED = 5
"""Requests that must miss for an alert: fewer may do so by chance, at night for example."""

MOST_MISSED = 0.5
"""More than half of all requests are worth an alert, whatever was promised."""

_PLACEHOLDER = re.compile(r"<(\w+)(?: (\w+))?>")
_MATCHER = r'\s*[A-Za-z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"\s*'
_MARK = re.compile(r"Written by tuner apply --to ([a-z-]+) from profile")


KINDS: dict[str, dict[str, str]] = FACTS["watching"]
"""Name of a kind, as in ``--to`` → its usual ``file``, and what to do ``next``."""


def kind_of(to: str | None, text: str) -> str | None:
    """Return the kind that is named, or that an existing file says it is of; None for another."""
    match = _MARK.search(text[:4000])
    name = to if to is not None else match and match[1]
    return name if name in KINDS else None


def check_replaceable(text: str, kind: str, *, source: str) -> None:
    """Raise TargetError for a file that is not of this kind: it is written whole."""
    if kind_of(None, text) != kind:
        raise TargetError(
            f"{source}: is there already, and not a file of kind {kind} that tuner wrote",
            hint="Name another file: this kind is written whole, and nothing of it would stay.",
        )


def render(kind: str, profile: ServingProfile, *, matchers: str | None = None) -> str:
    """Return the file's text. ``matchers`` select the servers in PromQL; by default the model does.

    Raises UsageError for what is no matchers.
    """
    served = profile.engine.get("served_model_name")
    first = served[0] if isinstance(served, list) and served else served
    own = f"model_name={text(str(first or models.model_path(profile.model)))}"
    values = _values(profile, own if matchers is None else selector(matchers))
    values["mark"] = f"Written by tuner apply --to {kind} from profile {profile.digest}"
    if kind == "grafana-dashboard":
        return json.dumps(_dashboard(profile, values), indent=2, ensure_ascii=False) + "\n"
    document = {"groups": _groups(profile, values)}
    if kind == "prometheus-rule-crd":
        document = filled(template()["crd"], {**values, "groups": document["groups"]})
    about = "# Every limit is the profile's; the next apply writes the file anew."
    return f"# {values['mark']}\n{about}\n{yaml_strict.dump(document)}"


def text(value: str) -> str:
    """Return a PromQL string; nothing in it is a variable of Grafana's."""
    return json.dumps(value, ensure_ascii=False).replace("$", r"\x24").replace("[[", r"\x5b[")


def selector(matchers: str) -> str:
    """Return label matchers as they go between braces. Raises UsageError for anything else."""
    inner = matchers.strip().removeprefix("{").removesuffix("}").strip().removesuffix(",")
    if not re.fullmatch(rf"{_MATCHER}(?:,{_MATCHER})*", inner):
        raise UsageError(
            f"--selector {matchers!r}: no label matchers of PromQL",
            hint="""For example: --selector 'job="vllm",namespace=~"prod.*"'""",
        )
    return inner


def _one_line(words: str) -> str:
    """Return a text on one line in which Prometheus' templates find nothing to replace."""
    return " ".join(words.split()).replace("{{", "{ {")


# Templates


@cache
def template() -> dict[str, Any]:
    """Return the rules' template."""
    source = resources.files(__package__).joinpath("alerts.yaml").read_text(encoding="utf-8")
    parsed: dict[str, Any] = yaml.safe_load(source)
    return parsed


def filled(node: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401 - JSON
    """Return a template with its placeholders filled; of a list, the items that can be.

    Raises KeyError for a placeholder without a value.
    """
    if isinstance(node, dict):
        return {key: filled(value, values) for key, value in node.items()}
    if isinstance(node, list):
        items = []
        for each in node:
            with suppress(KeyError):
                items.append(filled(each, values))
        return items
    if not isinstance(node, str):
        return node
    alone = _PLACEHOLDER.fullmatch(node)
    if alone and not isinstance(values.get(alone[1], ""), str):
        return values[alone[1]]

    def value_of(match: re.Match[str]) -> str:
        name, window = match.groups()
        if name in template()["series"]:
            inner = {**values, "window": window} if window else values
            return str(filled(template()["series"][name], inner))
        value = values[name]
        return f"{value:.6g}" if isinstance(value, float) else str(value)

    return _PLACEHOLDER.sub(value_of, node)


def _values(profile: ServingProfile, matchers: str) -> dict[str, object]:
    """Return what placeholders stand for."""
    digest = profile.digest.replace(":", "-")[: len("sha256-") + 12]  # no number, as 12e34 would be
    name = re.sub("[^a-z0-9]+", "-", profile.provenance.model.lower())[-56:].strip("-")
    return {
        **limits(profile),
        "servers": matchers,
        "profile": digest,
        "digest": profile.digest,
        "name": f"tuner-{name}".strip("-"),
    }


def _groups(profile: ServingProfile, values: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the groups: what is recorded, and the alerts that rest on it."""
    name = f"tuner {_one_line(profile.provenance.model)} {values['profile']}"
    windows = dict.fromkeys(burn[end] for burn in template()["burns"] for end in ("short", "long"))
    recorded = [
        filled(template()["missed"], {**values, **each, "window": window})
        for each in missed_limits(profile)
        for window in windows
    ]
    burning, budget = [], 1 - limits(profile)["attainment_limit"]
    for burn in template()["burns"] if recorded else ():
        share = min(burn["factor"] * budget, MOST_MISSED)
        enough = {"share": share, "enough": LEAST_MISSED / share, "window": burn["long"]}
        burning.append(filled(template()["burning"], {**values, **burn, **enough}))
    recorded += filled(template()["recorded"], values)
    alerts = burning + filled(template()["alerts"], values)
    groups = {"recorded": recorded, "alerts": alerts}
    return [{"name": f"{name} {what}", "rules": rules} for what, rules in groups.items()]


def missed_limits(profile: ServingProfile) -> list[dict[str, object]]:
    """Return the SLO's limits that vLLM's buckets can show missed: those above the next end of a
    bucket have missed for certain."""
    result = list[dict[str, object]]()
    for limit, seconds in slo_s(profile).items():
        bound = next((each for each in template()["buckets_s"][limit] if each >= seconds), None)
        if bound is not None:
            integer, _, decimals = f"{bound:g}".partition(".")
            le = f"{integer}\\\\.{decimals}" if decimals else f"{integer}(\\\\.0)?"
            histogram = template()["histograms"][limit]
            result.append({"limit": limit, "bound": f"{bound:g}", "le": le, "histogram": histogram})
    return result


def _dashboard(profile: ServingProfile, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the dashboard: the panels of the template that the profile has numbers for."""
    source = resources.files(__package__).joinpath("dashboard.json").read_text(encoding="utf-8")
    decided, matchers = profile.decision, values["servers"]
    own = {
        **values,
        "servers": f'{matchers},instance=~"$instance"',
        "matchers": matchers,
        "window": "$__rate_interval",
        "model": profile.provenance.model[:180],
        "reason": in_markdown(decided.reason),
        "interval": f"{decided.interval[0]}-{decided.interval[1]}",
        "load": profile.validity.validated_load,
        "budget": 1 - limits(profile)["attainment_limit"],
    }
    for each in missed_limits(profile):
        own[f"missed_{each['limit']}"] = filled("<missed>", {**own, **each})
        own[f"bound_{each['limit']}"] = each["bound"]
    dashboard: dict[str, Any] = filled(json.loads(source), own)
    dashboard["panels"] = [each for each in dashboard["panels"] if each.get("targets", True)]
    return dashboard


# Limits: each is the profile's own number, with the tolerance of tuner verify on top


def limits(profile: ServingProfile) -> dict[str, float]:
    """Return the limits by name, up to the load that was validated; those that the profile says
    nothing of are left out. Means, because of a histogram sum / count is exact and quantiles are
    not."""
    promised, validity = profile.promise, profile.validity
    validated = [each for each in promised.predicted if each.load <= validity.validated_load]
    every = [promised, *validated]
    result: dict[str, float] = {
        "cap": profile.decision.max_num_seqs,
        "load_limit": validity.arrival_rate_rps * validity.validated_load,
    }
    if validity.peak_concurrency is not None:
        result["in_flight_limit"] = validity.peak_concurrency
    for name in ("itl", "ttft", "e2el"):
        spreads = [
            getattr(each, f"{name}_ms") or (name == "itl" and each.tpot_ms) for each in every
        ]
        means_s = [spread.mean / 1e3 for spread in spreads if spread]
        if means_s:
            result[f"{name}_promised"] = means_s[0]
            slack_s = SLACK_S["tpot" if name == "itl" else name]
            result[f"{name}_limit"] = max(means_s) * (1 + TOLERANCE) + slack_s
    lowest = min(each.attainment for each in every)
    lows = (each.intervals.get("attainment", (lowest, 0))[0] for each in validated)
    result["attainment_limit"] = max(0.0, min([lowest, *lows]) - ATTAINMENT_TOLERANCE)

    peaks = [each.kv_cache_usage.peak for each in every if each.kv_cache_usage]
    highs = [each.intervals.get("kv_cache_usage_peak", (0, 0))[1] for each in validated]
    if peaks and (limit := max([*peaks, *highs]) * (1 + TOLERANCE)) < 1:  # no more can be in use
        result |= {"kv_promised": peaks[0], "kv_limit": limit}
    return result


def slo_s(profile: ServingProfile) -> dict[str, float]:
    """Return ``ttft``, ``tpot``, ``e2el`` → the SLO's limit. One that grows with the prompt is left
    out: a histogram does not tell which request had which prompt."""
    slo = profile.decision.slo
    limits_ms = {
        "ttft": None if slo.ttft_ms_per_input_token else slo.ttft_ms,
        "tpot": slo.tpot_ms,
        "e2el": slo.e2el_ms,
    }
    return {name: ms / 1e3 for name, ms in limits_ms.items() if ms is not None}
