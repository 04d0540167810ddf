"""Worker processes behind queues, a synchronous ``vllm.LLM`` in each, as services were built before
continuous batching. Only ``tuner compare`` measures them."""

# ruff: noqa: ANN401 - multiprocessing's and vLLM's objects are untyped here

import asyncio
import os
import queue
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, count
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

Prompt = tuple[int, seam.EngineRequest | None]  # its number; None: reset the prefix cache
Output = tuple[float, int, float, float]  # its batch's begin, its tokens, their first and last time


class Batching(NamedTuple):
    """Batches of ``size`` requests, or of what came within ``wait_s`` of the first. All replies of
    a batch leave when the slowest is done."""

    size: int = 1
    wait_s: float = 0.0


class Workers:
    """See tuner.engines.seam.Engine. A prompt goes to the worker that has the fewest."""

    facts: seam.EngineFacts  # once all have started

    def __init__(self, log: Path) -> None:
        self.log, self.compiled = log, list[str]()
        self._loop, self._context = asyncio.get_running_loop(), CoreContext(log)
        self._queues, self._replies = list[Any](), list[Any]()
        self._waiting: list[dict[int, asyncio.Future[Any]]] = []  # not answered, by each worker
        self._batches = list[tuple[float, float, int]]()  # begin, seconds, requests
        self._numbers = count()
        self._error: EngineError | None = None

    async def add(self, arguments: dict[str, Any], batching: Batching) -> None:
        """Start one more worker, and let it pay what only its first request pays."""
        prompts, (replies, sender) = self._context.Queue(), self._context.Pipe(duplex=False)
        process = self._context.Process(target=work, args=(arguments, batching, prompts, sender))
        process.start()
        sender.close()  # the worker's end closes the pipe
        self._queues.append(prompts)
        self._replies.append(replies)
        self._waiting.append({})
        self._loop.add_reader(replies, self._read, len(self._queues) - 1, process)
        async with started_in_time(self.log):
            await self._ask(len(self._queues) - 1, seam.EngineRequest([1] * 8, 8))

    async def generate(self, request: seam.EngineRequest, reply: seam.Reply) -> None:
        fewest = min(range(len(self._queues)), key=lambda worker: len(self._waiting[worker]))
        reply.queued_s, output = self._loop.time(), await self._ask(fewest, request)
        reply.scheduled_s, reply.output_tokens, reply.first_s, reply.last_s = output
        reply.seen_s.append(self._loop.time())

    async def _ask(self, worker: int, request: seam.EngineRequest | None) -> Any:
        if self._error is not None:
            raise self._error
        number, answer = next(self._numbers), self._loop.create_future()
        self._waiting[worker][number] = answer
        self._queues[worker].put((number, request))
        return await answer

    async def prepare(self, **_limits: int | None) -> None:
        """See the seam. Workers keep the limits that they were started with."""
        while any(self._waiting) and self._error is None:  # a replay that was cut leaves prompts
            for prompts, waiting in zip(self._queues, self._waiting, strict=True):
                with suppress(queue.Empty):
                    while prompt := prompts.get_nowait():
                        del waiting[prompt[0]]
            await asyncio.sleep(0.01)
        await asyncio.gather(*(self._ask(worker, None) for worker in range(len(self._queues))))
        self._batches.clear()

    async def iterations(self) -> seam.IterationLog:
        """Return a row for each batch: without tuner's scheduler an engine logs no iterations."""
        log = np.zeros(len(self._batches), seam.ITERATION)
        log[["start_s", "duration_s", "decode_seqs"]] = sorted(self._batches)
        self._batches.clear()
        return log

    async def stop(self) -> None:
        self._fail(seam.STOPPED)
        for prompts, replies in zip(self._queues, self._replies, strict=True):
            self._loop.remove_reader(replies)
            prompts.close()
            prompts.cancel_join_thread()
        await asyncio.to_thread(self._context.kill)
        await devices.given_back(self._context.memory_before, device=None)

    def _read(self, worker: int, process: Any) -> None:
        """Take what a worker has served, or its end."""
        try:
            numbers, batch, outputs = self._replies[worker].recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._replies[worker])
            process.join(timeout=1)
            code, text = process.exitcode, said_since(self.log, self._context.log_start)
            if hasattr(self, "facts"):
                self._fail(failure.died(code, text, str(self.log), who="the worker"))
            else:
                why = RuntimeError(f"the worker ended: {code}")
                self._fail(failure.failed_to_start(why, text, str(self.log)))
            return
        for number in numbers:
            answer = self._waiting[worker].pop(number)
            if not answer.done():
                answer.set_result(outputs.get(number))
        if outputs:
            self._batches.append(batch)

    def _fail(self, error: EngineError) -> None:
        self._error = self._error or error
        for answer in chain.from_iterable(waiting.values() for waiting in self._waiting):
            if not answer.done():
                answer.set_exception(self._error)


