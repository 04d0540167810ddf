"""A ``vllm serve`` of our own behind the seam: asked over HTTP by a client process."""

import asyncio
import os
import secrets
from itertools import count
from typing import Any

from tuner.engines.sampling import Sampling
from tuner.engines.seam import (
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.engines.server.client import StreamingClient
from tuner.engines.server.engine_control import ControlledEngine, EngineControl
from tuner.engines.server.protocol import Served
from tuner.engines.server.running import WARM_UP_TOKENS, WARM_UPS
from tuner.engines.server.serve_process import ServeProcess
from tuner.errors import EngineError

_DEATH_S = 10.0
"""Time that a server whose engine is gone may take to end itself."""


class ServerEngine(ControlledEngine):
    """See the seam: tuner.engines.seam.Engine."""

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        facts: EngineFacts,
        process: ServeProcess,
        client: StreamingClient,
        control: EngineControl,
        *,
        model: str,
        by_priority: bool,
        sampling: Sampling,
    ) -> None:
        super().__init__(control)
        self.facts = facts
        self._process, self._client = process, client
        self._model, self._by_priority = model, by_priority
        self._sampling = sampling
        self._name = secrets.token_hex(4)
        self._numbers = count()
        self._replies: dict[str, Reply] = {}
        """By the request's name: what the log has still to say of them."""

        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._ends = os.pidfd_open(process.pid)
        self._loop.add_reader(self._ends, self._has_ended)

    @property
    def client_pid(self) -> int:
        return self._client.pid

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        self._check_running()
        self._check_length(request)
        name = f"{self._name}-{next(self._numbers)}"
        self._replies[name] = reply
        try:
            with self._control.generating(reply):
                await self._client.complete(
                    self._body(request), reply, request_id=name, outputs=request.output_length
                )
        except RequestFailedError as failure:
            if await self._is_dead(str(failure)):
                raise self._dead() from None
            raise
        if reply.output_tokens != request.output_length:
            raise RequestFailedError(f"{reply.output_tokens} of {request.output_length} tokens")

    async def take_iterations(self) -> IterationLog:
        self._check_running()
        log, served = await self._control.take_log()
        for one in served:
            self._complete(one)
        self._replies.clear()
        self.stalls.compiled += self._process.compiles.new()
        return log

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._loop.remove_reader(self._ends)
        os.close(self._ends)
        await self._client.stop()
        await self._process.stop(device=self.facts.device)

    async def prove(self) -> None:
        """Send the first requests, whose cost is not the others', and see that our own scheduler
        served them.

        Where two servers listen at one port, connections are dealt out between them. Raises
        EngineError where somebody else's server answered, or ours served others' requests too.
        """
        length = min(WARM_UP_TOKENS, self.facts.max_model_len // 2)
        asked = EngineRequest([1] * length, length)
        await asyncio.gather(*(self.generate(asked, Reply()) for _ in range(WARM_UPS)))
        while not await self.is_idle():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        await self._control.reset_prefix_cache()
        _, served = await self._control.take_log()
        self._replies.clear()
        ours = sum(_name_of(one).startswith(self._name) for one in served)
        if (ours, len(served)) != (WARM_UPS, WARM_UPS):
            raise EngineError(
                f"{WARM_UPS} requests were sent to the server that tuner has started, it served "
                f"{ours} of them and {len(served) - ours} others",
                hint="Another server listens at the same port: end it, then try again.",
            )
        self._control.watch.begin()

    def _body(self, request: EngineRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            **self._sampling,  # first: it sets nothing else
            "model": self._model,
            "prompt": request.prompt_token_ids,
            "max_tokens": request.output_length,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._by_priority:
            body["priority"] = request.priority
        return body

    def _complete(self, one: Served) -> None:
        """Add to a reply what the scheduler alone knows."""
        if (reply := self._replies.get(_name_of(one))) is not None:
            reply.queued_s, reply.scheduled_s = one.queued_s, one.scheduled_s
            reply.first_s, reply.last_s = one.first_token_s, one.last_token_s
            reply.cached_tokens, reply.preemptions = one.cached_tokens, one.preemptions

    def _check_running(self) -> None:
        super()._check_running()
        if self._ended.is_set():
            raise self._dead()

    def _has_ended(self) -> None:
        """Fail every request: the guardian is no more, and nobody has stopped it. On the event
        loop."""
        self._loop.remove_reader(self._ends)
        self._process.kill()  # what it may have left, were it killed itself
        self._ended.set()
        self._client.fail(self._dead())

    async def _is_dead(self, problem: str) -> bool:
        """Return whether the server is gone, or going, after a request that failed so."""
        if self._ended.is_set() or await self._process.death_by(problem) is not None:
            return True
        try:
            await self._control.state()
        except EngineError:
            try:
                async with asyncio.timeout(_DEATH_S):
                    await self._ended.wait()
            except TimeoutError:
                self._process.kill()
            return True
        return False

    def _dead(self) -> EngineError:
        if self._stopped:
            return EngineError("the engine is stopped", hint="Start another one.")
        return self._process.death() or EngineError(
            "The engine died: its control socket is gone", hint="Read the run's log."
        )


def _name_of(one: Served) -> str:
    """Return what we have called a request: it has one hyphen, and more behind it in the engine."""
    return "-".join(one.request_id.removeprefix("cmpl-").split("-")[:2])
