"""Two signals while a real engine is being started: no order, but no mess either."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import cores, family, lives, wait_until
from tests.support.traces import SAMPLES
from tuner.runs import journal
from tuner.runs.events import Planned, TraceKept

pytestmark = [pytest.mark.vllm, pytest.mark.long]


def test_a_second_signal_ends_the_start_of_an_engine_at_once(tmp_path: Path) -> None:
    tuner = str(Path(sys.executable).with_name("tuner"))
    trace = str(SAMPLES / "translation.jsonl")
    with subprocess.Popen(
        [tuner, "sweep", "--trace", trace, "--run-dir", "run"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        wait_until(lambda: bool(cores(running.pid)) or running.poll() is not None)
        everybody = family(running.pid)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        running.send_signal(signal.SIGTERM)
        assert running.stderr is not None
        told = running.stderr.read().splitlines()
    assert running.returncode == 130
    assert told[-2:] == [
        "Interrupted: 0 replays are kept in run",
        "Continue with: tuner resume run",
    ]
    assert len([line for line in told if not line.startswith("00:")]) == 2
    wait_until(lambda: not any(map(lives, everybody)))
    assert list(map(type, journal.read(tmp_path / "run").events)) == [Planned, TraceKept]
