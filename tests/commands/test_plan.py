"""`tuner plan` as its users meet it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.profiles import resealed
from tests.support.traces import beginning
from tuner.profile import profile
from tuner.profile.profile import FrontEndSection, evidence_of

pytestmark = pytest.mark.usefixtures("by_few_draws")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a profile of the article's simulated machine, of 4 slots and more."""
    path = tmp_path_factory.mktemp("plan")
    world = ROOT / "examples" / "worlds" / "article.yaml"
    trace = beginning(path / "prod.jsonl", 360)
    tuning = ("sweep", "--world", world, "--trace", trace)
    assert tuner(path, *tuning).returncode == 0
    swept = profile.load(path / "profile.yaml")
    curve = [step for step in swept.curve if step.max_num_seqs >= 4]
    kept = evidence_of(swept, path / "profile.yaml")
    profile.save(resealed(swept, curve=curve, evidence=kept), path / "profile.yaml")
    return path


def plan(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return tuner(folder, "plan", *options)


def planned(folder: Path, *options: str) -> dict[str, Any]:
    done = plan(folder, "profile.yaml", "--json", *options)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def behind(folder: Path) -> str:
    """Return the same profile behind a front end that takes 0.2 s for each request."""
    item = profile.load(folder / "profile.yaml")
    of_requests = FrontEndSection(contention=1.0, delay_ms=201.0)
    kept = evidence_of(item, folder / "profile.yaml")
    profile.save(resealed(item, front_end=of_requests, evidence=kept), folder / "behind.yaml")
    assert profile.load(folder / "behind.yaml").front_end == of_requests
    return "behind.yaml"


def test_what_is_required_is_asked_of_what_comes_through_the_front_end(
    folder: Path, behind: str
) -> None:
    """Each request takes 0.2 s before the engine."""
    wanted = ("--json", "--replicas", "1", "--require", "p50 ttft <= 150ms")
    assert json.loads(plan(folder, "profile.yaml", *wanted).stdout)["broken"] == []
    assert json.loads(plan(folder, behind, *wanted).stdout)["broken"] != []


def test_what_is_required_is_compared_with_every_replica(folder: Path) -> None:
    kept = planned(folder, "--require", "p99 ttft <= 10s", "--require", "preemptions == 0")
    assert kept["broken"] == []
    assert [each.split(" (")[0] for each in kept["required"]] == [
        "p99 ttft <= 10s", "preemptions == 0"
    ]  # fmt: skip
    wanted = ("profile.yaml", "--json", "--replicas", "1", "--load", "3")
    done = plan(folder, *wanted, "--require", "p99 ttft <= 1s")
    assert done.returncode == 6
    result = json.loads(done.stdout)
    assert result["broken"] == result["required"]
    assert 2 <= result["replicas_needed"] <= 6
    assert f"On {result['replicas_needed']} replicas it keeps all." in done.stderr
    never = plan(folder, *wanted, "--require", "p99 ttft <= 1ms")
    assert "No number of replicas keeps it: require less." in never.stderr


def test_two_kinds_of_traffic_share_the_cap_that_costs_neither_much(
    folder: Path, behind: str
) -> None:
    done = plan(folder, "profile.yaml", behind, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    chosen = profile.load(folder / "profile.yaml").decision.max_num_seqs
    assert result["max_num_seqs"] == chosen
    (row,) = [each for each in result["caps"] if each["max_num_seqs"] == chosen]
    assert row["lost"] == 0.0


def test_what_a_replica_costs_is_printed_for_every_cap(folder: Path) -> None:
    steps = planned(folder, "--load", "4", "--price", "2.5")["steps"]
    assert [each["per_hour"] for each in steps] == [2.5 * each["replicas"] for each in steps]
    assert "2.50" in plan(folder, "profile.yaml", "--price", "2.5").stdout
