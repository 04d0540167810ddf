"""`tuner watch` beside a real vLLM: silent while it is honest, and heard when it is not."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_sim import poisson, profile_of
from tests.support.vllm_server import Planned, send, vllm_serve
from tuner.engines.sim.world import World, WorldKv, WorldStep
from tuner.live.watch.scraper import ScrapedServer
from tuner.profile import profile as profiles

TUNER = str(Path(sys.executable).with_name("tuner"))
RATE_RPS, OUTPUT, CAP = 12.0, 16, 32
WINDOWS = 100
PIECE_S, MOST_PIECES = 3.0, 100
LEAST_WINDOW_S, GAPS = 0.3, 12
"""A window lasts so many gaps between tokens: enough of them come also when it is slower."""

STOPPED_S, RUN_S = 0.02, 0.01
"""Of every 30 ms the engine gets so much: it is three times slower."""


Windows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Served:
    folder: Path
    url: str
    window_s: float

    @property
    def times_s(self) -> Mapping[str, float]:
        return {"every": self.window_s / 2.5, "window": self.window_s}

    @property
    def engine(self) -> int:
        """Its process, which counts the times."""
        log = (self.folder / "serve.log").read_text()
        found = re.search(r"EngineCore.* pid=(\d+)", log)
        assert found is not None
        return int(found.group(1))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server, and a folder with a profile of about its speed for the traffic it gets."""
    folder = tmp_path_factory.mktemp("served")
    with vllm_serve(folder, "--max-num-seqs", str(CAP)) as url:
        send(url, plan(2.0, 1.0))
        before = ScrapedServer(url).read()["0"].distributions
        send(url, plan(5.0, 1.0))
        after = ScrapedServer(url).read()["0"].distributions
        gap_s, first_s = (
            found.total / found.count
            for found in (after[name].since(before[name]) for name in ("itl_s", "ttft_s"))
        )
        world = World(
            step=WorldStep(a=gap_s, b=1e-5, c=1e-6, lag=2 * first_s), kv=WorldKv(blocks=1000)
        )
        traffic = poisson(RATE_RPS, 120.0, seed=1, output=OUTPUT)
        profile = profile_of(world, traffic, 120.0, cap=CAP, caps=(4, CAP), model="tuner:tiny")
        profiles.save(profile, folder / "profile.yaml")
        yield Served(folder, url, max(LEAST_WINDOW_S, GAPS * gap_s))


def plan(length_s: float, prompts: float, *, seed: int = 0) -> list[Planned]:
    """Return requests as the profile's, with prompts so many times as long."""
    rng = random.Random(seed)
    return [
        Planned(
            at_s=rng.uniform(0, length_s),
            prompt=[rng.randrange(5, 200) for _ in range(round(prompts * rng.randrange(20, 200)))],
            max_tokens=rng.randrange(OUTPUT // 2, OUTPUT + OUTPUT // 2),
        )
        for _ in range(round(RATE_RPS * length_s))
    ]


@contextmanager
def traffic(server: Served, prompts: float) -> Iterator[Iterator[Windows]]:
    """Send a piece of traffic every PIECE_S, whatever became of those before, and yield the
    windows in the watch's journal after each."""
    sending = list[threading.Thread]()

    def windows() -> Iterator[Windows]:
        beat = threading.Event()
        begun_s = time.monotonic()
        for piece in range(1, MOST_PIECES + 1):
            given = (server.url, plan(PIECE_S, prompts, seed=piece))
            sending.append(threading.Thread(target=send, args=given))
            sending[-1].start()
            beat.wait(begun_s + piece * PIECE_S - time.monotonic())
            yield journal(server)

    try:
        yield windows()
    finally:
        for one in sending:
            one.join()


def journal(server: Served) -> Windows:
    path = server.folder / "run/windows.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["event"] == "window"]


@contextmanager
def watching(server: Served, *options: str) -> "Iterator[subprocess.Popen[str]]":
    times = (f"--{name}={1e3 * s:.0f}ms" for name, s in server.times_s.items())
    process = subprocess.Popen(
        [TUNER, "watch", "profile.yaml", "--url", server.url, "--json", *times, *options],
        cwd=server.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=120)
    assert out, err
    return process.returncode, json.loads(out), err


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Stop a process again and again."""
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            over.wait(RUN_S)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.vllm
@pytest.mark.quiet
def test_100_honest_windows_are_silent_and_a_slow_down_and_longer_prompts_are_told(
    server: Served,
) -> None:
    lasting = ("--for", "forever", "--run-dir", "run", "--tolerance", "1")
    with watching(server, *lasting) as watch:
        with (
            watching(server, "--for", "9s", "--canary", server.url, "--tolerance", "1") as beside,
            traffic(server, 1.0) as pieces,
        ):
            honest = next(
                windows for windows in pieces if len(windows) >= WINDOWS or watch.poll() is not None
            )
            code, found, said = ended(beside)
        assert found["verdict"] in {"promote", "undecided"}, said
        assert code in {0, 5}
        assert found["measures"]["failed"]["value"]["value"] == 0
        assert {what for one in honest for what in one["beyond"]} == set()
        assert {one["verdict"] for one in honest} <= {"not enough evidence", "still valid"}
        told = {"slowness", "input_length"}
        with traffic(server, 3.0) as pieces, slowed(server.engine):
            assert any(told <= set(windows[-1]["beyond"]) for windows in pieces)
        watch.send_signal(signal.SIGTERM)
        code, found, said = ended(watch)
    assert code == 130
    assert "so far: " in said
    assert found["measures"]["slowness"]["value"]["value"] > 2
    assert found["measures"]["input_length"]["value"]["value"] == pytest.approx(3, rel=0.3)
    (counted,) = found["servers"]
    assert counted["restarts"] == 0
    assert counted["finished"] == sum(one["finished"] for one in journal(server))
