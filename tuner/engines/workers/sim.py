"""Build the approaches of ``tuner compare`` on a simulated machine.

A worker is a task that does what the real one's process does: take a request or a batch off the
queue, let the engine serve it to the end, send all replies. Its queue costs what the world says.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.engines.seam import (
    ArgumentValue,
    Engine,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
)
from tuner.engines.sim.start import VARIABLE, SimStarter
from tuner.engines.sim.world import World
from tuner.engines.workers.seam import Batching, FixedLimits
from tuner.errors import EngineError


class SimTestbed:
    """See tuner.engines.workers.seam.Testbed."""

    def __init__(
        self,
        starter: SimStarter,
        world: World,
        profile: Mapping[str, ArgumentValue],
        *,
        queue_size: int,
    ) -> None:
        """``profile`` holds its engine arguments; empty without one."""
        self._starter, self._world = starter, world
        self._profile = {name: profile[name] for name in VARIABLE if name in profile}
        self._queue_size = queue_size

    async def continuous(self, *, max_num_seqs: int, of_profile: bool = False) -> Engine:
        starter = self._starter.varied(self._profile) if of_profile else self._starter
        return await starter.start(max_num_seqs=max_num_seqs)

    async def served(self, *, max_num_seqs: int) -> Engine:
        raise EngineError(
            f"a simulated engine of {max_num_seqs} slots has no server",
            hint="Leave server out of --approaches with --engine sim.",
        )

    async def workers(self, count: int, batching: Batching) -> Engine:
        world = self._world
        blocks = world.kv.blocks // count
        if not blocks:
            raise EngineError(
                f"{world.kv.blocks} KV blocks are too few for {count} workers",
                hint="Raise kv.blocks in the world file.",
            )
        inner = await self._starter.start(
            max_num_seqs=count * batching.size, world=time_sliced(world) if count > 1 else None
        )
        facts = replace(
            inner.facts,
            arguments={**inner.facts.arguments, "max_num_seqs": batching.size},
            max_model_len=blocks * world.kv.block_size,
            kv_blocks=blocks * count,
        )
        return _SimWorkers(inner, facts, count, batching, world.workers.message, self._queue_size)


def time_sliced(world: World) -> World:
    """Return the machine as two engines find it that run one sequence each, in turns.

    Where both decode, an iteration of ours is one of each, and ``workers.switch`` dearer than
    that; a prompt is an iteration of its own.
    """
    step = world.step
    alone_s = step.a + step.b
    shared = replace(
        step,
        a=0.0,
        b=alone_s,
        n0=1,
        h=2 * world.workers.switch * alone_s,
        p0=step.p0 + step.a,
        pad=False,
    )
    return replace(world, step=shared)


@dataclass(slots=True)
class _Ticket:
    """A request on its way through a queue."""

    number: int
    worker: int
    request: EngineRequest
    reply: Reply
    sent_s: float
    done: "asyncio.Future[None]"


class _SimWorkers(FixedLimits):
    """See the seam: tuner.engines.seam.Engine."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a worker is made of
        self,
        inner: Engine,
        facts: EngineFacts,
        count: int,
        batching: Batching,
        message_s: float,
        queue_size: int,
    ) -> None:
        self._inner, self._facts, self.stalls = inner, facts, inner.stalls
        self._batching, self._message_s = batching, message_s
        self._loop = asyncio.get_running_loop()
        self._queues = [asyncio.Queue[_Ticket](queue_size) for _ in range(count)]
        self._in_hand = [0] * count
        """Each worker's requests that were sent and not answered, whoever still waits for them."""

        self._sent = 0
        self._waited_for: set[int] = set()
        self._wanted_from = 0
        self._workers = [self._loop.create_task(self._work(one)) for one in range(count)]

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        length = len(request.prompt_token_ids) + request.output_length
        if length > self._facts.max_model_len:
            raise RequestFailedError(
                f"{length} tokens of prompt and output, a worker has memory for "
                f"{self._facts.max_model_len}"
            )
        worker = self._in_hand.index(min(self._in_hand))
        now_s, done = self._loop.time(), self._loop.create_future()
        ticket = _Ticket(self._sent, worker, request, reply, now_s, done)
        try:
            self._queues[worker].put_nowait(ticket)
        except asyncio.QueueFull:
            raise RequestFailedError("the queue is full") from None
        self._in_hand[worker] += 1
        self._sent += 1
        self._waited_for.add(ticket.number)
        try:
            await ticket.done
        finally:
            self._waited_for.discard(ticket.number)
            if not self._waited_for:
                self._wanted_from = self._sent

    async def is_idle(self) -> bool:
        return not self._waited_for and await self._inner.is_idle()

    async def reset_prefix_cache(self) -> None:
        await self._join()
        await self._inner.reset_prefix_cache()

    async def take_iterations(self) -> IterationLog:
        await self._join()
        return await self._inner.take_iterations()

    async def stop(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self._inner.stop()

    async def _join(self) -> None:
        for each in self._queues:
            await each.join()

    async def _work(self, worker: int) -> None:
        mine = self._queues[worker]
        while True:
            batch = await self._collect(mine)
            wanted = [ticket for ticket in batch if ticket.number >= self._wanted_from]
            if wanted:
                await self._serve(wanted)
            self._in_hand[worker] -= len(batch)
            for _ in batch:
                mine.task_done()

    async def _collect(self, mine: "asyncio.Queue[_Ticket]") -> list[_Ticket]:
        batch = [await mine.get()]
        try:
            async with asyncio.timeout(self._batching.wait_s):
                while len(batch) < self._batching.size:
                    batch.append(await mine.get())
        except TimeoutError:
            pass
        return batch

    async def _serve(self, batch: list[_Ticket]) -> None:
        begun_s = self._loop.time()
        await asyncio.sleep(self._message_s * len(batch))
        replies = [Reply() for _ in batch]
        async with asyncio.TaskGroup() as group:
            for ticket, reply in zip(batch, replies, strict=True):
                group.create_task(self._inner.generate(ticket.request, reply))
        done_s = self._loop.time()
        await asyncio.sleep(self._message_s * len(batch))
        for ticket, served in zip(batch, replies, strict=True):
            reply = ticket.reply
            reply.output_tokens, reply.output_s = served.output_tokens, served.output_s
            reply.first_token_s = reply.last_token_s = self._loop.time()
            reply.queue_s = begun_s - ticket.sent_s
            reply.preemptions = served.preemptions
            reply.transfer_s = 2 * self._message_s
            reply.held_s = done_s - served.output_s[-1]
            if not ticket.done.done():
                ticket.done.set_result(None)
