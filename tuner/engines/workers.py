"""Worker processes behind queues, a synchronous ``vllm.LLM`` in each, as services were built before
continuous batching. Only ``tuner compare`` measures them."""

# ruff: noqa: ANN401 - multiprocessing's and vLLM's objects are untyped here

import asyncio
import os
import queue
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tuner.engines import devices, provenance, seam
from tuner.engines.timeouts import started_in_time
from tuner.engines.vllm import failure
from tuner.engines.vllm.core_process import CoreContext
from tuner.engines.vllm.log import said_since
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError

_LOOK_S = 0.01
QUEUE_SIZE = 1024  # requests that wait for one worker at most; more are refused


class Batching(NamedTuple):
    """Batches of ``size`` requests, or of what came within ``wait_s`` of the first. All replies of
    a batch leave when the slowest is done."""

    size: int = 1
    wait_s: float = 0.0


class Prompt(NamedTuple):
    number: int
    token_ids: Sequence[int]  # none: the order to reset the prefix cache
    output_length: int


class Done(NamedTuple):
    """The answer to a prompt, in seconds of the monotonic clock that processes share."""

    number: int
    tokens: int
    output_s: tuple[float, ...]  # of the first and the last token, by the engine
    batch_s: tuple[float, float]


class Workers:
    """See tuner.engines.seam.Engine. A prompt goes to the worker that has the fewest."""

    def __init__(self, facts: seam.EngineFacts, log: Path) -> None:
        self.facts, self.log, self.compiled = facts, log, list[str]()
        self._loop, self._context = asyncio.get_running_loop(), CoreContext(log)
        self._wanted_from: Any = self._context.Value("q", 0)
        self._queues: list[Any] = []
        self._replies: list[Any] = []
        self._in_hand: list[int] = []  # prompts of each worker, whoever still waits for them
        self._waiting: dict[int, asyncio.Future[Done]] = {}
        self._newest = 0
        self._batches: dict[tuple[float, float], int] = {}
        self._error: EngineError | None = None

    async def add(self, arguments: dict[str, Any], batching: Batching) -> None:
        """Start one more worker, and let it pay what only its first request pays."""
        prompts, (replies, sender) = self._context.Queue(QUEUE_SIZE), self._context.Pipe(False)
        args = (arguments, batching, prompts, sender, self._wanted_from)
        process = self._context.Process(target=work, args=args)
        starting = self._loop.run_in_executor(None, process.start)
        try:
            await asyncio.shield(starting)
        finally:
            await asyncio.wait([starting])  # else it may begin to live after its end
            sender.close()  # the worker's end closes the pipe
        self._queues.append(prompts)
        self._replies.append(replies)
        self._in_hand.append(0)
        self._loop.add_reader(replies, self._read, len(self._queues) - 1, process)
        async with started_in_time(self.log):
            await self._ask(len(self._queues) - 1, [1] * 8, 8)

    async def generate(self, request: seam.EngineRequest, reply: seam.Reply) -> None:
        begun_s, worker = self._loop.time(), self._in_hand.index(min(self._in_hand))
        done = await self._ask(worker, request.prompt_token_ids, request.output_length)
        reply.seen_s.append(self._loop.time())
        reply.output_tokens = done.tokens
        reply.queued_s, reply.scheduled_s = begun_s, done.batch_s[0]
        reply.first_s, reply.last_s = done.output_s

    async def _ask(self, worker: int, token_ids: Sequence[int], length: int) -> Done:
        if self._error is not None:
            raise self._error
        self._newest = number = self._newest + 1
        try:
            self._queues[worker].put_nowait(Prompt(number, tuple(token_ids), length))
        except queue.Full:
            raise seam.RequestFailedError("the queue is full") from None
        self._in_hand[worker] += 1
        self._waiting[number] = self._loop.create_future()
        try:
            return await self._waiting[number]
        finally:
            del self._waiting[number]
            if not self._waiting:  # a cut replay leaves prompts that nobody waits for
                self._wanted_from.value = self._newest + 1

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """See the seam. Workers keep the limits that they were started with."""
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        if any(value not in {None, self.facts.arguments[name]} for name, value in limits.items()):
            raise EngineError("workers keep their limits", hint="Start other workers.")
        while any(self._in_hand) and self._error is None:  # noqa: ASYNC110 - a cut replay leaves some
            await asyncio.sleep(_LOOK_S)
        await asyncio.gather(*(self._ask(worker, (), 0) for worker in range(len(self._queues))))
        self._batches.clear()

    async def iterations(self) -> seam.IterationLog:
        """Return a row for each batch: without tuner's scheduler an engine logs no iterations."""
        log = np.zeros(len(self._batches), seam.ITERATION)
        for row, ((begun_s, ended_s), size) in zip(log, sorted(self._batches.items()), strict=True):
            row["start_s"], row["duration_s"], row["decode_seqs"] = begun_s, ended_s - begun_s, size
        self._batches.clear()
        return log

    async def stop(self) -> None:
        self._fail(seam.STOPPED)
        for replies in self._replies:
            self._loop.remove_reader(replies)
        await asyncio.to_thread(self._context.kill)
        for prompts in self._queues:
            prompts.close()
            prompts.cancel_join_thread()
        await devices.given_back(self._context.memory_before, device=self.facts.device or None)

    def _read(self, worker: int, process: Any) -> None:
        """Take what a worker has answered, or its end."""
        try:
            done: Done = self._replies[worker].recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._replies[worker])
            process.join(timeout=1)
            self._fail(self._cause(process.exitcode))
            return
        self._in_hand[worker] -= 1
        if done.tokens:
            self._batches[done.batch_s] = self._batches.get(done.batch_s, 0) + 1
        future = self._waiting.get(done.number)
        if future is not None and not future.done():
            future.set_result(done)

    def _cause(self, exitcode: int) -> EngineError:
        text, log = said_since(self.log, self._context.log_start), str(self.log)
        if self.facts.start_s > 0:
            return failure.died(exitcode, text, log, who="the worker")
        return failure.failed_to_start(RuntimeError(f"the worker ended: {exitcode}"), text, log)

    def _fail(self, error: EngineError) -> None:
        self._error = self._error or error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._error)