async def start_workers(
    starter: VllmStarter, workers: int, batching: Batching, *, log: Path
) -> Workers:
    """Start so many workers, each with its share of the memory, one after the other: each measures
    what the one before has left. Failed or cancelled, nothing is left behind."""
    begun_s = time.monotonic()
    asked = await asyncio.to_thread(starter.resolved, max_num_seqs=batching.size)
    from tuner.engines.vllm.config import for_llm  # noqa: PLC0415 - imports vLLM

    engine, arguments = Workers(log), for_llm(asked, share=1 / workers)
    try:
        for _ in range(workers):
            await engine.add(arguments, batching)
        await engine.prepare()
    except BaseException:
        await engine.stop()
        raise
    engine.facts = seam.EngineFacts(
        engine="vllm", arguments=asked.arguments, max_model_len=asked.max_model_len,
        vocab_size=asked.vocab_size, block_size=0, kv_blocks=0, start_s=time.monotonic() - begun_s,
        versions=provenance.versions(),
        device=devices.device_of(asked.arguments, asked.how, said_since(log, 0)),
    )  # fmt: skip
    return engine


def work(arguments: dict[str, Any], batching: Batching, prompts: Any, replies: Any) -> None:
    """In the worker process: serve batches until it is ended; errors go to its log."""
    try:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM  # noqa: PLC0415 - in the worker process only

        llm = LLM(**{**arguments, "disable_log_stats": False})  # they hold the times of tokens
        while True:
            batch = collected(prompts, batching)
            begun_s, outputs = time.monotonic(), served(llm, batch)
            row = begun_s, time.monotonic() - begun_s, len(batch)
            replies.send(([number for number, _ in batch], row, outputs))
    except BaseException:
        traceback.print_exc()
        raise


def collected(prompts: Any, batching: Batching) -> list[Prompt]:
    batch, until_s = [prompts.get()], time.monotonic() + batching.wait_s
    with suppress(queue.Empty):
        while len(batch) < batching.size:
            batch.append(prompts.get(timeout=max(0.0, until_s - time.monotonic())))
    return batch


def served(llm: Any, batch: Sequence[Prompt]) -> dict[int, Output]:
    """Generate for all of a batch; reset the prefix cache where that is asked for."""
    begun_s, outputs = time.monotonic(), dict[int, Output]()
    asked = {number: request for number, request in batch if request is not None}
    sampling = [llm.get_default_sampling_params() for _ in asked]
    for each, request in zip(sampling, asked.values(), strict=True):
        each.max_tokens, each.ignore_eos, each.detokenize = request.output_length, True, False
    inputs = [{"prompt_token_ids": list(one.prompt_token_ids)} for one in asked.values()]
    done = llm.generate(inputs, sampling, use_tqdm=False) if asked else []
    for number, output in zip(asked, done, strict=True):
        tokens, times = len(output.outputs[0].token_ids), output.metrics
        outputs[number] = begun_s, tokens, times.first_token_ts, times.last_token_ts
    if len(asked) < len(batch):
        llm.reset_prefix_cache()
    return outputs
