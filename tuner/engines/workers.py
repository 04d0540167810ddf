"""Worker processes behind queues, a synchronous ``vllm.LLM`` in each that serves one prompt at a
time, as services were built before continuous batching. Only ``tuner compare`` measures them."""

# ruff: noqa: ANN401 - multiprocessing's and vLLM's objects are untyped here

import asyncio
import os
import queue
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tuner.engines import devices, provenance, seam
from tuner.engines.timeouts import started_in_time
from tuner.engines.vllm import failure
from tuner.engines.vllm.core_process import CoreContext
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import EngineError

_LOOK_S = 0.01
_WARM_UP = seam.EngineRequest([1] * 8, 8)


class Output(NamedTuple):
    """What came of a prompt, in seconds of the monotonic clock that processes share."""

    begun_s: float
    ended_s: float
    tokens: int = 0
    first_s: float = 0.0
    last_s: float = 0.0


class Workers:
    """See tuner.engines.seam.Engine. A prompt goes to the worker that has the fewest."""

    facts: seam.EngineFacts  # once all have started

    def __init__(self, log: Path) -> None:
        self._loop, self._context = asyncio.get_running_loop(), CoreContext(log)
        self.log, self.compiled = self._context.log, list[str]()
        self._queues, self._replies = list[Any](), list[Any]()
        self._waiting: list[dict[int, asyncio.Future[Output]]] = []  # not answered, by each worker
        self._served = list[Output]()
        self._numbers = count()
        self._error: EngineError | None = None

    async def add(self, arguments: dict[str, Any]) -> None:
        """Start one more worker, and let it pay what only its first request pays."""
        prompts, (replies, sender) = self._context.Queue(), self._context.Pipe(duplex=False)
        process = self._context.Process(target=work, args=(arguments, prompts, sender))
        process.start()
        sender.close()  # the worker's end closes the pipe
        self._queues.append(prompts)
        self._replies.append(replies)
        self._waiting.append({})
        self._loop.add_reader(replies, self._read, len(self._queues) - 1, process)
        async with started_in_time(self.log.path):
            await self._ask(len(self._queues) - 1, _WARM_UP)

    async def generate(self, request: seam.EngineRequest, reply: seam.Reply) -> None:
        """See the seam."""
        fewest = min(range(len(self._queues)), key=lambda worker: len(self._waiting[worker]))
        reply.queued_s, output = self._loop.time(), await self._ask(fewest, request)
        reply.scheduled_s, _, reply.output_tokens, reply.first_s, reply.last_s = output
        reply.seen_s.append(self._loop.time())

    async def _ask(self, worker: int, request: seam.EngineRequest | None) -> Output:
        if self._error is not None:
            raise self._error
        number = next(self._numbers)
        output: asyncio.Future[Output] = self._loop.create_future()
        self._waiting[worker][number] = output
        self._queues[worker].put((number, request))
        return await output

    async def prepare(self, **_limits: int | None) -> None:
        """See the seam. Workers keep the limits that they were started with."""
        while any(self._waiting) and self._error is None:  # a replay that was cut leaves prompts
            for prompts, waiting in zip(self._queues, self._waiting, strict=True):
                with suppress(queue.Empty):
                    while prompt := prompts.get_nowait():
                        del waiting[prompt[0]]
            await asyncio.sleep(_LOOK_S)
        await asyncio.gather(*(self._ask(worker, None) for worker in range(len(self._queues))))
        self._served.clear()

    async def iterations(self) -> seam.IterationLog:
        """Return a row for each request: without tuner's scheduler an engine logs no iterations."""
        log = np.zeros(len(self._served), seam.ITERATION)
        log[["start_s", "duration_s", "decode_seqs"]] = sorted(
            (each.begun_s, each.ended_s - each.begun_s, 1) for each in self._served
        )
        self._served.clear()
        return log

    async def stop(self) -> None:
        """See the seam."""
        self._fail(seam.STOPPED)
        for prompts, replies in zip(self._queues, self._replies, strict=True):
            self._loop.remove_reader(replies)
            prompts.close()
            prompts.cancel_join_thread()
        await asyncio.to_thread(self._context.kill)
        await devices.given_back(self._context.memory_before)

    def _read(self, worker: int, process: Any) -> None:
        """Take what a worker has served, or its end."""
        try:
            number, output = self._replies[worker].recv()
        except (EOFError, OSError):
            self._loop.remove_reader(self._replies[worker])
            process.join(timeout=1)
            why = RuntimeError(f"the worker ended: {process.exitcode}")
            died = failure.died(process.exitcode, self.log, who="the worker")
            has_started = hasattr(self, "facts")
            self._fail(died if has_started else failure.failed_to_start(self.log, why))
            return
        waiting = self._waiting[worker].pop(number)
        if not waiting.done():
            waiting.set_result(output)
        if output.tokens:
            self._served.append(output)

    def _fail(self, error: EngineError) -> None:
        self._error = self._error or error
        for output in chain.from_iterable(waiting.values() for waiting in self._waiting):
            if not output.done():
                output.set_exception(self._error)


class WorkersStarter(NamedTuple):
    """See the seam: Starter. So many workers on one device, each with its share of the memory."""

    base: VllmStarter
    workers: int

    def resolve(self, *, max_num_seqs: int) -> Mapping[str, seam.ArgumentValue]:
        """See the seam."""
        return self.base.resolve(max_num_seqs=max_num_seqs)

    async def start(self, *, max_num_seqs: int) -> Workers:
        """See the seam. One starts after the other: each measures what the one before has left.
        Failed or cancelled, nothing is left behind."""
        begun_s = time.monotonic()
        resolved = await asyncio.to_thread(self.base.resolved, max_num_seqs=max_num_seqs)
        from tuner.engines.vllm.config import for_llm  # noqa: PLC0415 - imports vLLM

        engine, arguments = Workers(self.base.log), for_llm(resolved, share=1 / self.workers)
        try:
            for _ in range(self.workers):
                await engine.add(arguments)
            await engine.prepare()
        except BaseException:
            await engine.stop()
            raise
        engine.facts = seam.EngineFacts(
            engine="vllm", arguments=resolved.arguments, max_model_len=resolved.max_model_len,
            vocab_size=resolved.vocab_size, block_size=0, kv_blocks=0,
            start_s=time.monotonic() - begun_s, versions=provenance.versions(),
            device=devices.device_of(resolved.arguments, engine.log.text()),
        )  # fmt: skip
        return engine


def work(arguments: dict[str, Any], prompts: Any, replies: Any) -> None:
    """In the worker process: serve one prompt after the other until it is ended, and reset the
    prefix cache where that is asked for; errors go to its log."""
    try:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM  # noqa: PLC0415 - in the worker process only

        llm = LLM(**{**arguments, "disable_log_stats": False})  # they hold the times of tokens
        while True:
            number, request = prompts.get()
            begun_s, served = time.monotonic(), (0, 0.0, 0.0)
            if request is None:
                llm.reset_prefix_cache()
            else:
                sampling = llm.get_default_sampling_params()
                sampling.max_tokens, sampling.ignore_eos = request.output_length, True
                sampling.detokenize = False
                inputs = [{"prompt_token_ids": list(request.prompt_token_ids)}]
                (output,) = llm.generate(inputs, sampling, use_tqdm=False)
                times, tokens = output.metrics, len(output.outputs[0].token_ids)
                served = (tokens, times.first_token_ts, times.last_token_ts)
            replies.send((number, Output(begun_s, time.monotonic(), *served)))
    except BaseException:
        traceback.print_exc()
        raise
