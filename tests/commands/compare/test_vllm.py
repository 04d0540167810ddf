"""`tuner compare` on real engines: it ends whenever it is told to, and goes on where it was."""

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import family, lives, wait_until
from tests.support.traces import SAMPLES

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(600)]

TUNER = Path(sys.executable).with_name("tuner")
COMPARE = [
    *("compare", "--trace", str(SAMPLES / "translation.jsonl"), "--json", "--run-dir", "run"),
    *("--approaches", "two-workers,untuned", "--loads", "light", "--untuned", "8"),
    *("--repeats", "1", "--step", "3s", "--window", "60s+4s", "--budget", "30m"),
]

POINTS = (
    (signal.SIGTERM, "its iterations with", 130),
    (signal.SIGKILL, ": two workers, light", -signal.SIGKILL),
    (signal.SIGINT, "starting continuous, untuned", 130),
)
"""Which signal is sent some time after which line."""


def test_no_signal_at_any_time_leaves_a_process_behind_and_the_run_goes_on(tmp_path: Path) -> None:
    rng = random.Random(5)
    command = [str(TUNER), *COMPARE]
    for number, after, code in POINTS:
        told, everybody = _sent(number, after, rng.uniform(0.0, 1.0), command, tmp_path)
        assert told[-1] == str(code)
        wait_until(lambda: not any(map(lives, everybody)))  # noqa: B023 - called at once
        if code == 130:
            assert "kept in run" in told[-3]
            command = [str(TUNER), *shlex.split(told[-2].removeprefix("Go on with: "))[1:]]
        else:
            command = [str(TUNER), *COMPARE, "--resume"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _is_whole(json.loads(done.stdout))


def _sent(
    number: int, after: str, delay_s: float, command: list[str], folder: Path
) -> tuple[list[str], set[int]]:
    """Run until a line has been read and some time has passed, and send the signal; return what was
    told, the exit code last, and all processes that there were."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        told = []
        for line in running.stderr:
            told.append(line.rstrip())
            if after in line:
                break
        else:
            pytest.fail(f"{after} was never told: {told}")
        time.sleep(delay_s)
        everybody = {running.pid, *family(running.pid)}
        running.send_signal(number)
        told += running.stderr.read().splitlines()
    return [*told, str(running.returncode)], everybody


def _is_whole(result: dict[str, Any]) -> None:
    for table in result["tables"]:
        assert [row["approach"] for row in table["rows"]] == ["two-workers", "untuned"]
        for row in table["rows"]:
            assert row["errors"] == []
            assert row["measured"]["blocks"] == 1
            assert row["measured"]["completed"] > 0
