"""Panels of a Grafana dashboard, as its JSON model has them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query, and the name of its series."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Units are Grafana's."""

    title: str
    kind: Literal["timeseries", "stat", "text"]
    description: str = ""
    unit: str = "short"
    targets: Sequence[PanelQuery] = ()
    lines: Sequence[float] = ()
    """From here on it is red."""

    promised: float | None = None
    text: str = ""
    width: int = 8
    height: int = 8


def arranged(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return the panels from left to right and from top to bottom."""
    found, x, y, tallest = [], 0, 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        found.append({"id": number, "gridPos": place, **_model(panel)})
        x, tallest = x + panel.width, max(tallest, panel.height)
    return found


def _model(panel: Panel) -> dict[str, Any]:
    model: dict[str, Any] = {"type": panel.kind, "title": panel.title}
    if panel.description:
        model["description"] = panel.description
    if panel.kind == "text":
        return {**model, "options": {"mode": "markdown", "content": panel.text}}
    model["datasource"] = _SOURCE
    model["targets"] = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _SOURCE,
            "expr": target.expression,
            "legendFormat": target.legend,
            "range": panel.kind == "timeseries",
            "instant": panel.kind == "stat",
        }
        for number, target in enumerate(panel.targets)
    ]
    model["fieldConfig"] = {"defaults": _defaults(panel), "overrides": []}
    if panel.kind == "timeseries":
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        model["options"] = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return model


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.promised is not None:
        steps.append({"color": "yellow", "value": panel.promised})
    steps += [{"color": "red", "value": line} for line in panel.lines]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.kind == "timeseries":
        style = {"mode": "dashed"} if len(steps) > 1 else {"mode": "off"}
        defaults["custom"] = {"thresholdsStyle": style, "fillOpacity": 0, "lineWidth": 1}
    return defaults
