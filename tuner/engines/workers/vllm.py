"""Build the approaches of ``tuner compare`` on a real machine."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tuner.engines import devices, gpus, provenance
from tuner.engines.seam import (
    ITERATION,
    ArgumentValue,
    Engine,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    RequestFailedError,
    Stalls,
)
from tuner.engines.server.start import ServerStarter
from tuner.engines.vllm.installed import cautions
from tuner.engines.vllm.log import said_since, size_of
from tuner.engines.vllm.start import VllmStarter
from tuner.engines.workers.queue_messages import (
    Completion,
    Order,
    OrderResult,
    Prompt,
    Skipped,
    WorkerReady,
)
from tuner.engines.workers.seam import Batching, FixedLimits
from tuner.engines.workers.worker import Message, QueueWorker
from tuner.errors import EngineError


class VllmTestbed:
    """See tuner.engines.workers.seam.Testbed."""

    def __init__(
        self,
        base: Mapping[str, ArgumentValue],
        profile: Mapping[str, ArgumentValue] | None,
        *,
        queue_size: int,
        log: Path,
        sampling: Mapping[str, float] = {},
    ) -> None:
        self._base = VllmStarter(base, log=log, sampling=sampling)
        self._profile = None
        if profile is not None:
            self._profile = VllmStarter(profile, log=log, sampling=sampling)
        self._queue_size, self._log = queue_size, log

    async def continuous(self, *, max_num_seqs: int, of_profile: bool = False) -> Engine:
        starter = self._profile if of_profile and self._profile is not None else self._base
        return await starter.start(max_num_seqs=max_num_seqs)

    async def served(self, *, max_num_seqs: int) -> Engine:
        return await ServerStarter.like(self._base).start(max_num_seqs=max_num_seqs)

    async def workers(self, count: int, batching: Batching) -> Engine:
        """Start one after the other: each measures the memory that the one before has left."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        arguments = await asyncio.to_thread(
            self._base.llm_arguments, max_num_seqs=batching.size, share=1 / count
        )
        log_start = size_of(self._log)
        engine = _VllmWorkers()
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(engine.stop)
            for _ in range(count):
                await engine.add(arguments, batching, queue_size=self._queue_size, log=self._log)
            await engine.warm_up()
            failing.pop_all()
        start_s = loop.time() - begun_s
        how = await asyncio.to_thread(self._base.how, max_num_seqs=batching.size)
        said = said_since(self._log, log_start)
        device = devices.device_of(engine.facts.arguments, how, said)
        engine.facts = dataclasses.replace(engine.facts, start_s=start_s, device=device)
        return engine


