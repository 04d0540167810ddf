"""Files that a profile makes for what watches a server: one module a kind, and this registry."""

from tuner.rollout.monitoring import grafana_dashboard, prometheus_rule_crd, prometheus_rules, seal
from tuner.rollout.monitoring.seam import Generated

KINDS: tuple[Generated, ...] = (prometheus_rules, prometheus_rule_crd, grafana_dashboard)


def kind_of(to: str | None, text: str) -> Generated | None:
    """Return the kind that is named, or that an existing file says it is of; None for a target."""
    name = to if to is not None else seal.kind_of(text)
    return next((kind for kind in KINDS if name == kind.NAME), None)
