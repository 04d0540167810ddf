"""The processes of an engine: whichever ends, none is left; whatever happens, one line says why."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import family, lives, wait_until
from tuner.engines.vllm import start
from tuner.engines.vllm.process import Processes, output_to, root_cause, silent
from tuner.errors import EngineError, TargetError

OUT_OF_MEMORY = """\
(EngineCore pid=7) INFO 11-21 13:00:00 [core.py:1] Initializing a V1 LLM engine
(EngineCore pid=7) ERROR 11-21 13:00:01 [core.py:9] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-21 13:00:01 [core.py:9] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-21 13:00:01 [core.py:9]   File "core.py", line 9, in run
(EngineCore pid=7) ERROR 11-21 13:00:01 [core.py:9] torch.OutOfMemoryError: CUDA out of memory.
RuntimeError: Engine core initialization failed. See root cause above.
"""


def with_a_child() -> None:
    """Start a process of its own, as vLLM starts its engine."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]):
        print("up", sorted(os.environ), flush=True)  # noqa: T201 - to the log
        time.sleep(600)


def failing() -> None:
    raise ValueError("the model is too large")


def up(log: Path) -> None:
    wait_until(lambda: "up" in log.read_text())


def test_a_process_is_ended_with_all_that_it_has_started_and_none_starts_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("TUNER_LIVE_SOCKET", "/run/vllm/tuner.sock")
    log = tmp_path / "vllm.log"
    processes = Processes(log, {"OF_ITS_OWN": "1"})
    first = processes.Process(name="first", target=with_a_child)
    first.start()
    up(log)
    assert processes.death() is None
    assert first.pid is not None
    everybody = {first.pid, *family(first.pid)}
    assert len(everybody) == 2
    for _ in range(2):
        processes.end()
    wait_until(lambda: not any(map(lives, everybody)))
    assert "first was killed by SIGKILL" in str(processes.death())
    with pytest.raises(RuntimeError, match="cancelled"):
        processes.Process(name="second", target=with_a_child).start()
    text = log.read_text()
    assert "OF_ITS_OWN" in text
    assert "VLLM_API_KEY" not in text  # a deployment's
    assert "TUNER_LIVE_SOCKET" not in text


def test_a_process_that_ends_says_why(tmp_path: Path) -> None:
    processes = Processes(tmp_path / "vllm.log")
    process = processes.Process(name="vllm serve", target=failing)
    process.start()
    process.join()
    assert processes.death() is not None
    why = processes.failed_to_start()
    assert str(why) == "vLLM did not start: the model is too large"
    processes.end()


def test_a_start_that_takes_too_long_is_given_up_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "START_ON_CPU_S", 0.1)
    processes = Processes(tmp_path / "vllm.log")
    processes.log.write_text("loading\nweights\n")

    async def starting() -> None:
        async with start.started_in_time(processes):
            await asyncio.sleep(600)

    with pytest.raises(EngineError, match=r"not start within 0.1 s; its last words: weights"):
        asyncio.run(starting())


@pytest.mark.attack
def test_a_link_in_place_of_a_log_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "")
    log = tmp_path / "vllm.log"
    log.symlink_to("victim")
    for write in (silent, output_to):
        with pytest.raises(TargetError, match="link"), write(log):
            pass
    with pytest.raises(TargetError, match="link"):
        Processes(log)
    assert not (tmp_path / "victim").exists()


def test_the_root_cause_is_the_first_error_logged_and_not_its_consequences() -> None:
    assert root_cause(OUT_OF_MEMORY) == " torch.OutOfMemoryError: CUDA out of memory."
    assert root_cause("all is well\n") is None


@pytest.mark.parametrize(
    ("text", "message", "shown"),
    [
        (OUT_OF_MEMORY, "See root cause above", "CUDA out of memory"),
        (
            "",
            "Available memory on node 0 (7 GiB) is less than requested (200 GiB).",
            "less than requested",
        ),
        ("", "could not create a primitive", "primitive"),
    ],
)
def test_a_failed_start_tells_the_root_cause_and_its_cure(
    tmp_path: Path, text: str, message: str, shown: str
) -> None:
    processes = Processes(tmp_path / "vllm.log")
    processes.log.write_text(text)
    error = processes.failed_to_start(RuntimeError(message))
    assert shown in str(error)
    assert "Lower gpu_memory_utilization" in error.hint
