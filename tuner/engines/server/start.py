"""Servers of our own: ``vllm serve`` with what a profile's engine section says, behind the seam."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tuner.engines import devices, provenance
from tuner.engines.page import VARIABLE, About, Page, name_of
from tuner.engines.paged import WARM_UP_TOKENS, PagedEngine
from tuner.engines.seam import (
    STOPPED,
    ArgumentValue,
    Engine,
    EngineFacts,
    EngineRequest,
    Reply,
    RequestFailedError,
)
from tuner.engines.server.client import CompletionClient
from tuner.engines.server.running import WARM_UPS
from tuner.engines.server.serve_process import HOST, FreePort, PortTakenError, ServeProcess
from tuner.engines.timeouts import started_in_time
from tuner.engines.vllm.flags import WITHOUT_NEGATIVE, command_line, positional
from tuner.engines.vllm.installed import in_one_process
from tuner.engines.vllm.log import start_phases_s
from tuner.engines.vllm.start import Resolved, VllmStarter, new_page
from tuner.errors import EngineError

_PORTS = 3
"""Ports that are tried, should somebody else be faster each time."""

_VLLM = (sys.executable, "-P", "-m", "vllm.entrypoints.cli.main")
"""The ``vllm`` command, of this Python and no other."""


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
        begun_s = asyncio.get_running_loop().time()
        resolved = await asyncio.to_thread(self.resolved, max_num_seqs=max_num_seqs)
        for _ in range(_PORTS):
            with contextlib.suppress(PortTakenError):
                return await self._start(resolved, begun_s)
        raise EngineError(
            f"{_PORTS} free ports of {HOST} were taken before the server had them",
            hint="See what else starts servers here, then try again.",
        )

    async def _start(self, resolved: Resolved, begun_s: float) -> Engine:
        async with contextlib.AsyncExitStack() as failing:
            page, port = new_page(), FreePort()
            failing.callback(page.remove)
            failing.callback(port.release)
            url = f"http://{HOST}:{port.number}"
            async with started_in_time(self.log):
                process = ServeProcess.launch(
                    self.command(resolved, port=port.number),
                    environment={**resolved.environment, VARIABLE: str(page.folder)},
                    log=self.log,
                )
                failing.push_async_callback(process.abandon)
                await process.ready(url)
            facts = _facts(resolved, process, page.about(), begun_s)
            engine = ServerEngine(facts, resolved, process, CompletionClient(url), page, self.log)
            failing.push_async_callback(engine.stop)
            await engine.prove()
            failing.pop_all()
            port.release()
        return engine

    def command(self, resolved: Resolved, *, port: int) -> list[str]:
        """Return the command that starts a server at a port."""
        return [*_VLLM, "serve", *words(resolved.command, port=port)]


class ServerEngine(PagedEngine):
    """See the seam: tuner.engines.seam.Engine."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it is made of
        self,
        facts: EngineFacts,
        resolved: Resolved,
        process: ServeProcess,
        client: CompletionClient,
        page: Page,
        log: Path,
    ) -> None:
        super().__init__(page, log, doing=lambda: devices.state_of([process.pid]))
        self.facts, self._process, self._client = facts, process, client
        self._by_priority = resolved.by_priority
        self._body = {
            **resolved.sampling,  # first: it sets nothing else
            "model": resolved.command["model"],
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self._loop = asyncio.get_running_loop()
        self._ends = os.pidfd_open(process.pid)
        self._loop.add_reader(self._ends, self._has_ended)

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam."""
        body = {
            **self._body,
            "prompt": list(request.prompt_token_ids),
            "max_tokens": request.output_length,
            **({"priority": request.priority} if self._by_priority else {}),
        }
        with self._generating(request, reply) as number:
            try:
                await self._client.complete(
                    body,
                    reply,
                    name=name_of(number),
                    outputs=request.output_length,
                    came=self._came,
                )
            except RequestFailedError as problem:
                if str(problem).startswith("4"):  # it has refused this request alone
                    raise
                before = self._page.iterations
                is_alive = lambda: self._page.iterations > before  # noqa: E731
                if (dead := await self._process.death_soon(is_alive)) is not None:
                    raise dead from None
                raise
        if reply.output_tokens != request.output_length:
            raise RequestFailedError(f"{reply.output_tokens} of {request.output_length} tokens")

    async def stop(self) -> None:
        """See the seam."""
        if self._stopped:
            return
        self._stopped = True
        self._loop.remove_reader(self._ends)
        os.close(self._ends)
        await self._client.stop()
        await self._process.stop(device=self.facts.device)
        self._page.remove()

    async def prove(self) -> None:
        """Send the first requests, whose cost is not the others', and see that our own scheduler
        served them.

        Where two servers listen at one port, connections are dealt out between them. Raises
        EngineError where somebody else's server answered, or ours served others' requests too.
        """
        length = min(WARM_UP_TOKENS, self.facts.max_model_len // 2)
        request = EngineRequest([1] * length, length)
        await asyncio.gather(*(self.generate(request, Reply()) for _ in range(WARM_UPS)))
        await self._drained()
        _, served = self._page.take()
        ours = sum(int(one) in self._replies for one in served["number"])
        if (ours, len(served)) != (WARM_UPS, WARM_UPS):
            raise EngineError(
                f"{WARM_UPS} requests were sent to the server that tuner has started, it served "
                f"{ours} of them and {len(served) - ours} others",
                hint="Another server listens at the same port: end it, then try again.",
            )
        await self.prepare()
        self.compiled.clear()
        self._watch.begin()

    def _came(self, reads: int) -> None:
        self._tokens += reads

    def _end(self, cause: EngineError) -> None:
        self._process.end(cause)
        self._client.fail(cause)

    def _has_ended(self) -> None:
        """Fail every request: the guardian is no more, and nobody has stopped it. On the event
        loop."""
        self._loop.remove_reader(self._ends)
        self._process.kill()  # what it may have left, were it killed itself
        self._client.fail(self._death() or STOPPED)

    def _death(self) -> EngineError | None:
        return STOPPED if self._stopped else self._process.death()


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


def _facts(resolved: Resolved, process: ServeProcess, about: About, begun_s: float) -> EngineFacts:
    """Return what a server of ours is.

    Raises EngineError where it runs with something else than was resolved for it.
    """
    for name, runs_with in about.arguments.items():
        wanted = resolved.arguments.get(name, runs_with)
        if name != "model" and runs_with != wanted:
            raise EngineError(
                f"the server runs with {name}={runs_with}, asked was for {wanted}",
                hint="An environment variable of vLLM may say otherwise: read its log.",
            )
    block_size = int(about.arguments["block_size"])  # some know it after the start only
    text = process.said()
    return EngineFacts(
        engine="serve",
        arguments={**resolved.arguments, "block_size": block_size},
        max_model_len=resolved.max_model_len,
        vocab_size=resolved.vocab_size,
        block_size=block_size,
        kv_blocks=about.kv_blocks,
        start_s=asyncio.get_running_loop().time() - begun_s,
        versions=provenance.versions(),
        device=devices.device_of(resolved.arguments, resolved.how, text),
        environment=provenance.environment(),
        sampling=resolved.sampling,
        phases_s=start_phases_s(text),
        cautions=(*in_one_process(resolved.arguments), *about.cautions),
        unmodelled=about.unmodelled,
    )
