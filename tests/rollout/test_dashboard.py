"""The dashboard for a knee: Grafana's own schema takes it, and its lines are the profile's.

No real Grafana can be had from PyPI, npm or Debian; its schema can.
"""

import json
from typing import Any

import pytest

from tests.support.places import ROOT
from tests.support.profiles import profile
from tuner.profile.profile import ServingProfile, load
from tuner.rollout import monitor

SHIPPED = load(ROOT / "profiles" / "translation-tiny-cpu.yaml")


def dashboard(chosen: ServingProfile) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(monitor.render("grafana-dashboard", chosen))
    return parsed


@pytest.mark.parametrize("chosen", [SHIPPED, profile()], ids=["shipped", "without a twin"])
def test_grafanas_schema_keeps_every_part_of_it(chosen: ServingProfile) -> None:
    """What Grafana's own types do not know is lost when they read and write it."""
    pytest.importorskip("grafana_foundation_sdk", reason="part of the dev extra")
    from grafana_foundation_sdk.cog import encoder, plugins  # noqa: PLC0415
    from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415

    plugins.register_default_plugins()
    ours = dashboard(chosen)
    theirs = json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(dashboard(chosen))))
    assert list(lost(ours, theirs)) == []
    ours["panels"][1]["fieldConfig"]["defaults"]["treshold"] = 1
    theirs = json.loads(encoder.JSONEncoder().encode(Dashboard.from_json(ours)))
    assert list(lost(ours, theirs)) == ["/panels/1/fieldConfig/defaults/treshold"]


def lost(ours: Any, theirs: Any, place: str = "") -> list[str]:  # noqa: ANN401 - JSON
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs = [(key, value, theirs.get(key, "lost")) for key, value in ours.items()]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(str(at), *both) for at, both in enumerate(zip(ours, theirs, strict=True))]
    else:
        return [] if ours == theirs else [place]
    return [each for key, mine, yours in pairs for each in lost(mine, yours, f"{place}/{key}")]


@pytest.mark.attack
@pytest.mark.parametrize(
    ("reason", "written"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("![x](http://evil.example/p.png)", "\\!\\[x\\](http://evil.example/p.png)"),
        ("${__user.login} $__rate", "&#36;{\\_\\_user.login} &#36;\\_\\_rate"),
        ("a\u202eb\x1b[2J", "a\\\\u202eb\\\\x1b\\[2J"),
    ],
)
def test_the_text_of_a_strangers_profile_is_only_text(reason: str, written: str) -> None:
    about = dashboard(profile(reason=reason))["panels"][0]
    assert about["options"]["content"].startswith(f"**{written}**\n")
