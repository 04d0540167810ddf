"""`tuner watch` beside a real vLLM that serves light traffic."""

import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_sim import poisson, profile_of
from tests.support.vllm_server import CAP, Planned, RealServer, post, send
from tuner.engines.sim.world import World, WorldKv, WorldStep
from tuner.live.prometheus import Histogram
from tuner.live.server import read_engines
from tuner.profile import profile as profiles

TUNER = str(Path(sys.executable).with_name("tuner"))
RATE_RPS, LENGTH_S, OUTPUT = 4.0, 10.0, 24
WATCH = ("--every", "300ms", "--window", "600ms", "--json")


@pytest.fixture(scope="module")
def server(real_server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a server, and a folder with a profile of about its speed for the traffic it gets."""
    folder, url = tmp_path_factory.mktemp("watched"), real_server.url
    before = itl(url)
    for _ in range(3):
        assert post(url, prompt=[5] * 40, max_tokens=OUTPUT)[0] == 200
    gaps = itl(url).since(before)
    world = World(
        step=WorldStep(a=gaps.total / gaps.count, b=1e-4, c=1e-5),
        kv=WorldKv(blocks=1000),
    )
    traffic = poisson(RATE_RPS, 120.0, seed=1, output=OUTPUT)
    profile = profile_of(world, traffic, 120.0, cap=CAP, caps=(4, CAP), model="tuner:tiny")
    profiles.save(profile, folder / "profile.yaml")
    return folder, url


def itl(url: str) -> Histogram:
    """Return the gaps between tokens that the server has counted."""
    return read_engines(url)["0"].distributions["itl_s"]


def watch(folder: Path, url: str, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [TUNER, "watch", "profile.yaml", "--url", url, *WATCH, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=120)
    assert out, err
    return process.returncode, json.loads(out), err


def traffic(url: str) -> threading.Thread:
    rng = random.Random(2)
    plan = [
        Planned(
            at_s=rng.uniform(0, LENGTH_S),
            prompt=[rng.randrange(5, 200) for _ in range(rng.randrange(20, 200))],
            max_tokens=rng.randrange(OUTPUT // 2, OUTPUT + OUTPUT // 2),
        )
        for _ in range(round(RATE_RPS * LENGTH_S))
    ]
    sending = threading.Thread(target=send, args=(url, plan))
    sending.start()
    return sending


@pytest.mark.vllm
@pytest.mark.serve
def test_a_real_server_is_watched(server: tuple[Path, str]) -> None:
    folder, url = server
    before = itl(url)
    sending = traffic(url)
    alone = watch(folder, url, "--for", "9s", "--run-dir", "run")
    stopped = watch(folder, url, "--for", "forever")
    code, found, said = ended(alone)
    assert code in {0, 5, 6}, said  # how fast this machine is just now is not ours to say
    assert found["windows"] >= 10
    assert found["missed_scrapes"] <= 3
    assert found["restarts"] == 0
    assert found["measures"]["slowness"]["windows"] >= 1
    assert 0.2 < found["measures"]["slowness"]["value"]["value"] < 5
    lines = [json.loads(line) for line in (folder / "run/windows.jsonl").read_text().splitlines()]
    assert len(lines) == found["windows"] + 2  # how it began, and how it ended
    sending.join()
    stopped.send_signal(signal.SIGTERM)
    code, found, said = ended(stopped)
    assert code == 130
    assert "so far" in said
    gaps = itl(url).since(before)
    times = found["times"]["itl_ms"]["counted"]
    assert times["count"] <= gaps.count
    assert times["mean"] == pytest.approx(1e3 * gaps.total / gaps.count, rel=0.25)
    assert sum(line.get("finished", 0) for line in lines) <= RATE_RPS * LENGTH_S
