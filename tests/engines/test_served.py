"""A server of our own: started, proved, killed. With a stand-in for ``vllm serve``, and with it."""

import asyncio
import os
import signal
import subprocess
import sys
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from tests.engines.conftest import VLLM_CRAMPED, generate, request
from tests.support import stub_serve
from tests.support.builders import facts
from tests.support.places import ROOT
from tests.support.processes import TIMEOUT_S, cores, family, lives, wait_until
from tuner.engines import server
from tuner.engines.paged import WARM_UPS
from tuner.engines.seam import ArgumentValue, Engine, Reply
from tuner.engines.vllm.start import Resolved, VllmStarter
from tuner.errors import EngineError

TUNER = """
import asyncio, sys
from multiprocessing import resource_tracker
from pathlib import Path
from tests.engines.test_served import StubStarter
from tests.support import stub_serve
from tests.support.builders import facts
from tuner.engines import server

async def main():
    server.serve = stub_serve.serve
    engine = await StubStarter({"model": "m"}, Path(sys.argv[1]), kind="serve").start(
        max_num_seqs=2
    )
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class StubStarter(VllmStarter):
    """Starts the stand-in: what vLLM would resolve is said here."""

    def resolved(self, *, max_num_seqs: int) -> Resolved:
        limits: dict[str, ArgumentValue] = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": 64,
        }
        known = facts(arguments={"model": "m", **limits}, sampling={"temperature": 1.0})
        return Resolved(config=None, command={"model": "m", **limits}, facts=known)


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubStarter:
    monkeypatch.setattr(server, "serve", stub_serve.serve)
    return StubStarter({"model": "m"}, tmp_path / "serve.log", kind="serve")


def test_a_server_is_started_at_a_socket_of_its_own_and_stopped_twice(starter: StubStarter) -> None:
    async def main() -> Reply:
        engine = await starter.start(max_num_seqs=2)
        try:
            return await generate(engine, request(1, prompt=5, output=9))
        finally:
            await engine.stop()
            await engine.stop()

    assert asyncio.run(main()).output_tokens == 9


def test_no_server_survives_a_tuner_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TUNER, str(tmp_path / "serve.log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "up\n"
        servers = cores(tuner.pid)
        assert len(servers) == 1
        tuner.kill()
    wait_until(lambda: not any(map(lives, servers)))


def test_a_request_under_way_is_told_that_its_server_was_killed(
    starter: StubStarter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_STOPS", str(WARM_UPS + 1))

    async def main() -> None:
        before = cores()
        engine = await starter.start(max_num_seqs=2)
        (process,) = cores() - before
        reply = Reply()
        try:
            task = asyncio.create_task(engine.generate(request(1, prompt=5, output=9), reply))
            while not reply.seen_s:  # noqa: ASYNC110 - a reply tells nobody
                await asyncio.sleep(0.01)
            os.kill(process, signal.SIGKILL)
            with pytest.raises(EngineError, match="vllm serve was killed by SIGKILL"):
                await task
        finally:
            await engine.stop()

    asyncio.run(main())


def test_the_command_says_each_argument_as_vllm_spells_it() -> None:
    arguments: dict[str, ArgumentValue] = {
        "model": "acme/7b",
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "enable_expert_parallel": True,
        "disable_log_stats": False,
        "served_model_name": ["a", "b"],
        "compilation_config": {"mode": 2},
    }
    assert server.words_of(arguments) == [
        *("acme/7b", "--max-num-seqs=8", "--no-enable-prefix-caching", "--enable-expert-parallel"),
        *("--served-model-name", "a", "b", '--compilation-config={"mode": 2}'),
    ]


@pytest.mark.attack
@pytest.mark.parametrize(
    "arguments",
    [
        {"model": "--tool-parser-plugin=./evil.py"},
        {"model": "m", "api_server_count": ["1", "--tool-parser-plugin=./evil.py"]},
    ],
)
def test_no_value_becomes_a_flag_of_the_server(arguments: dict[str, ArgumentValue]) -> None:
    with pytest.raises(EngineError, match="vllm serve would take it for a flag"):
        server.words_of(arguments)


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.parametrize("part", ["core", "server"])
def test_when_a_part_of_it_is_killed_whoever_asks_is_told_and_nothing_is_left(
    tmp_path: Path, part: str
) -> None:
    starter = VllmStarter(VLLM_CRAMPED, tmp_path / "v.log", kind="serve")
    starter.resolve(max_num_seqs=2)  # which starts what imports vLLM ahead, once for all tests
    resource_tracker.ensure_running()
    before = family(os.getpid()) | cores()

    async def killed(engine: Engine) -> None:
        everybody = family(os.getpid()) - before
        core = _core(everybody)
        os.kill(core, signal.SIGSTOP)  # so that it serves nobody before it is killed
        asking = engine.generate(request(1, prompt=5, output=200), Reply())
        task = asyncio.create_task(asking)
        await asyncio.sleep(0)
        os.kill(core if part == "core" else min(everybody), signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(EngineError, match=r"The engine died|killed by SIGKILL"):
                await task
        for refused in (engine.iterations, engine.prepare):
            with pytest.raises(EngineError, match=r"died|killed by SIGKILL"):
                await refused()

    async def main() -> None:
        engine = await starter.start(max_num_seqs=2)
        try:
            await killed(engine)
        finally:
            await engine.stop()

    asyncio.run(main())
    wait_until(lambda: not any(map(lives, family(os.getpid()) - before)))


def _core(pids: set[int]) -> int:
    names = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in pids}
    return next(pid for pid, name in names.items() if "EngineCore" in name)
