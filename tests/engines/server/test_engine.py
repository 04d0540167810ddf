"""A server of our own: that it is ours, and what happens when it is not, or no more."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import VLLM_CRAMPED, request, until_it_generates
from tests.support.builders import facts
from tests.support.completions import Asked, completions
from tests.support.live_servers import Server, serving
from tests.support.processes import TIMEOUT_S, family, lives, wait_until
from tuner.engines.seam import ArgumentValue, Reply
from tuner.engines.server.client import StreamingClient
from tuner.engines.server.engine import ServerEngine
from tuner.engines.server.engine_control import EngineControl
from tuner.engines.server.protocol import Served
from tuner.engines.server.running import WARM_UPS
from tuner.engines.server.serve_process import ServeProcess
from tuner.engines.server.start import ServerStarter, words
from tuner.errors import EngineError

Answer = Callable[[Asked], Coroutine[Any, Any, None]]


def proved(folder: Path, answer: Callable[[Server], Answer]) -> None:
    """Prove a server that answers so, with a scheduler that has nothing but numbers."""

    async def main(url: str, server: Server) -> None:
        log = folder / "serve.log"
        process = ServeProcess.launch(
            [sys.executable, "-c", "import time; time.sleep(600)"], environment={}, log=log
        )
        client = await StreamingClient.start(url, log=log)
        control = EngineControl(server.path, dead=process.death, end=process.end, doing=str)
        engine = ServerEngine(
            facts(), process, client, control, model="m", by_priority=False,
            sampling={"temperature": 0.5, "top_k": 20},
        )  # fmt: skip
        try:
            await engine.prove()
        finally:
            await engine.stop()

    with serving(folder / "tuner.sock") as server, completions(answer(server)) as url:
        asyncio.run(main(url, server))


def served_by(server: Server, asked: Asked) -> None:
    """Let the scheduler tell that it has served this."""
    name = f"cmpl-{asked.headers['X-Request-Id']}-0-0123abcd"
    one = Served(
        request_id=name,
        queued_s=1.0,
        scheduled_s=1.0,
        first_token_s=1.5,
        last_token_s=2.0,
        cached_tokens=0,
        preemptions=0,
    )
    server.numbers.served.append(one)


def test_a_server_whose_own_scheduler_has_served_every_warm_up_is_ours(tmp_path: Path) -> None:
    def answer(server: Server) -> Answer:
        async def ours(asked: Asked) -> None:
            assert (asked.body["temperature"], asked.body["top_k"]) == (0.5, 20)
            served_by(server, asked)
            await asked.whole(asked.body["max_tokens"])

        return ours

    proved(tmp_path, answer)


@pytest.mark.parametrize("share", [1, 2])
def test_where_another_server_answers_at_the_port_too_nothing_is_measured(
    tmp_path: Path, share: int
) -> None:
    """With SO_REUSEPORT the kernel deals connections out between whoever listens."""

    def answer(server: Server) -> Answer:
        async def partly_ours(asked: Asked) -> None:
            if int(asked.headers["X-Request-Id"].rpartition("-")[2]) % share:
                served_by(server, asked)
            await asked.whole(asked.body["max_tokens"])

        return partly_ours

    ours = 0 if share == 1 else WARM_UPS // 2
    why = f"{WARM_UPS} requests were sent .* served {ours} of them and 0 others"
    with pytest.raises(EngineError, match=why) as caught:
        proved(tmp_path, answer)
    assert "same port" in caught.value.hint


def test_a_server_that_serves_strangers_meanwhile_measures_nothing(tmp_path: Path) -> None:
    def answer(server: Server) -> Answer:
        async def busy(asked: Asked) -> None:
            served_by(server, asked)
            if asked.headers["X-Request-Id"].endswith("-0"):
                asked.headers = {"X-Request-Id": "somebody"}
                served_by(server, asked)
            await asked.whole(asked.body["max_tokens"])

        return busy

    with pytest.raises(EngineError, match=f"served {WARM_UPS} of them and 1 others"):
        proved(tmp_path, answer)


def test_the_command_says_each_argument_as_vllm_spells_it() -> None:
    arguments: dict[str, ArgumentValue] = {
        "model": "acme/7b",
        "max_num_seqs": 8,
        "api_server_count": 2,
        "enable_prefix_caching": False,
        "enable_expert_parallel": True,
        "disable_log_stats": False,
        "served_model_name": ["a", "b"],
        "compilation_config": {"mode": 2},
    }
    assert words(arguments, port=8123) == [
        "acme/7b",
        "--max-num-seqs=8",
        "--api-server-count=2",
        "--no-enable-prefix-caching",
        "--enable-expert-parallel",
        *("--served-model-name", "a", "b"),
        '--compilation-config={"mode": 2}',
        *("--host", "127.0.0.1", "--port", "8123"),
    ]


@pytest.mark.vllm
@pytest.mark.parametrize(
    "part",
    ["core", *(pytest.param(one, marks=pytest.mark.long) for one in ("server", "guardian"))],
)
def test_when_a_part_of_it_is_killed_whoever_asks_is_told_and_nothing_is_left(
    tmp_path: Path, part: str
) -> None:
    log = tmp_path / "vllm.log"

    async def main() -> set[int]:
        engine = await ServerStarter(VLLM_CRAMPED, log=log).start(max_num_seqs=2)
        assert isinstance(engine, ServerEngine)
        everybody = family(os.getpid())
        core = (await engine._control.state()).about.pid
        process = engine._process
        victim = {"core": core, "server": process.group, "guardian": process.pid}[part]
        reply = Reply()
        task = asyncio.create_task(engine.generate(request(1, prompt=5, output=200), reply))
        await until_it_generates(reply)
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(EngineError, match=r"The engine died|killed by SIGKILL"):
                await task
        for refused in (engine.is_idle, engine.take_iterations, engine.reset_prefix_cache):
            with pytest.raises(EngineError, match=r"died|killed by SIGKILL"):
                await refused()
        await engine.stop()
        await engine.stop()
        return everybody

    everybody = asyncio.run(main())
    wait_until(lambda: not any(map(lives, everybody - family(os.getpid()))))


@pytest.mark.vllm
@pytest.mark.long
def test_a_server_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    starter = ServerStarter(
        {"model": "tuner:tiny", "num_gpu_blocks_override": 1}, log=tmp_path / "vllm.log"
    )
    with pytest.raises(EngineError, match="cache blocks") as caught:
        asyncio.run(starter.start(max_num_seqs=4))
    assert "kv_cache_memory_bytes" in caught.value.hint
