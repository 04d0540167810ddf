"""A server's processes: whichever is killed, none is left; whatever happens, one line says why."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import family, lives, wait_until
from tuner.engines.server.start import ServeProcess
from tuner.engines.vllm import start
from tuner.engines.vllm.core_process import output_to
from tuner.engines.vllm.failure import silent
from tuner.errors import EngineError, TargetError

SERVER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
"""
"""Has started a process of its own, as vLLM starts its engine."""


@contextmanager
def launched(log: Path, program: str = SERVER) -> Iterator[ServeProcess]:
    process = ServeProcess([sys.executable, "-c", program], environment={}, log=log)
    try:
        yield process
    finally:
        process.kill()


async def never() -> bool:
    return False


def up(log: Path) -> None:
    wait_until(lambda: log.exists() and "up" in log.read_text())


def test_a_server_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    with launched(log) as process:
        up(log)
        everybody = family(process.pid)
        assert len(everybody) == 2
        asyncio.run(process.stop())
        wait_until(lambda: not any(map(lives, everybody)))
        asyncio.run(process.stop())


def test_a_server_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    words = "print('loading'); raise ValueError('the model is too large')"
    with (
        launched(tmp_path / "serve.log", words) as process,
        pytest.raises(EngineError, match="vLLM did not start: the model is too large"),
    ):
        asyncio.run(process.ready(never))


def test_a_server_that_never_answers_is_given_up_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "START_ON_CPU_S", 1.0)
    log = tmp_path / "serve.log"

    async def starting() -> None:
        async with start.started_in_time(log):
            with launched(log) as process:
                up(log)
                await process.ready(never)

    with pytest.raises(EngineError, match=r"not start within 1 s; its last words: up") as result:
        asyncio.run(starting())
    assert str(log) in result.value.hint


def test_the_servers_environment_is_not_that_of_a_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("TUNER_LIVE_SOCKET", "/run/vllm/tuner.sock")
    log = tmp_path / "serve.log"
    with launched(log, "import os; print(sorted(os.environ)); print('up')"):
        up(log)
    assert "VLLM_API_KEY" not in log.read_text()
    assert "TUNER_LIVE_SOCKET" not in log.read_text()


@pytest.mark.attack
def test_a_link_in_place_of_a_log_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "")
    log = tmp_path / "vllm.log"
    log.symlink_to("victim")
    with pytest.raises(TargetError, match="link"), launched(log):
        pass
    with pytest.raises(TargetError, match="link"), silent(log):
        pass
    with pytest.raises(TargetError, match="link"), output_to(log):
        pass
    assert not (tmp_path / "victim").exists()
