"""Servers of our own: ``vllm serve`` with what a profile's engine section says, behind the seam."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Self

from tuner.engines.page import VARIABLE, Page
from tuner.engines.paged import PagedEngine, facts_of
from tuner.engines.seam import (
    STOPPED,
    ArgumentValue,
    Engine,
    EngineRequest,
    Reply,
    RequestFailedError,
)
from tuner.engines.server.client import CompletionClient
from tuner.engines.server.serve_process import ServeProcess
from tuner.engines.timeouts import started_in_time
from tuner.engines.vllm.flags import WITHOUT_NEGATIVE, command_line, positional
from tuner.engines.vllm.start import Resolved, VllmStarter, new_page
from tuner.errors import EngineError

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
        """See the seam. A failed or cancelled start leaves nothing behind."""
        begun_s = asyncio.get_running_loop().time()
        resolved = await asyncio.to_thread(self.resolved, max_num_seqs=max_num_seqs)
        async with contextlib.AsyncExitStack() as failing:
            page = new_page()
            failing.callback(page.remove)
            # sampling first: it sets nothing else
            body = {**resolved.sampling, "model": resolved.command["model"], "ignore_eos": True}
            client = CompletionClient("http://localhost", body, socket=str(page.socket))
            failing.push_async_callback(client.stop)
            async with started_in_time(self.log):
                process = ServeProcess.launch(
                    self.command(resolved, socket=str(page.socket)),
                    environment={**resolved.environment, VARIABLE: str(page.folder)},
                    log=self.log,
                )
                failing.push_async_callback(process.abandon)
                await process.ready(partial(client.answers, "/health"))
            engine = ServerEngine(resolved, process, client, page)
            failing.push_async_callback(engine.stop)
            engine.facts = facts_of(
                resolved, page.about(), engine="serve", log_text=process.log.text()
            )
            await engine.warm_up(begun_s)
            failing.pop_all()
        return engine

    def command(self, resolved: Resolved, *, socket: str) -> list[str]:
        """Return the command that starts a server at a socket."""
        return [*_VLLM, "serve", *words(resolved.command), "--uds", socket]


class ServerEngine(PagedEngine):
    """See the seam: tuner.engines.seam.Engine."""

    def __init__(
        self,
        resolved: Resolved,
        process: ServeProcess,
        client: CompletionClient,
        page: Page,
    ) -> None:
        super().__init__(page, process.log, [process.pid])
        self._process, self._client = process, client
        self._by_priority = resolved.by_priority
        self._loop = asyncio.get_running_loop()
        self._ends = os.pidfd_open(process.pid)
        self._loop.add_reader(self._ends, self._has_ended)

    async def _ask(self, name: str, request: EngineRequest, reply: Reply) -> None:
        if not self._by_priority:
            request = replace(request, priority=0)
        try:
            await self._client.complete(request, reply, name=name, came=self._came)
        except RequestFailedError as problem:
            if str(problem).startswith("4"):  # it has refused this request alone
                raise
            before = self._page.iterations
            is_alive = lambda: self._page.iterations > before  # noqa: E731
            if (dead := await self._process.death_soon(is_alive)) is not None:
                raise dead from None
            raise

    async def stop(self) -> None:
        """See the seam."""
        if self._stopped:
            return
        self._stopped = True
        self._loop.remove_reader(self._ends)
        os.close(self._ends)
        await self._client.stop()
        await self._process.stop(device=self.facts.device if hasattr(self, "facts") else None)
        self._page.remove()

    def _came(self) -> None:
        self._tokens += 1

    def _end(self, cause: EngineError) -> None:
        self._process.end(cause)
        self._client.fail(cause)

    def _has_ended(self) -> None:
        """Fail every request: the guardian has ended, and nobody has stopped it. On the event
        loop."""
        self._loop.remove_reader(self._ends)
        self._process.kill()  # what it may have left, were it killed itself
        self._client.fail(self._death() or STOPPED)

    def _death(self) -> EngineError | None:
        return STOPPED if self._stopped else self._process.death()


def words(arguments: Mapping[str, ArgumentValue]) -> list[str]:
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
    return [model, *rest]
