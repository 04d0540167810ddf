"""Starts servers of our own: ``vllm serve`` with what a profile's engine section says. Light."""

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from itertools import count

from tuner.engines import devices, provenance
from tuner.engines.patience import started_in_time
from tuner.engines.seam import ArgumentValue, EngineFacts
from tuner.engines.server.client import FIRST_S, StreamingClient
from tuner.engines.server.engine import ServerEngine
from tuner.engines.server.engine_control import EngineControl
from tuner.engines.server.protocol import State
from tuner.engines.server.serve_process import (
    HOST,
    FreePort,
    PortTakenError,
    ServeProcess,
)
from tuner.engines.vllm.flags import WITHOUT_NEGATIVE, command_line
from tuner.engines.vllm.start import Resolved, VllmStarter
from tuner.errors import EngineError
from tuner.system import scratch

_PORTS = 3
"""How many are tried, should somebody else be faster each time."""

_VLLM = (sys.executable, "-m", "vllm.entrypoints.cli.main")
"""The ``vllm`` command, of this Python and no other."""

_STARTS = count()


class ServerStarter(VllmStarter):
    """Starts the same engines, each behind a ``vllm serve`` of its own."""

    @classmethod
    def like(cls, starter: VllmStarter) -> "ServerStarter":
        """Return what starts the starter's engines behind servers."""
        return cls(starter.arguments, log=starter.log, ranks=starter.ranks)

    async def start(self, *, max_num_seqs: int) -> ServerEngine:
        """See the seam. A failed or cancelled start leaves nothing behind."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        resolved = await asyncio.to_thread(self.resolved, max_num_seqs=max_num_seqs)
        for left in reversed(range(_PORTS)):
            try:
                engine = await self._start(resolved, begun_s)
            except PortTakenError:
                if not left:
                    raise EngineError(
                        f"{_PORTS} free ports of {HOST} were taken before the server had them",
                        hint="See what else starts servers here, then try again.",
                    ) from None
            else:
                return engine
        raise AssertionError

    async def _start(self, resolved: Resolved, begun_s: float) -> ServerEngine:
        loop = asyncio.get_running_loop()
        control_at = scratch.own_folder("vllm") / f"serve-{next(_STARTS)}.sock"
        async with contextlib.AsyncExitStack() as failing:
            port = FreePort()
            failing.callback(port.release)
            url = f"http://{HOST}:{port.number}"
            async with started_in_time(self.log):
                process = ServeProcess.launch(
                    [*_VLLM, "serve", *words(resolved.command, port=port.number)],
                    environment={**resolved.environment, "TUNER_LIVE_SOCKET": str(control_at)},
                    log=self.log,
                )
                failing.push_async_callback(process.stop)
                client = await StreamingClient.start(url, log=self.log, silence_s=FIRST_S)
                failing.push_async_callback(client.stop)
                await process.ready(url)
            control = EngineControl(
                control_at,
                dead=process.death,
                end=process.end,
                doing=lambda: devices.state_of([process.pid]),
            )
            state = await control.opened()
            _check(resolved, state)
            engine = ServerEngine(
                _facts(resolved, state, loop.time() - begun_s),
                process,
                client,
                control,
                model=str(resolved.command["model"]),
                by_priority=resolved.by_priority,
            )
            failing.push_async_callback(engine.stop)
            await engine.prove()
            failing.pop_all()
            port.release()
        return engine


def words(arguments: Mapping[str, ArgumentValue], *, port: int) -> list[str]:
    """Return the words after ``vllm serve``."""
    model = str(arguments["model"])
    rest = [
        word
        for name, value in arguments.items()
        if name != "model" and not (value is False and name in WITHOUT_NEGATIVE)
        for word in command_line(name, value)
    ]
    return [model, *rest, "--host", HOST, "--port", str(port)]


def _check(resolved: Resolved, state: State) -> None:
    """Raise EngineError where the server runs with something else than was resolved for it."""
    for name, is_ in state.about.arguments.items():
        asked = resolved.arguments.get(name, is_)
        if name != "model" and is_ != asked:
            raise EngineError(
                f"the server runs with {name}={is_}, asked was for {asked}",
                hint="An environment variable of vLLM may say otherwise: read its log.",
            )


def _facts(resolved: Resolved, state: State, start_s: float) -> EngineFacts:
    block_size = int(str(state.about.arguments["block_size"]))  # some know theirs after the start
    return EngineFacts(
        engine="serve",
        arguments={**resolved.arguments, "block_size": block_size},
        max_model_len=resolved.max_model_len,
        vocab_size=resolved.vocab_size,
        block_size=block_size,
        kv_blocks=state.about.kv_blocks or 0,
        start_s=start_s,
        versions=provenance.versions(),
        device=devices.device_facts(),
        cautions=state.about.cautions,
        unmodelled=state.about.unmodelled,
    )
