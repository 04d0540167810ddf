"""Sweeps on a real Ray cluster of two kinds of nodes: what is lost, left and refused."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.in_process import tuner
from tests.support.places import ROOT
from tuner.profile import profile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402 - after the variable that it reads

pytestmark = [
    pytest.mark.services,
    pytest.mark.timeout(180),  # the first test waits for a sweep and a cluster
    pytest.mark.filterwarnings("default"),  # what Ray warns about is not ours to mend
]

TUNER = str(Path(sys.executable).with_name("tuner"))
WORLD = """\
step: {a: 0.020, b: 0.0004, n0: 12, h: 0.012, c: 1.0e-5}
engine_start: 30
noise: {sigma_iter: 0.02, sigma_drift: 0.003, sigma_start: 0.001}
"""
TRACE = ("--trace", "prod.jsonl", "--step", "20s")
SIM = ("--world", "world.yaml", *TRACE)
SLO = ("--slo", "ttft=2s,tpot=50ms")
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
SLOW, FAST = ({**NODE, "labels": {"tuner/kind": kind}} for kind in ("slow", "fast"))
GONE_S = 20.0
"""How long Ray may take to notice that a driver is gone."""


_STARTED: list["subprocess.Popen[str]"] = []


@pytest.fixture(autouse=True)
def _nothing_goes_on() -> Iterator[None]:
    """End what a test that failed has left running."""
    yield
    for running in _STARTED:
        if running.poll() is None:
            running.kill()
            running.communicate()
    _STARTED.clear()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    (folder / "world.yaml").write_text(WORLD)
    (folder / "fast.yaml").write_text(WORLD.replace("a: 0.020", "a: 0.012"))
    lines = (ROOT / "traces" / "translation.jsonl").read_text().splitlines(keepends=True)
    (folder / "prod.jsonl").write_text("".join(lines[:434]))  # two minutes
    assert tuner(folder, "sweep", *SIM, *SLO).returncode == 0
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes."""
    head = {**SLOW, "include_dashboard": False}
    result = Cluster(initialize_head=True, head_node_args=head)
    result.add_node(**FAST)
    ray.init(address=result.address, log_to_driver=False, logging_level="CRITICAL")
    yield result
    ray.shutdown()
    result.shutdown()


def wait_until(condition: Callable[[], bool], *, within_s: float = GONE_S) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def started(
    folder: Path, *words: str, env: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    _STARTED.append(
        subprocess.Popen([TUNER, *words], cwd=folder, stdout=pipe, stderr=pipe, text=True, env=env)
    )
    return _STARTED[-1]


def wait_for_line(running: "subprocess.Popen[str]", text: str) -> list[str]:
    """Return all that it said until then."""
    assert running.stderr is not None
    words = []
    for line in running.stderr:
        words.append(line)
        if text in line:
            return words
    pytest.fail(f"never said {text!r}: {''.join(words)}")


def starts(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "journal.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["event"] == "start"]


def ours(part: str) -> list[psutil.Process]:
    """Processes that descend from this one, with a part of their command lines."""
    result = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if part in " ".join(process.cmdline()):
                result.append(process)
    return result


def workers() -> list[psutil.Process]:
    """The processes that sweeps are made in."""
    return ours("ray::resumed")


def assert_nothing_is_left() -> None:
    """Neither processes nor room: all of the cluster is free again."""
    wait_until(lambda: workers() == [])
    wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])


def test_each_kind_of_node_has_a_curve_of_its_own(swept: Path, cluster: Cluster) -> None:
    shutil.copy(swept / "world.yaml", swept / "slow.yaml")
    worlds = ("--world", "slow.yaml,fast.yaml")
    options = ("--json", "-o", "kinds.yaml")
    words = ("sweep", *worlds, *TRACE, *SLO, "--ray", cluster.address, *options)
    running = started(swept, *words, "--run-dir", "kinds")
    wait_for_line(running, "iterations")
    for process in workers()[:1]:
        process.kill()
    out, text = running.communicate()
    assert running.returncode == 0, text
    assert "its node is lost" in text
    kinds = json.loads(out)["kinds"]
    assert set(kinds) == {"slow", "fast"}
    kept = json.loads((swept / "kinds" / "result.json").read_text())
    assert (kept["kinds"], kept["page"]["aside"]) == (kinds, "simulated, serves most in time")
    here, there = (profile.load(swept / name) for name in ("profile.yaml", "kinds-slow.yaml"))
    assert there.curve == here.curve
    assert there.decision == here.decision
    assert {start["facts"]["device"]["name"] for start in starts(swept / "kinds" / "fast")} == {
        "simulated:fast"
    }
    assert_nothing_is_left()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--ray", "127.0.0.1:1"), 3, "--ray 127.0.0.1:1: no cluster of Ray "),
        (("--ray", "local"), 2, "--ray 'local': is not the address of a cluster"),
        (("--ray", "nonsense"), 2, "--ray 'nonsense': is not the address of a cluster"),
        (
            ("--ray", "ray://127.0.0.1:1"),
            2,
            "is not the address of a cluster",
        ),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line_before_anything_starts(
    swept: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    words = ("sweep", *SIM, *options, "--run-dir", "refused")
    assert_refused(tuner(swept, *words), code, message)
    assert not (swept / "refused").exists()


def assert_refused(done: "subprocess.CompletedProcess[str]", code: int, message: str) -> None:
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr.splitlines()[-2]
