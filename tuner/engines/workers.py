"""Worker processes behind a queue, a synchronous ``vllm.LLM`` in each that serves one prompt or one
batch at a time, as services were built before continuous batching. Only ``tuner compare`` measures
them."""

# ruff: noqa: ANN401 - multiprocessing's and vLLM's objects are untyped here

import asyncio
import os
import queue
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tuner.engines import devices, provenance, seam
from tuner.engines.vllm import failure
from tuner.engines.vllm.core_process import CoreContext
from tuner.engines.vllm.start import VllmStarter, started_in_time
from tuner.errors import EngineError

_LOOK_S = 0.01
_READY, _WARM_UP = -1, seam.EngineRequest([1] * 8, 8)
"""What a worker serves first, by itself."""


class Output(NamedTuple):
    """What came of a prompt, in seconds of the monotonic clock that processes share."""

    number: int
    begun_s: float
    ended_s: float
    tokens: int
    first_s: float
    last_s: float


class Workers:
    """See tuner.engines.seam.Engine. Whichever worker is free takes the next prompt."""

    facts: seam.EngineFacts  # once all have started

    def __init__(self, log: Path) -> None:
        self._loop, self._context = asyncio.get_running_loop(), CoreContext(log)
        self._prompts, self._pipes = self._context.Queue(), list[Any]()
        self._waiting = dict[int, "asyncio.Future[Output]"]()
        self._served = list[Output]()
        self._numbers, self._cache = count(), 0
        self._error: EngineError | None = None

    async def add(self, arguments: dict[str, Any], size: int, wait_s: float) -> None:
        """Start one more worker, and let it pay what only its first request pays."""
        pipe, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=work, args=(arguments, size, wait_s, self._prompts, sender)
        )
        process.start()
        sender.close()  # the worker's end closes the pipe
        self._pipes.append(pipe)
        self._loop.add_reader(pipe, self._read, pipe, process)
        self._waiting[_READY] = ready = self._loop.create_future()
        async with started_in_time(self._context.log.path):
            await ready

    async def generate(self, request: seam.EngineRequest, reply: seam.Reply) -> None:
        """See the seam."""
        if self._error is not None:
            raise self._error
        self.facts.check_length(request)
        number, reply.queued_s = next(self._numbers), self._loop.time()
        self._waiting[number] = waiting = self._loop.create_future()
        self._prompts.put((self._cache, number, request))
        output = await waiting
        reply.scheduled_s, reply.output_tokens = output.begun_s, output.tokens
        reply.first_s, reply.last_s = output.first_s, output.last_s
        reply.seen_s.append(self._loop.time())

    async def prepare(self, **_limits: int | None) -> None:
        """See the seam. Workers keep the limits that they were started with."""
        while self._waiting and self._error is None:  # a replay that was cut leaves prompts
            with suppress(queue.Empty):
                while prompt := self._prompts.get_nowait():
                    self._waiting.pop(prompt[1]).cancel()
            await asyncio.sleep(_LOOK_S)
        if self._error is not None:
            raise self._error
        self._cache += 1  # each empties its own before the next prompt
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
        for pipe in self._pipes:
            self._loop.remove_reader(pipe)
        self._prompts.close()
        self._prompts.cancel_join_thread()
        await asyncio.to_thread(self._context.kill)
        await devices.given_back(self._context.memory_before)

    def _read(self, pipe: Any, process: Any) -> None:
        """Take what a worker has served, or its end."""
        try:
            output: Output = pipe.recv()
        except (EOFError, OSError):
            self._loop.remove_reader(pipe)
            process.join(timeout=1)
            died = failure.died(process.exitcode, self._context.log, who="the worker")
            has_started = hasattr(self, "facts")
            self._fail(died if has_started else failure.failed_to_start(self._context.log, died))
            return
        self._served.append(output)
        waiting = self._waiting.pop(output.number)
        if not waiting.done():
            waiting.set_result(output)

    def _fail(self, error: EngineError) -> None:
        self._error = self._error or error
        for output in self._waiting.values():
            if not output.done():
                output.set_exception(self._error)


class WorkersStarter(NamedTuple):
    """See the seam: Starter. So many workers on one device, each with its share of the memory, that
    serve ``size`` requests together, or as many as come within ``wait_s`` of the first."""

    base: VllmStarter
    workers: int
    size: int = 1
    wait_s: float = 0.0

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
                await engine.add(arguments, self.size, self.wait_s)
            await engine.prepare()
        except BaseException:
            await engine.stop()
            raise
        engine.facts = seam.EngineFacts(
            engine="vllm", arguments=resolved.arguments, max_model_len=resolved.max_model_len,
            vocab_size=resolved.vocab_size, block_size=0, kv_blocks=0,
            start_s=time.monotonic() - begun_s, versions=provenance.versions(),
            device=devices.device_facts(),
        )  # fmt: skip
        return engine


def work(arguments: dict[str, Any], size: int, wait_s: float, prompts: Any, sender: Any) -> None:
    """In the worker process: serve one batch after the other until it is ended, with an empty
    prefix cache where another one is meant than before; errors go to its log."""
    try:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM  # noqa: PLC0415 - in the worker process only

        llm = LLM(**{**arguments, "disable_log_stats": False})  # they hold the times of tokens
        cache, batch = 0, [(0, _READY, _WARM_UP)]
        while True:
            if batch[0][0] != cache:
                llm.reset_prefix_cache()
                cache = batch[0][0]
            begun_s = time.monotonic()
            inputs = [{"prompt_token_ids": list(each.prompt_token_ids)} for _, _, each in batch]
            sampling = [_sampling(llm, each.output_length) for _, _, each in batch]
            outputs = llm.generate(inputs, sampling, use_tqdm=False)
            ended_s = time.monotonic()
            for (_, number, _), output in zip(batch, outputs, strict=True):
                times, tokens = output.metrics, len(output.outputs[0].token_ids)
                first_s, last_s = times.first_token_ts, times.last_token_ts
                sender.send(Output(number, begun_s, ended_s, tokens, first_s, last_s))
            batch = _next(prompts, size, wait_s)
    except BaseException:
        traceback.print_exc()
        raise


def _next(prompts: Any, size: int, wait_s: float) -> list[tuple[int, int, seam.EngineRequest]]:
    """Take the next batch off the queue."""
    batch = [prompts.get()]
    until_s = time.monotonic() + wait_s
    with suppress(queue.Empty):
        while len(batch) < size:
            batch.append(prompts.get(timeout=max(0.0, until_s - time.monotonic())))
    return batch


def _sampling(llm: Any, tokens: int) -> Any:
    sampling = llm.get_default_sampling_params()
    sampling.max_tokens, sampling.ignore_eos, sampling.detokenize = tokens, True, False
    return sampling
