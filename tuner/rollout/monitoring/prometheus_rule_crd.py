"""The same rules for the Prometheus operator: a PrometheusRule. Pure."""

import re

from tuner.profile.schema import ServingProfile
from tuner.rollout.monitoring import seal
from tuner.rollout.monitoring.prometheus_rules import groups, head, short
from tuner.system import yaml_strict

NAME = "prometheus-rule-crd"
DEFAULT_FILE = "tuner-prometheus-rule.yaml"
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
NEXT = "kubectl apply -f {file}, with the labels that your Prometheus' ruleSelector asks for"


def render(profile: ServingProfile, *, matchers: str) -> str:
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": _name(profile.provenance.model),
            "labels": {"app.kubernetes.io/managed-by": "tuner", "tuner-profile": short(profile)},
        },
        "spec": {"groups": groups(profile, matchers)},
    }
    return seal.sealed(head(profile, NAME) + yaml_strict.dump(manifest))


def _name(model: str) -> str:
    """Return a name as Kubernetes takes it: the same for every profile of a model."""
    return f"tuner-{re.sub('[^a-z0-9]+', '-', model.lower())[-56:].strip('-')}".strip("-")