class _VllmWorkers(FixedLimits):
    """See the seam: tuner.engines.seam.Engine. A prompt goes to the worker that has the fewest."""

    facts: EngineFacts

    def __init__(self) -> None:
        self.stalls = Stalls()
        self._memory_before = gpus.memory_used()
        self._loop = asyncio.get_running_loop()
        self._workers: list[QueueWorker] = []
        self._numbers = count()
        self._newest = -1
        self._waiting: dict[int, asyncio.Future[tuple[Message, float]]] = {}
        self._prompts: set[int] = set()
        """Those of them that wait for a prompt's reply."""

        self._error: EngineError | None = None

    async def add(
        self, arguments: Mapping[str, Any], batching: Batching, *, queue_size: int, log: Path
    ) -> None:
        """Start one more worker."""
        worker = QueueWorker(
            arguments,
            batching,
            queue_size=queue_size,
            log=log,
            received=self._receive,
            died=self._die,
        )
        self._workers.append(worker)
        ready = await worker.start()
        self.facts = _facts(ready, workers=len(self._workers), sequences=batching.size)

    async def warm_up(self) -> None:
        """Let each worker pay what only its first request pays, and forget it."""
        length = min(8, self.facts.max_model_len // 2)
        asked = EngineRequest("warm-up", [1] * length, length)
        await asyncio.gather(*(self.generate(asked, Reply()) for _ in self._workers))
        await self.reset_prefix_cache()
        await self.take_iterations()

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        self._check()
        length = len(request.prompt_token_ids) + request.output_length
        if length > self.facts.max_model_len:
            raise RequestFailedError(
                f"{length} tokens of prompt and output, max_model_len is {self.facts.max_model_len}"
            )
        if not request.prompt_token_ids or request.output_length < 1:
            raise RequestFailedError("an empty prompt, or nothing to generate")
        number, done = self._next()
        worker = min(self._workers, key=lambda one: one.in_hand)
        self._prompts.add(number)
        try:
            token_ids = tuple(request.prompt_token_ids)
            sent_s = self._loop.time()
            worker.send(Prompt(number, sent_s, token_ids, request.output_length))
            message, now_s = await done
        finally:
            del self._waiting[number]
            self._prompts.discard(number)
            if not self._prompts:
                for one in self._workers:
                    one.skip_before(self._newest + 1)
        assert isinstance(message, Completion)
        reply.first_token_s = reply.last_token_s = now_s
        reply.output_tokens = message.output_tokens
        reply.output_s = list(message.output_s)
        reply.queue_s = message.begun_s - sent_s
        reply.transfer_s = message.read_s + now_s - message.sent_s
        reply.held_s = message.batch_done_s - message.output_s[-1]

    async def is_idle(self) -> bool:
        self._check()
        return not any(worker.in_hand for worker in self._workers)

    async def reset_prefix_cache(self) -> None:
        if not all(await self._ask("reset_prefix_cache")):
            raise EngineError(
                "the prefix cache was not reset: blocks are in use", hint="Read the log."
            )

    async def take_iterations(self) -> IterationLog:
        rows = await self._ask("take_iterations")
        logs = [np.frombuffer(one, dtype=ITERATION) for one in rows if isinstance(one, bytes)]
        log: IterationLog = np.concatenate(logs)
        return log[np.argsort(log["start_s"], kind="stable")]

    async def stop(self) -> None:
        self._error = self._error or EngineError("the engine is stopped", hint="Start another one.")
        self._fail(self._error)
        for worker in self._workers:
            await worker.stop()
        device = self.facts.device if hasattr(self, "facts") else None  # its start failed
        await gpus.given_back(self._memory_before, device=device)

    async def _ask(self, what: Any) -> Sequence[bytes | bool]:  # noqa: ANN401 - one of two words
        """Give every worker an order and return the answers."""
        self._check()
        asked = []
        try:
            for worker in self._workers:
                number, answer = self._next()
                asked.append((number, answer))
                await worker.order(Order(number, what))
            found = [(await answer)[0] for _, answer in asked]
        finally:
            for number, _ in asked:
                del self._waiting[number]
        return [one.value for one in found if isinstance(one, OrderResult)]

    def _next(self) -> tuple[int, "asyncio.Future[tuple[Message, float]]"]:
        self._newest = next(self._numbers)
        future: asyncio.Future[tuple[Message, float]] = self._loop.create_future()
        self._waiting[self._newest] = future
        return self._newest, future

    def _receive(self, message: Message, now_s: float) -> None:
        future = self._waiting.get(message.number)
        if future is not None and not future.done() and not isinstance(message, Skipped):
            future.set_result((message, now_s))

    def _die(self, error: EngineError) -> None:
        self._error = self._error or error
        self._fail(self._error)

    def _fail(self, error: EngineError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


def _facts(ready: WorkerReady, *, workers: int, sequences: int) -> EngineFacts:
    return EngineFacts(
        engine="vllm",
        arguments={**ready.arguments, "max_num_seqs": sequences},
        max_model_len=ready.max_model_len,
        vocab_size=ready.vocab_size,
        block_size=ready.block_size,
        kv_blocks=ready.kv_blocks * workers,
        start_s=0.0,
        versions=provenance.versions(),
        device={},  # known when all of them run
        cautions=cautions(),
    )
