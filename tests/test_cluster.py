"""Refinements on a real Ray cluster of two nodes: what is lost, left, refused and gone on with."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tuner import profile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402 - after the variable that it reads

pytestmark = [
    pytest.mark.timeout(180),  # the first test waits for a sweep and a cluster
    pytest.mark.filterwarnings("default"),  # what Ray warns about is not ours to mend
    pytest.mark.xdist_group("ray"),
]

ROOT = Path(__file__).parent.parent
TUNER = str(Path(sys.executable).with_name("tuner"))
WORLD = """\
step: {a: 0.020, b: 0.0004, n0: 12, h: 0.012, c: 1.0e-5}
engine_start: 30
noise: {sigma_iter: 0.02, sigma_drift: 0.003, sigma_start: 0.001}
"""
SIM = ("--engine", "sim", "--world", "world.yaml", "--trace", "prod.jsonl", "--step", "20s")
FEW = ("--search", "max_num_seqs=10,12,14", "--search", "max_num_batched_tokens=2048")
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
GONE_S = 20.0
"""How long Ray may take to notice that a driver is gone."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    (folder / "world.yaml").write_text(WORLD)
    shutil.copy(ROOT / "traces" / "translation.jsonl", folder / "prod.jsonl")
    words = [TUNER, "sweep", *SIM]
    subprocess.run(words, cwd=folder, capture_output=True, check=True)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    head = {**NODE, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=head)
    found.add_node(**NODE)
    ray.init(address=found.address, log_to_driver=False, logging_level="CRITICAL")
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture
def two_nodes(cluster: Cluster) -> Cluster:
    """The cluster, with a second node again where a test took it."""
    while len(cluster.list_all_nodes()) < 2:
        cluster.add_node(**NODE)
    wait_until(lambda: ray.cluster_resources().get("CPU") == 2)
    return cluster


def wait_until(condition: Callable[[], bool], *, within_s: float = GONE_S) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def refining(folder: Path, cluster: Cluster, *options: str) -> "subprocess.Popen[str]":
    words = [TUNER, "refine", "profile.yaml", *SIM, *FEW, "--ray", cluster.address, *options]
    return subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_line(running: "subprocess.Popen[str]", text: str) -> None:
    assert running.stderr is not None
    said = []
    for line in running.stderr:
        said.append(line)
        if text in line:
            return
    pytest.fail(f"never said {text!r}: {''.join(said)}")


def events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "journal.jsonl").read_text().splitlines()]


def replays(run_dir: Path) -> list[dict[str, Any]]:
    return [one for one in events(run_dir) if one["event"] == "replay"]


def workers() -> list[psutil.Process]:
    """The processes that trials are made in."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [""])[0].startswith("ray::Worker")
    ]


def assert_nothing_is_left() -> None:
    """Neither processes nor room: all of the cluster is free again."""
    wait_until(lambda: workers() == [])
    wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    groups = ray.util.placement_group_table().values()
    assert {one["state"] for one in groups} <= {"REMOVED"}


def test_a_study_on_two_nodes_ends_well_while_one_of_them_dies(
    swept: Path, two_nodes: Cluster
) -> None:
    running = refining(swept, two_nodes, "--run-dir", "died", "--json", "-o", "died.yaml")
    wait_for_line(running, "climb max_num_seqs")
    two_nodes.remove_node(two_nodes.list_all_nodes()[-1], allow_graceful=False)
    out, told = running.communicate()
    assert running.returncode == 0, told
    assert json.loads(out)["refined"]
    assert 9 <= json.loads(out)["chosen"]["max_num_seqs"] <= 14
    assert profile.load(swept / "died.yaml").promise.source == "confirming run"
    assert "Traceback" not in told
    assert_nothing_is_left()


def test_every_place_replays_the_knee_and_one_place_makes_all_pairs(swept: Path) -> None:
    ends = [one for one in events(swept / "died") if one["event"] == "measured"]
    trials = [one for one in events(swept / "died") if one["event"] == "trial"]
    made = list(zip(trials, ends, strict=True))
    searching = {end["worker"] for trial, end in made if trial["purpose"] == "search"}
    first: dict[str, int] = {}
    for trial, end in made:
        first.setdefault(end["worker"], trial["max_num_seqs"])
    knee = profile.load(swept / "profile.yaml").decision.max_num_seqs
    assert {first[worker] for worker in searching} == {knee}
    assert len({e["worker"] for t, e in made if t["purpose"] in {"refined", "knee"}}) == 1


def test_workers_killed_at_any_moment_cost_what_they_were_doing_and_no_more(
    swept: Path, two_nodes: Cluster
) -> None:
    running = refining(swept, two_nodes, "--run-dir", "killed", "--json", "-o", "killed.yaml")
    for moment in ("climb max_num_seqs", "search max_num_seqs=1", "knee max_num_seqs"):
        wait_for_line(running, moment)
        for process in workers()[:1]:
            process.kill()
    out, told = running.communicate()
    assert running.returncode == 0, told
    assert 9 <= json.loads(out)["chosen"]["max_num_seqs"] <= 14
    lost = [one for one in events(swept / "killed") if one["event"] == "lost"]
    assert lost
    assert all(one["worker"] and one["why"] for one in lost)
    assert_nothing_is_left()


def test_a_driver_that_is_killed_leaves_nothing_and_goes_on_without_loss(
    swept: Path, two_nodes: Cluster
) -> None:
    running = refining(swept, two_nodes, "--run-dir", "restarted")
    wait_for_line(running, "comparing")
    running.kill()
    running.communicate()
    assert_nothing_is_left()
    kept = replays(swept / "restarted")
    assert len(kept) >= 4
    again = refining(
        swept, two_nodes, "--run-dir", "restarted", "--resume", "--json", "-o", "restarted.yaml"
    )
    out, told = again.communicate()
    assert again.returncode == 0, told
    after = replays(swept / "restarted")
    assert after[: len(kept)] == kept
    searched = [one["max_num_seqs"] for one in after if one["purpose"] == "search"]
    assert searched == [one["max_num_seqs"] for one in kept if one["purpose"] == "search"]
    assert json.loads(out)["complete"]
    assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_a_driver_that_is_stopped_gives_everything_back_and_says_how_to_go_on(
    swept: Path, two_nodes: Cluster, number: signal.Signals
) -> None:
    running = refining(swept, two_nodes, "--run-dir", f"stopped-{number}")
    wait_for_line(running, "climb max_num_seqs")
    running.send_signal(number)
    out, told = running.communicate()
    assert running.returncode == 130
    assert out == ""
    assert "Traceback" not in told
    assert "--resume" in told.splitlines()[-1]
    assert_nothing_is_left()
