"""Servers of our own: ``vllm serve`` with what a profile's engine section says, behind the seam."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from tuner.engines import devices
from tuner.engines.page import SOCKET, VARIABLE, Page
from tuner.engines.paged import PagedEngine
from tuner.engines.seam import (
    STOPPED,
    ArgumentValue,
    Engine,
    EngineRequest,
    Reply,
    RequestFailedError,
)
from tuner.engines.server.client import CompletionClient
from tuner.engines.vllm import failure
from tuner.engines.vllm.failure import Since
from tuner.engines.vllm.flags import WITHOUT_NEGATIVE, command_line, positional
from tuner.engines.vllm.start import Resolved, VllmStarter, new_page, started_in_time
from tuner.errors import EngineError
from tuner.system import files, interruption

_VLLM = (sys.executable, "-P", "-m", "vllm.entrypoints.cli.main")
"""The ``vllm`` command, of this Python and no other."""

STOP_S = 10.0
"""Time that a server may take to end by itself."""

GONE_S = 10.0
"""Time after a failed request within which the server may turn out to have ended."""

_LOOK_S = 0.1

_NOT_FOR_IT = ("VLLM_LOGGING_STREAM", "VLLM_API_KEY", SOCKET)
"""Variables that tuner, or a deployment, has set for others: its requests come without a key."""


class ServeProcess:
    """The guardian, and through it the server with all that it has started: one process group."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> None:
        """Start a command; what it prints goes to the log. Raises EngineError without a
        guardian."""
        self.log, self.memory_before = Since(log), devices.memory_used()
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
        with open(log, "ab", opener=files.opened_own) as output:
            self._guardian = subprocess.Popen(  # noqa: S603 - vLLM, as the user has asked for it
                [sys.executable, "-P", "-m", "tuner.engines.server.guardian", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**kept, **environment},
                start_new_session=True,
            )
        self.group, self.pid = 0, self._guardian.pid
        interruption.ends_with_us(self.kill)
        assert self._guardian.stdout is not None
        group = self._guardian.stdout.readline().strip()
        self._guardian.stdout.close()
        if not group.isdigit():
            self.kill()
            raise EngineError("the server's guardian did not start", hint=f"Read {log}.")
        self.group = int(group)

    async def ready(self, is_healthy: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it is. Raises EngineError with why it never will be."""
        while not await is_healthy():
            if self.death() is not None:
                raise failure.failed_to_start(self.log)
            await asyncio.sleep(_LOOK_S)

    def death(self) -> EngineError | None:
        """Return what it died of; None while it lives."""
        code = self._guardian.poll()
        return None if code is None else failure.died(code, self.log, who="vllm serve")

    async def stop(self, *, within_s: float = STOP_S) -> None:
        """End it in order, or else at once, and wait for the memory of its GPUs. Twice is
        allowed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.group, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._guardian.wait, within_s)
        await asyncio.to_thread(self.kill)
        await devices.given_back(self.memory_before)

    def kill(self) -> None:
        """End all of it now. Any thread may, and twice."""
        interruption.has_ended(self.kill)
        if self.group:  # whose guardian ends it too, unless that was killed itself
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        self._guardian.wait()


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
                process = ServeProcess(
                    self.command(resolved, socket=str(page.socket)),
                    environment={**resolved.environment, VARIABLE: str(page.folder)},
                    log=self.log,
                )
                failing.push_async_callback(process.stop, within_s=0)  # it has served nobody
                await process.ready(partial(client.answers, "/health"))
            failing.pop_all()
        engine = ServerEngine(resolved, process, client, page)
        await engine.begin(resolved, engine="serve", begun_s=begun_s)
        return engine

    def command(self, resolved: Resolved, *, socket: str) -> list[str]:
        """Return the command that starts a server at a socket."""
        return [*_VLLM, "serve", *words(resolved.command), "--uds", socket]


class ServerEngine(PagedEngine):
    """See the seam: tuner.engines.seam.Engine."""

    def __init__(
        self, resolved: Resolved, process: ServeProcess, client: CompletionClient, page: Page
    ) -> None:
        super().__init__(page, [process.pid])
        self._process, self._client, self._by_priority = process, client, resolved.by_priority

    async def _ask(self, name: str, request: EngineRequest, reply: Reply) -> None:
        if not self._by_priority:
            request = replace(request, priority=0)
        try:
            await self._client.complete(request, reply, name=name)
        except RequestFailedError as problem:
            if not str(problem).startswith("4"):  # else it has refused this request alone
                await self._gone_or_alive()
            raise

    async def _gone_or_alive(self) -> None:
        """Wait until the server shows that it has ended, or goes on: who loses a request may know
        of the end before the guardian does."""
        loop, before = asyncio.get_running_loop(), self._page.iterations
        until_s = loop.time() + GONE_S
        while (  # noqa: ASYNC110 - a process gives no event
            self._cause is None
            and self._death() is None
            and self._page.iterations == before
            and loop.time() < until_s
        ):
            await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """See the seam."""
        if self._cause is STOPPED:
            return
        self._cause = STOPPED
        await self._client.stop()
        await self._process.stop()
        self._page.remove()

    def _kill(self) -> None:
        self._process.kill()

    def _death(self) -> EngineError | None:
        return self._process.death()


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
