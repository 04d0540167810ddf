"""How a server of our own is started and asked, with a stand-in for ``vllm serve``."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.conftest import generate, request
from tests.support.places import ROOT
from tests.support.processes import family, lives, wait_until
from tuner.engines.seam import ArgumentValue, EngineRequest, Reply, RequestFailedError
from tuner.engines.server import start
from tuner.engines.server.running import WARM_UPS, RunningEngine, RunningServer
from tuner.engines.server.start import ServerStarter
from tuner.engines.vllm.start import Resolved
from tuner.errors import EngineError

STUB = (sys.executable, "-m", "tests.support.stub_serve")

TUNER = """
import asyncio, sys
from pathlib import Path
from tests.engines.server.test_start import STUB, StubStarter
from tuner.engines.server import start

async def main():
    engine = await StubStarter(Path(sys.argv[1])).start(max_num_seqs=2)
    print("up", flush=True)
    await asyncio.sleep(600)

start._VLLM, start.cautions = STUB, tuple
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_VLLM", STUB)


class StubEngine(RunningEngine):
    """Behind a stand-in that is ours to end."""

    def __init__(self, server: RunningServer, launched: start.Launched) -> None:
        super().__init__(server, launched.client)
        self.process = launched.process

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        try:
            await super().generate(request, reply)
        except (RequestFailedError, EngineError) as failure:
            if (death := await self.process.death_by(str(failure))) is not None:
                raise death from None
            raise

    async def stop(self) -> None:
        await super().stop()
        await self.process.stop(device={})


class StubStarter(ServerStarter):
    """Starts the stand-in: what vLLM would resolve is said here."""

    def __init__(self, folder: Path, **says: object) -> None:
        super().__init__({"model": "m"}, log=folder / "serve.log")
        self.says = {name: str(value) for name, value in says.items()}

    def resolved(self, *, max_num_seqs: int) -> Resolved:
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 64}
        return Resolved(
            arguments={"model": "m", **limits},
            command={"model": "m", **limits},
            environment={"PYTHONPATH": str(ROOT), **self.says},
            max_model_len=1024,
            vocab_size=1000,
            by_priority=False,
            how={},
            sampling={"temperature": 1.0},
        )

    async def behind(self, launched: start.Launched, resolved: Resolved) -> StubEngine:
        facts = start.facts_of(resolved, launched, block_size=16, kv_blocks=100)
        server = RunningServer(
            url=launched.url, model="m", facts=facts, planned=sys.maxsize, most=None
        )
        return StubEngine(server, launched)


def taken(folder: Path, times: int) -> StubStarter:
    """Return what starts a server whose port somebody else takes first, so many times."""
    return StubStarter(folder, STUB_STARTS=folder / "starts", STUB_TAKEN=times)


def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(tmp_path: Path) -> None:
    async def main() -> Reply:
        engine = await taken(tmp_path, 2).start(max_num_seqs=2)
        try:
            return await generate(engine, request(1, prompt=5, output=9))
        finally:
            await engine.stop()

    assert asyncio.run(main()).output_tokens == 9
    assert (tmp_path / "starts").read_text() == "start\n" * 3


def test_where_every_port_is_taken_nothing_is_left_and_one_line_says_so(tmp_path: Path) -> None:
    before = family(os.getpid())
    with pytest.raises(EngineError, match=r"3 free ports of 127\.0\.0\.1 were taken"):
        asyncio.run(taken(tmp_path, 3).start(max_num_seqs=2))
    wait_until(lambda: not any(map(lives, family(os.getpid()) - before)))


def test_neither_server_nor_client_survives_a_tuner_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TUNER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "up\n"
        everybody = family(tuner.pid)
        assert len(everybody) == 3  # the guardian, the server and the client
        tuner.kill()
    wait_until(lambda: not any(map(lives, everybody)))


@pytest.mark.parametrize("part", ["server", "guardian"])
def test_a_request_under_way_is_told_that_its_server_was_killed(tmp_path: Path, part: str) -> None:
    """Its connection breaks before anybody else knows."""

    async def main() -> None:
        engine = await StubStarter(tmp_path, STUB_STOPS=WARM_UPS).start(max_num_seqs=2)
        assert isinstance(engine, StubEngine)
        process, reply = engine.process, Reply()
        try:
            task = asyncio.create_task(engine.generate(request(1, prompt=5, output=9), reply))
            while not reply.seen_s:  # noqa: ASYNC110 - a reply tells nobody
                await asyncio.sleep(0.01)
            os.kill({"server": process.group, "guardian": process.pid}[part], signal.SIGKILL)
            with pytest.raises(EngineError, match="vllm serve was killed by SIGKILL"):
                await task
        finally:
            await engine.stop()

    asyncio.run(main())


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
        start.words(arguments, port=1)
