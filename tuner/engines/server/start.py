"""Starts servers of our own: ``vllm serve`` with what a profile's engine section says. Light."""

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Protocol, Self

from tuner.engines import devices, provenance
from tuner.engines.seam import ArgumentValue, Engine, EngineFacts
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
from tuner.engines.timeouts import started_in_time
from tuner.engines.vllm.flags import WITHOUT_NEGATIVE, command_line, positional
from tuner.engines.vllm.installed import in_one_process
from tuner.engines.vllm.log import start_phases_s
from tuner.engines.vllm.start import Resolved, VllmStarter
from tuner.errors import EngineError
from tuner.system import files

_PORTS = 3
"""Ports that are tried, should somebody else be faster each time."""

_VLLM = (sys.executable, "-P", "-m", "vllm.entrypoints.cli.main")
"""The ``vllm`` command, of this Python and no other."""

_STARTS = count()


class ProvenEngine(Engine, Protocol):
    """An engine that can show that it is the one that was started."""

    async def prove(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Launched:
    """A server of ours that is ready, and the client that asks it."""

    process: ServeProcess
    client: StreamingClient
    url: str
    control_at: Path
    """Where its control socket is, if it has one."""

    begun_s: float
    """When its start began, on the event loop's clock."""


class ServerStarter(VllmStarter):
    """Starts the same engines, each behind a ``vllm serve`` of its own."""

    @classmethod
    def like(cls, starter: VllmStarter) -> Self:
        """Return what starts the starter's engines behind servers."""
        return cls(
            starter.arguments, log=starter.log, ranks=starter.ranks, sampling=starter.sampling
        )

    async def start(self, *, max_num_seqs: int) -> Engine:
        """See the seam. A failed or cancelled start leaves nothing behind.

        Raises EngineError too when others take every port that it is given.
        """
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

    async def _start(self, resolved: Resolved, begun_s: float) -> Engine:
        control_at = files.own_folder("vllm") / f"serve-{next(_STARTS)}.sock"
        command, environment = self.asked_of(resolved, control_at)
        async with contextlib.AsyncExitStack() as failing:
            port = FreePort()
            failing.callback(port.release)
            url = f"http://{HOST}:{port.number}"
            async with started_in_time(self.log):
                process = ServeProcess.launch(
                    [*_VLLM, "serve", *words(command, port=port.number)],
                    environment=environment,
                    log=self.log,
                )
                failing.push_async_callback(process.abandon)
                # its iterations tell sooner than silence that it stands still
                client = await StreamingClient.start(url, log=self.log, silence_s=FIRST_S)
                failing.push_async_callback(client.stop)
                await process.ready(url)
            launched = Launched(process, client, url, control_at, begun_s)
            engine = await self.behind(launched, resolved)
            failing.push_async_callback(engine.stop)
            await engine.prove()
            failing.pop_all()
            port.release()
        return engine

    def asked_of(
        self, resolved: Resolved, control_at: Path
    ) -> tuple[Mapping[str, ArgumentValue], Mapping[str, str]]:
        """Return the arguments and the variables that ``vllm serve`` is started with."""
        return resolved.command, {**resolved.environment, "TUNER_LIVE_SOCKET": str(control_at)}

    async def behind(self, launched: Launched, resolved: Resolved) -> ProvenEngine:
        """Return the engine behind a server that is ready.

        Raises EngineError for a server that runs with other arguments than were resolved for it.
        """
        process = launched.process
        control = EngineControl(
            launched.control_at,
            dead=process.death,
            end=process.end,
            doing=lambda: devices.state_of([process.pid]),
        )
        state = await control.opened()
        _check(resolved, state)
        # some know their block size after the start
        block_size = int(str(state.about.arguments["block_size"]))
        facts = facts_of(
            resolved, launched, block_size=block_size, kv_blocks=state.about.kv_blocks or 0
        )
        return ServerEngine(
            replace(
                facts,
                cautions=(*facts.cautions, *state.about.cautions),
                unmodelled=state.about.unmodelled,
            ),
            process,
            launched.client,
            control,
            model=str(resolved.command["model"]),
            by_priority=resolved.by_priority,
            sampling=resolved.sampling,
        )


def words(arguments: Mapping[str, ArgumentValue], *, port: int) -> list[str]:
    """Return the words after ``vllm serve``. Raises EngineError for one that is a flag."""
    try:
        rest = [
            word
            for name, value in arguments.items()
            if name != "model" and not (value is False and name in WITHOUT_NEGATIVE)
            for word in command_line(name, value)
        ]
        model = positional(str(arguments["model"]))
    except ValueError as error:
        raise EngineError(
            f"{error}: vllm serve would take it for a flag",
            hint="Give a value that does not begin with a hyphen.",
        ) from None
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


def facts_of(
    resolved: Resolved, launched: Launched, *, block_size: int, kv_blocks: int
) -> EngineFacts:
    """Return what a server of ours is, with what it alone knows."""
    said = launched.process.said()
    return EngineFacts(
        engine="serve",
        arguments={**resolved.arguments, "block_size": block_size},
        max_model_len=resolved.max_model_len,
        vocab_size=resolved.vocab_size,
        block_size=block_size,
        kv_blocks=kv_blocks,
        start_s=asyncio.get_running_loop().time() - launched.begun_s,
        versions=provenance.versions(),
        device=devices.device_of(resolved.arguments, resolved.how, said),
        environment=provenance.environment(),
        sampling=resolved.sampling,
        phases_s=start_phases_s(said),
        cautions=in_one_process(resolved.arguments),
    )
