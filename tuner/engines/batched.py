"""Static batching, as services did it before continuous batching: a wrapper of any engine."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from tuner.engines.seam import (
    STOPPED,
    ArgumentValue,
    Engine,
    EngineRequest,
    IterationLog,
    Reply,
    Starter,
)


class Batching(NamedTuple):
    """Batches of ``size`` requests, or of what came within ``wait_s`` of the first."""

    size: int
    wait_s: float


class _Waiting(NamedTuple):
    request: EngineRequest
    reply: Reply
    came_s: float
    done: "asyncio.Future[None]"


class Batched:
    """See tuner.engines.seam.Engine. It serves one batch at a time, and its replies leave together
    when the slowest is done."""

    def __init__(self, engine: Engine, batching: Batching) -> None:
        self.facts, self.compiled = engine.facts, engine.compiled
        self._engine, self._batching = engine, batching
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        self._came = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._stopped = False

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """See the seam."""
        if self._stopped:
            raise STOPPED
        item = _Waiting(request, reply, self._loop.time(), self._loop.create_future())
        self._waiting.append(item)
        self._came.set()
        if self._serving is None:
            self._serving = self._loop.create_task(self._serve())
        await item.done

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """See the seam."""
        await self._idle()
        await self._engine.prepare(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )

    async def iterations(self) -> IterationLog:
        """See the seam."""
        return await self._engine.iterations()

    async def stop(self) -> None:
        """See the seam."""
        self._stopped = True
        for each in self._waiting:
            if not each.done.done():
                each.done.set_exception(STOPPED)
        await self._engine.stop()
        await self._idle()

    async def _idle(self) -> None:
        """Wait for the batch under way: it continues when its clients have left."""
        if self._serving is not None:
            await self._serving

    async def _serve(self) -> None:
        while self._waiting:
            until_s = self._waiting[0].came_s + self._batching.wait_s
            try:
                async with asyncio.timeout_at(until_s):
                    while len(self._waiting) < self._batching.size:
                        self._came.clear()
                        await self._came.wait()
            except TimeoutError:
                pass
            batch = [each for each in self._waiting[: self._batching.size] if not each.done.done()]
            del self._waiting[: self._batching.size]
            begun_s, replies = self._loop.time(), [Reply() for _ in batch]
            work = map(self._engine.generate, [each.request for each in batch], replies)
            problems = await asyncio.gather(*work, return_exceptions=True)
            for each, seen, problem in zip(batch, replies, problems, strict=True):
                if each.done.done():  # its client has left
                    continue
                if problem is not None:
                    each.done.set_exception(problem)
                    continue
                reply = each.reply
                reply.output_tokens, reply.seen_s = seen.output_tokens, [self._loop.time()]
                reply.queued_s, reply.scheduled_s = each.came_s, begun_s
                reply.first_s, reply.last_s = seen.seen_s[0], seen.seen_s[-1]
                each.done.set_result(None)
        self._serving = None


class BatchedStarter(NamedTuple):
    """See the seam: Starter. The engine's cap is the size of a batch."""

    base: Starter
    batching: Batching

    def resolve(self, *, max_num_seqs: int) -> Mapping[str, ArgumentValue]:
        """See the seam."""
        return self.base.resolve(max_num_seqs=max_num_seqs)

    async def start(self, *, max_num_seqs: int) -> Batched:
        """See the seam."""
        return Batched(await self.base.start(max_num_seqs=max_num_seqs), self.batching)