async def start_workers(
    starter: VllmStarter, workers: int, batching: Batching, *, log: Path
) -> Workers:
    """Start so many workers, each with its share of the memory, one after the other: each measures
    what the one before has left. Failed or cancelled, nothing is left behind."""
    begun_s, size = time.monotonic(), batching.size
    asked = await asyncio.to_thread(starter.resolved, max_num_seqs=size)
    from tuner.engines.vllm.config import for_llm  # noqa: PLC0415 - imports vLLM

    arguments = for_llm(asked, share=1 / workers)
    facts = seam.EngineFacts(
        engine="vllm", arguments=asked.arguments, max_model_len=asked.max_model_len,
        vocab_size=asked.vocab_size, block_size=0, kv_blocks=0, start_s=0.0,
        versions=provenance.versions(), device={},
    )  # fmt: skip
    engine = Workers(facts, log)
    try:
        for _ in range(workers):
            await engine.add(arguments, batching)
        await engine.prepare()
    except BaseException:
        await engine.stop()
        raise
    device = devices.device_of(facts.arguments, asked.how, said_since(log, 0))
    engine.facts = replace(facts, start_s=time.monotonic() - begun_s, device=device)
    return engine


def work(*args: Any) -> None:
    """In the worker process: serve until it is ended; what goes wrong goes to its log."""
    try:
        serve(*args)
    except BaseException:
        traceback.print_exc()
        raise


def serve(
    arguments: dict[str, Any], batching: Batching, prompts: Any, replies: Any, wanted: Any
) -> None:
    """Serve batches with an engine of its own, for ever."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM  # noqa: PLC0415 - in the worker process only

    llm = LLM(**{**arguments, "disable_log_stats": False})  # they hold the times of tokens
    while True:
        batch, begun_s = collected(prompts, batching), time.monotonic()
        asked = [one for one in batch if one.token_ids and one.number >= wanted.value]
        sampling = [llm.get_default_sampling_params() for _ in asked]
        for each, one in zip(sampling, asked, strict=True):
            each.max_tokens, each.ignore_eos, each.detokenize = one.output_length, True, False
        tokens = [{"prompt_token_ids": list(one.token_ids)} for one in asked]
        outputs = llm.generate(tokens, sampling, use_tqdm=False) if asked else []
        batch_s = begun_s, time.monotonic()
        for one, output in zip(asked, outputs, strict=True):
            seen_s = output.metrics.first_token_ts, output.metrics.last_token_ts
            replies.send(Done(one.number, len(output.outputs[0].token_ids), seen_s, batch_s))
        for one in batch:
            if not one.token_ids:
                llm.reset_prefix_cache()
            if one not in asked:
                replies.send(Done(one.number, 0, (), batch_s))


def collected(prompts: Any, batching: Batching) -> list[Prompt]:
    batch: list[Prompt] = [prompts.get()]
    until_s = time.monotonic() + batching.wait_s
    while len(batch) < batching.size:
        try:
            batch.append(prompts.get(timeout=max(0.0, until_s - time.monotonic())))
        except queue.Empty:
            break
    return batch
